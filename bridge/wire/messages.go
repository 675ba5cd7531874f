package wire

// This file is the only source of the messages and of the entries of lists. The command go generate makes from it: messages_gen.go, the
// messages of the Python client, the lists of docs/protocol.md, and for each public structure its type in package mempool and in the
// Python client, the functions that convert it, and the function of poolsvc that prints it as JSON.
//
//   - The tag of a field is its key on the wire; "?" marks an optional field, which is left out when it has its zero value.
//     The order of the fields is their order on the wire.
//   - The comment of a field is its meaning. docs/protocol.md has the first sentence; the public types have the whole comment. It may name
//     keys, like `w`, and chapters of that page. "none: TEXT" says what it means that a field is left out, or has the zero value.
//   - The comment of a message begins with its name and a verb.
//   - A line "//wire:request OPERATION REPLY" makes a request; without REPLY, an EmptyReply answers it. A line
//     "//wire:notice NAME" makes a notice.
//   - A line "//wire:public" makes a public structure, which has the name of the message in package mempool and in the Python client. A line
//     "//wire:go" says that package mempool has a type of this name, and that the type and its conversions are written by hand.
//   - Options of a field of a public structure: "none" says that the zero value means that there is no such thing: it is None in Python,
//     and JSON leaves it out. "none=FIELD" says that this is so if FIELD has the zero value. With "embed", the fields of the structure
//     in this field are also fields of the public structure.
//   - The tag poolsvc:"KEY" names another key of JSON than the name of the field, and poolsvc:"-" leaves the field to the command of
//     poolsvc. JSON has the zero value of a field with "none" if the option is "zero", and lacks that of another field if the option is
//     "omitempty".

//go:generate go run ./generate

// Error says why a request failed.
type Error struct {
	Code Code `wire:"c"` // error code
	// text for people, cut to fit
	Message string `wire:"m,text"`
}

// Tensor describes the content of a buffer. An element is at byte `of` + itemsize·Σ index·stride of the buffer; the sum is over all
// dimensions.
//
//wire:go
type Tensor struct {
	// `bool`, `int8` … `int64`, `uint8` … `uint64`, `float16`, `bfloat16`, `float32`, `float64`, `complex64`, `complex128`, `float8_e4m3fn`,
	// `float8_e4m3fnuz`, `float8_e5m2`, `float8_e5m2fnuz`, `float8_e8m0fnu`, `float4_e2m1fn_x2` (two floats, the first in the low bits)
	DType   string   `wire:"dt"`
	Shape   []uint64 `wire:"sh?"` // shape; left out: a scalar (1 element)
	Strides []int64  `wire:"st?"` // strides, in elements; left out: C-contiguous
	// byte offset of the first element in the buffer; a multiple of the element size
	Offset uint64 `wire:"of?"`
	// bytes of the Layout at the end of the buffer; left out: the buffer has one array. The tensor is all bytes of the buffer
	LayoutBytes uint64 `wire:"ly?"`
}

// NamedTensor describes one of several arrays in a buffer.
//
//wire:go
type NamedTensor struct {
	Name   string `wire:"nm"` // name, as for a buffer; unique in the layout
	Tensor Tensor `wire:"t"`  // where the array lies in the buffer
}

// Layout describes arrays of a frame or of a buffer. It is sent in no packet: docs/streams.md says where that of a frame is.
type Layout struct {
	// metadata of a buffer, in its first parts, which have no arrays; left out: none, as in a frame
	Metadata []MetadataEntry `wire:"md?"`
	Arrays   []NamedTensor   `wire:"ar"` // the arrays
}

// MetadataEntry says something about the arrays of a buffer.
type MetadataEntry struct {
	Key   string `wire:"k"` // key
	Value string `wire:"v"` // value; a long one goes on in the next entries of the key
}

// PoolInfo describes a pool: a named, bounded amount of memory of one kind.
//
//wire:public
//wire:go
type PoolInfo struct {
	ID   uint64 `wire:"id"` // pool id
	Name string `wire:"nm"` // name
	Kind Kind   `wire:"k"`  // kind of memory: `device`, `vmm`, `legacy`, `pinned`, `host`
	// device ordinal, as the service sees it; none: no device
	DeviceOrdinal uint64 `wire:"do?,none=DeviceUUID"`
	// device UUID, `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`; none: no device. It is the same in every process. A pool of kind `pinned`
	// has the GPU that is closest to the memory
	DeviceUUID string `wire:"du?"`
	MaxBytes   uint64 `wire:"mx"` // most bytes of all blocks
	// most bytes that count for one session; none: no limit
	SessionBytes uint64 `wire:"sx?"`
	// most bytes that count for one user; none: no limit
	UserBytes uint64  `wire:"ux?"`
	Export    *Export `wire:"x?"` // how to map the pool; only in replies to `create` and `open`
}

// Export says how to map a pool or a block.
//
//wire:go
type Export struct {
	Data []byte `wire:"d?"` // data in the format of the kind, see Kinds
	// how many of the packet's descriptors belong to this export, in the order of the exports
	FDs uint64 `wire:"f?"`
}

// Fence says when work has ended. The work has ended, and the fence is reached, when a word of the session's timeline is `v` or more.
//
//wire:go
type Fence struct {
	Timeline uint64 `wire:"tl"` // timeline id
	Word     uint64 `wire:"wd"` // index of a word
	Value    uint64 `wire:"v"`  // value at which the fence is reached; at least 1
}

// ChannelIdentity says which channel it is, and its settings: what stays the same while the channel exists. A channel is a named, bounded queue of
// buffers of one pool.
//
//wire:go
type ChannelIdentity struct {
	ID       uint64      `wire:"id"`                   // channel id
	Name     string      `wire:"nm" poolsvc:"channel"` // name
	Pool     uint64      `wire:"pl"`                   // pool id. The channel carries buffers of this pool
	Mode     ChannelMode `wire:"md"`                   // mode: `broadcast` or `queue`
	Capacity uint64      `wire:"cp"`                   // capacity, in frames
	Full     FullPolicy  `wire:"fl"`                   // policy when full: `block`, `drop-oldest`, `latest`, `fail`
	// queue: the most deliveries of a frame; none: no bound
	MaxDeliveries uint64 `wire:"xd?,none" poolsvc:",zero"`
}

// Grant describes the lease that a session is given, its buffer and its block.
//
//wire:go
type Grant struct {
	ID         uint64 `wire:"id"`  // lease id
	Buffer     uint64 `wire:"bf"`  // buffer id
	Generation uint64 `wire:"ge"`  // generation: counts the buffers that have used the block, from any number
	Write      bool   `wire:"wr?"` // whether this is a write lease
	Pool       uint64 `wire:"pl"`  // pool id
	Block      uint64 `wire:"bl"`  // block id
	BlockBytes uint64 `wire:"bs"`  // bytes of the block
	Bytes      uint64 `wire:"n?"`  // bytes of the buffer
	Base       uint64 `wire:"ba?"` // byte of the block at which the buffer begins
	Tensor     Tensor `wire:"t"`   // content of the buffer
	// how to map the block; with the session's first lease on the block, and again after a `recall`
	Export *Export `wire:"x?"`
	Wait   []Fence `wire:"wt?"` // fences to wait for before the memory is used
	Event  []byte  `wire:"ev?"` // the interprocess event that came with the content
}

// ServiceStats counts what a session sees.
//
//wire:public
type ServiceStats struct {
	// number of sessions that have not ended: of the asking user; for the service's own user and root all
	Sessions Count       `wire:"ss"`
	Leases   Count       `wire:"ls"`             // number of leases
	Buffers  Count       `wire:"bf"`             // number of buffers
	Names    Count       `wire:"nm"`             // number of names of buffers
	Pools    []PoolStats `wire:"p?" poolsvc:"-"` // pools, by id. They are the pools that this user may use or destroy
	// `watches`: a guard starts another service if this one dies; `lost`: not any more; left out: no guard
	Guard     string    `wire:"gd?"`
	GuardPID  ProcessID `wire:"gp?"` // process id of the guard; left out: no guard, or systemd
	Takeovers uint64    `wire:"tk?"` // how often a service has taken over from one that died
}

// PoolStats counts the bytes of a pool. At all times, reserved = leased + cached + held.
//
//wire:public
type PoolStats struct {
	Pool     PoolInfo `wire:"p" poolsvc:"-"` // the pool, without its export
	Reserved uint64   `wire:"rs?"`           // bytes of all blocks (reserved)
	Leased   uint64   `wire:"ld?"`           // bytes of blocks in use (leased). A block is in use if it has a buffer
	Used     uint64   `wire:"us?"`           // bytes of the buffers in leased blocks (used). A buffer can be smaller than its block
	Cached   uint64   `wire:"ca?"`           // bytes of blocks free for use (cached)
	// bytes of free blocks that are recalled or wait for a process to end (held). The service cannot use them yet
	Held   uint64 `wire:"rc?"`
	Blocks Count  `wire:"nb?"` // number of blocks
	// bytes that count for the asking session. These are the bytes of blocks with buffers that the session allocated, and of free blocks that
	// other processes cannot use yet. The number is 0 if the service itself asks
	Session uint64 `wire:"cs?" poolsvc:"-"`
	// bytes that count for the user of the asking session. They count as those of a session do
	User uint64 `wire:"cu?" poolsvc:"yours"`
}

// SessionInfo describes a session of the service: one connected client.
//
//wire:public
type SessionInfo struct {
	ID      uint64    `wire:"id" poolsvc:"session"` // session id
	UID     UserID    `wire:"ui"`                   // user id
	PID     ProcessID `wire:"pd"`                   // process id, for people
	Program string    `wire:"nm?"`                  // the program's name, at most 255 bytes, which the client gave
	Began   Time      `wire:"bg"`                   // when the session began
	Leases  Count     `wire:"ls?"`                  // number of leases
	Blocks  Count     `wire:"bk?"`                  // number of blocks that it may have mapped. It was sent their exports, and has not dropped them
	Members Count     `wire:"mb?"`                  // number of its producers and consumers in channels
	Bytes   uint64    `wire:"n?"`                   // bytes of the blocks whose buffers the session allocated, in all pools
	Waits   Count     `wire:"wq?"`                  // number of requests that wait
	// what the longest-waiting request waits for, for people; none: no request waits
	WaitsFor string `wire:"wf?,none"`
	// since when this request waits; none: no request waits
	Since   Time `wire:"ws?,none" poolsvc:"waits_since"`
	Watches bool `wire:"wa?"` // whether it only reads statistics, lists, events
}

// ChannelInfo describes a channel of the service, and its members.
//
//wire:public
type ChannelInfo struct {
	Channel   ChannelIdentity `wire:"c,embed"` // the channel
	UID       UserID          `wire:"ui"`      // id of the user who made the channel
	Producers Count           `wire:"pr?"`     // number of producers
	Consumers Count           `wire:"cs?"`     // number of consumers
	// whether the channel is closed. A closed channel accepts no frames, and exists until its consumers leave
	Closed    bool   `wire:"sh?" poolsvc:"-"`
	Published uint64 `wire:"sq?" poolsvc:"frames"` // number of frames published
	// broadcast: number of frames that the slowest consumer has not taken; queue: number of frames that are not acknowledged
	Waiting uint64 `wire:"wt?"`
	// session of the slowest consumer; none: none is behind. In a broadcast, the slowest consumer is the one whose frames take up the most
	// places. No consumer is behind if none has a frame left to take, and none keeps so many frames that the channel is full. In a queue, the
	// slowest consumer is the one that has the oldest frame that is not acknowledged. If producers of a broadcast wait, it is the consumer that
	// they have waited for longest
	Slowest uint64 `wire:"sl?,none" poolsvc:",zero"`
	// places in use; the channel is full if this is the capacity. In a broadcast, these are the frames that the slowest consumer has not
	// taken, and also those that it has not released if producers must wait for it. In a queue, these are the frames that wait for a consumer.
	// If the channel is full, the next frame waits, fails, or makes the channel drop a frame, as the channel's policy says
	Used uint64 `wire:"uf?"`
	// whether producers wait for room. A consumer whose policy is to block them, or a queue's consumers, keep the channel full
	Blocked bool `wire:"bd?"`
	// broadcast: number of frames that consumers missed; queue: number of frames that no consumer got, or that were delivered too often. The
	// channel drops frames if consumers are too slow. In a broadcast, this is the sum of the frames that each consumer missed
	Dropped uint64 `wire:"dr?"`
	// whether nobody takes the frames of a queue that is full, or lost one in the last minute: it has no consumer, or its consumers took none
	// for 10 s and have none in hand
	Untaken bool `wire:"ut?"`
}

// MemberInfo describes a member of a channel.
//
//wire:public
type MemberInfo struct {
	ID      uint64    `wire:"id" poolsvc:"member"` // member id
	Session uint64    `wire:"ss"`                  // session id
	UID     UserID    `wire:"ui"`                  // user id
	PID     ProcessID `wire:"pd"`                  // process id
	Program string    `wire:"nm?"`                 // the program's name
	Role    string    `wire:"ro"`                  // `producer` or `consumer`
	Frames  uint64    `wire:"fr?"`                 // frames published or taken
	Last    uint64    `wire:"la?,none"`            // number of the last of these frames; none: there was none
	// when the last frame was published; none: not known any more
	LastAt Time   `wire:"lt?,none" poolsvc:"last_published"`
	Lag    uint64 `wire:"lg?"` // frames that a consumer has not taken; in a queue, not acknowledged
	// since when producers of a broadcast wait for this consumer; none: they do not
	Since Time `wire:"bs?,none" poolsvc:"blocks_since"`
	// whether its session has ended and its process has frames of a queue
	Ended bool `wire:"ed?"`
}

// NameInfo describes a name, and the buffer that is published under this name.
//
//wire:public
type NameInfo struct {
	Name      string `wire:"nm"`                       // name
	Buffer    uint64 `wire:"bf"`                       // buffer id
	Pool      uint64 `wire:"pl"`                       // pool id
	Bytes     uint64 `wire:"n"`                        // bytes of the buffer
	Tensor    Tensor `wire:"t"`                        // content of the buffer
	UID       UserID `wire:"ui"`                       // id of the user who published the name
	Version   uint64 `wire:"v?"`                       // version of the content. It grows with each publication under this name
	Session   uint64 `wire:"ss?,none" poolsvc:",zero"` // session at whose end the name goes; none: the name is kept, or ends with the last lease
	WhileUsed bool   `wire:"wu?"`                      // the name ends with the last lease of the buffer
}

// BufferInfo describes a buffer, and the sessions that hold it.
//
//wire:public
type BufferInfo struct {
	ID         uint64   `wire:"id" poolsvc:"buffer"`      // buffer id
	Generation uint64   `wire:"ge"`                       // generation: counts the buffers that have used the block
	Pool       uint64   `wire:"pl"`                       // pool id
	Bytes      uint64   `wire:"n"`                        // bytes of the buffer
	BlockBytes uint64   `wire:"bs"`                       // bytes of the block
	Tensor     Tensor   `wire:"t"`                        // content of the buffer
	Session    uint64   `wire:"ss"`                       // session that allocated the buffer, and that the block counts for. It may have ended
	Writer     uint64   `wire:"wr?,none" poolsvc:",zero"` // session with the write lease; none: there is none
	Readers    []uint64 `wire:"rd?"`                      // sessions with read leases, at most 8
	Reads      Count    `wire:"rs?"`                      // number of read leases
	Names      Count    `wire:"nn?"`                      // number of names of the buffer
	InChannel  bool     `wire:"ch?"`                      // whether it is in a channel, or used by the channel's consumers
	Whole      uint64   `wire:"wh?,none" poolsvc:",zero"` // buffer of whose memory it is a range; none: it has a block of its own
	Name       string   `wire:"nm?"`                      // name of its newest publication; empty: none
	Version    uint64   `wire:"v?"`                       // version of its newest publication
	Published  bool     `wire:"pu?"`                      // whether it still has that name
}

// LeaseInfo describes a lease, and the session that has it.
//
//wire:public
type LeaseInfo struct {
	ID         uint64    `wire:"id" poolsvc:"lease"` // lease id
	Session    uint64    `wire:"ss"`                 // session id
	UID        UserID    `wire:"ui"`                 // user id of the session
	PID        ProcessID `wire:"pd"`                 // process id
	Program    string    `wire:"nm?"`                // the program's name
	Buffer     uint64    `wire:"bf"`                 // buffer id
	Pool       uint64    `wire:"pl"`                 // pool id
	Bytes      uint64    `wire:"n"`                  // bytes of the buffer
	BlockBytes uint64    `wire:"bs"`                 // bytes of the block
	Write      bool      `wire:"wr?" poolsvc:"-"`    // whether it is a write lease
	Began      Time      `wire:"bg"`                 // when the lease began, rounded to a second
	// what the session waits for, for people; none: it does not wait. If several of its requests wait, it is the one that began to
	// wait first
	WaitsFor string `wire:"wf?,none"`
	Since    Time   `wire:"ws?,none" poolsvc:"waits_since"` // since when it waits; none: it does not
}

// HistoryEvent describes one event of the service. A field that does not apply to the event has no value.
//
//wire:public
type HistoryEvent struct {
	Number  uint64        `wire:"id" poolsvc:"event"`      // number of the event, from 1 in each epoch
	At      Time          `wire:"at"`                      // time of the event
	Kind    EventKind     `wire:"k"`                       // kind, see Events. docs/operating.md has all kinds
	Session uint64        `wire:"ss?,none"`                // session id
	UID     UserID        `wire:"ui?,none=Session"`        // user id of the session
	PID     ProcessID     `wire:"pd?,none=Session"`        // process id
	Program string        `wire:"nm?,none=Session"`        // the program's name
	Pool    string        `wire:"pl?,none"`                // pool name
	Channel string        `wire:"ch?,none"`                // channel name
	Buffer  uint64        `wire:"bf?,none"`                // buffer id
	Bytes   uint64        `wire:"n?" poolsvc:",omitempty"` // bytes of memory
	Ending  SessionEnding `wire:"en?,none"`                // how a session ended: `left`, `lost`, `error`, `closed`, `shutdown`

	// how long it took or has lasted. For `memory-reclaimed`, it is the time since the session ended. For `lease-long`, it is how long
	// another session has waited for the buffer. For `subscriber-slow`, it is how long the consumer has been too slow
	Took  Duration `wire:"tk?" poolsvc:"took_seconds,omitempty"`
	Count Count    `wire:"ct"` // how often it happened since the last such entry
	Text  string   `wire:"tx"` // a sentence, for people, at most 1,000 bytes
}

// Hello opens a session.
//
//wire:request hello HelloReply
type Hello struct {
	Versions []uint64 `wire:"v"`   // versions that the client speaks
	Name     string   `wire:"nm?"` // the program's name, for people
	Features []string `wire:"ft?"` // features of the client
	Resume   uint64   `wire:"rs?"` // id of the session that the client takes up again; left out: a new session
	Token    []byte   `wire:"tk?"` // token of this session
}

// Epoch identifies one run of the service.
type Epoch [16]byte

// HelloReply says which version and features the service chose, and identifies the service.
type HelloReply struct {
	Version  uint64   `wire:"v"`   // the chosen version
	Epoch    Epoch    `wire:"ep"`  // the service's epoch
	Session  uint64   `wire:"id"`  // session id
	PID      uint64   `wire:"pid"` // the service's process id, for people
	Features []string `wire:"ft?"` // features of both
	// token to take the session up again; left out: the session ends with the connection
	Token []byte `wire:"tk?"`
	// of a session that is taken up again: number of its last packet that changed something
	Done uint64 `wire:"dn?"`
}

// Create makes a pool.
//
//wire:request create PoolReply
type Create struct {
	Name            string   `wire:"nm"`  // pool name
	Kind            string   `wire:"k"`   // kind, see Kinds
	Device          string   `wire:"dv?"` // device: an ordinal or a UUID; left out: the first
	MaxBytes        uint64   `wire:"mx"`  // most bytes of the pool
	MaxSessionBytes uint64   `wire:"sx?"` // most bytes of a session
	MaxUserBytes    uint64   `wire:"ux?"` // most bytes of a user
	UIDs            []uint64 `wire:"ui?"` // users who may use the pool; without `ui` and `gi`: the maker
	GIDs            []uint64 `wire:"gi?"` // groups who may use the pool
	Ensure          bool     `wire:"en?"` // open a pool with the same settings
}

// PoolReply has the pool that was made or opened.
type PoolReply struct {
	Pool PoolInfo `wire:"p"` // the pool
}

// Open opens an existing pool by its name or by its id. The client sends exactly one of `nm` and `pl`.
//
//wire:request open PoolReply
type Open struct {
	Name string `wire:"nm?"` // pool name
	Pool uint64 `wire:"pl?"` // pool id, of a lease
	Wait uint64 `wire:"w?"`  // milliseconds to wait
}

// Destroy ends a pool.
//
//wire:request destroy
type Destroy struct {
	Pool uint64 `wire:"pl"` // pool id
}

// Trim frees unused blocks of a pool.
//
//wire:request trim TrimReply
type Trim struct {
	Pool uint64 `wire:"pl"` // pool id
	Keep uint64 `wire:"n?"` // bytes of unused blocks to keep
}

// TrimReply says how much was freed.
type TrimReply struct {
	Bytes uint64 `wire:"n"` // bytes freed at once
}

// Alloc allocates a buffer, with a write lease.
//
//wire:request alloc GrantReply
type Alloc struct {
	Pool   uint64 `wire:"pl"` // pool id
	Tensor Tensor `wire:"t"`  // content of the buffer
	Wait   uint64 `wire:"w?"` // milliseconds to wait
}

// GrantReply has the grant of a lease.
type GrantReply struct {
	Grant   Grant  `wire:"l"`  // the grant
	Version uint64 `wire:"v?"` // with `get`: version of the content
}

// Publish gives a name to the buffer of a write lease.
//
//wire:request publish PublishReply
type Publish struct {
	Lease     uint64  `wire:"l"`   // lease id
	Name      string  `wire:"nm"`  // buffer name
	Tensor    *Tensor `wire:"t?"`  // new description; left out: that of `alloc`
	Keep      bool    `wire:"kp?"` // keep the name when the session ends
	WhileUsed bool    `wire:"wu?"` // let the name end with the last lease of the buffer, or when the content fails, not with the session
	Replace   bool    `wire:"rp?"` // replace an existing name of the same user
	Version   uint64  `wire:"v?"`  // version, more than that of the replaced content; left out: one more than that, or 1
	Ready     *Fence  `wire:"rt?"` // when the content is complete; left out: now
	Event     []byte  `wire:"ev?"` // interprocess event
}

// PublishReply says which version the content has.
type PublishReply struct {
	Version uint64 `wire:"v?"` // version of the content
}

// Unpublish removes a name.
//
//wire:request unpublish
type Unpublish struct {
	Name string `wire:"nm"` // buffer name
}

// Get leases the buffer that has a name.
//
//wire:request get GrantReply
type Get struct {
	Name  string `wire:"nm"`  // buffer name
	Write bool   `wire:"wr?"` // a write lease
	Wait  uint64 `wire:"w?"`  // milliseconds to wait
	// buffer id, with `ov`: wait until the name refers to something else than this version of this buffer
	Buffer  uint64 `wire:"ob?"`
	Version uint64 `wire:"ov?"` // version, with `ob`; also wait while the content has failed
}

// LeaseBuffer leases a buffer by its id.
//
//wire:request lease GrantReply
type LeaseBuffer struct {
	Buffer     uint64 `wire:"bf"`  // buffer id
	Generation uint64 `wire:"ge"`  // generation of the buffer's block
	Write      bool   `wire:"wr?"` // a write lease
	Wait       uint64 `wire:"w?"`  // milliseconds to wait
}

// Release ends leases, all in the same way. If one cannot be ended, the others still end.
//
//wire:request release
type Release struct {
	Lease  uint64  `wire:"l"`   // lease id
	Failed bool    `wire:"fl?"` // whether the content is incomplete
	Done   []Fence `wire:"dt?"` // when the work on the lease is done; left out: now
	// further leases; an error is that of the first that cannot be ended
	Also []uint64 `wire:"al?"`
	// only in tests: the client's description, which the service compares
	Seen *Grant `wire:"se?"`
}

// AllocRange makes a buffer of a part of the memory of a write lease, with a write lease of its own.
//
//wire:request range GrantReply
type AllocRange struct {
	Lease  uint64 `wire:"l"`   // id of a write lease
	Offset uint64 `wire:"of?"` // first byte of the part in the lease's buffer
	Tensor Tensor `wire:"t"`   // content of the new buffer
}

// Returned asks which ranges of a write lease are gone.
//
//wire:request returned ReturnedReply
type Returned struct {
	Lease   uint64   `wire:"l"`  // id of the write lease
	Buffers []uint64 `wire:"bf"` // buffer ids of ranges
}

// ReturnedReply says which ranges are gone.
type ReturnedReply struct {
	Buffers []uint64 `wire:"bf?"` // those that are gone
	Wait    []Fence  `wire:"wt?"` // fences to wait for before their memory is used
}

// Cancel ends the wait of another request.
//
//wire:request cancel
type Cancel struct {
	Request uint64 `wire:"rq"` // number of a request of this session
}

// Dropped says which blocks the client has unmapped.
//
//wire:request dropped
type Dropped struct {
	Blocks []uint64 `wire:"bl"` // block ids
}

// StatsRequest asks for counts of what the session sees.
//
//wire:request stats StatsReply
type StatsRequest struct{}

// StatsReply has the counts of what the session sees.
type StatsReply struct {
	Stats ServiceStats `wire:"s"` // the counts
}

// List asks for a page of a list, in the order of ids or names.
//
//wire:request list ListReply
type List struct {
	What    string `wire:"wt"`  // `sessions`, `channels`, `names`, `buffers`, `leases` or `members`
	After   string `wire:"af?"` // `nx` of the previous page; left out: the first page
	Most    uint64 `wire:"n?"`  // most entries; left out: 64
	Channel uint64 `wire:"ch?"` // channel id, for `members`
}

// ListReply has the entries that were asked for.
type ListReply struct {
	Sessions []SessionInfo `wire:"ss?"` // sessions
	Channels []ChannelInfo `wire:"cs?"` // channels
	Names    []NameInfo    `wire:"ns?"` // names
	Buffers  []BufferInfo  `wire:"bs?"` // buffers
	Leases   []LeaseInfo   `wire:"ls?"` // leases
	Members  []MemberInfo  `wire:"ms?"` // members of the channel
	Next     string        `wire:"nx?"` // `af` of the next page; left out: no more pages
}

// Events asks for a page of events, the oldest first, and waits if there is none. At most 4 such requests of a session wait (`limit`).
//
//wire:request events EventsReply
type Events struct {
	After uint64 `wire:"af?"` // number of the last event that the client knows
	Most  uint64 `wire:"n?"`  // most entries; left out: 32
	Wait  uint64 `wire:"w?"`  // milliseconds to wait
}

// EventsReply has the events.
type EventsReply struct {
	Events []HistoryEvent `wire:"ev?"` // events
	Next   uint64         `wire:"nx?"` // `af` of the next page
	Lost   uint64         `wire:"lo?"` // events after `af` that the service keeps no more
}

// EndSession ends another session.
//
//wire:request end
type EndSession struct {
	Session uint64 `wire:"ss"` // session id
}

// Bye says that the client is closed. The service removes the session's names that are not kept.
//
//wire:request bye
type Bye struct{}

// GetTimeline asks for the page of a timeline.
//
//wire:request timeline TimelineReply
type GetTimeline struct {
	Timeline uint64 `wire:"tl?"` // timeline id; left out: the session's own, which the first such request makes
}

// TimelineReply has the page of a timeline.
type TimelineReply struct {
	Timeline uint64 `wire:"tl"` // timeline id
	Words    uint64 `wire:"nw"` // number of words
	Export   Export `wire:"x"`  // one descriptor: a memfd of 135,168 bytes
}

// Seal says that the session has mapped its timeline. No process can map it for writing any more.
//
//wire:request seal
type Seal struct{}

// MakeChannel makes a channel, or opens the one with this name and the same settings.
//
//wire:request channel ChannelReply
type MakeChannel struct {
	Name     string `wire:"nm"`  // channel name
	Pool     uint64 `wire:"pl"`  // pool id
	Mode     string `wire:"md?"` // mode; left out: `broadcast`
	Capacity uint64 `wire:"cp"`  // capacity, in frames
	Full     string `wire:"fl?"` // policy when full; left out: `block`
	// queue: the most deliveries of a frame; left out: no bound
	MaxDeliveries uint64 `wire:"xd?"`
}

// ChannelReply has the channel.
type ChannelReply struct {
	Channel ChannelIdentity `wire:"c"` // the channel
}

// Find opens a channel by its name.
//
//wire:request find ChannelReply
type Find struct {
	Name string `wire:"nm"` // channel name
	Wait uint64 `wire:"w?"` // milliseconds to wait
}

// CloseChannel closes a channel. Consumers still get the remaining frames.
//
//wire:request close
type CloseChannel struct {
	Channel uint64 `wire:"ch"`  // channel id
	Discard bool   `wire:"di?"` // end a closed queue, and lose its frames that are not acknowledged
}

// AwaitConsumers waits until a channel has so many consumers.
//
//wire:request consumers
type AwaitConsumers struct {
	Channel uint64 `wire:"ch"` // channel id
	Count   uint64 `wire:"n"`  // number of consumers, 1 to 1,024
	Wait    uint64 `wire:"w?"` // milliseconds to wait
}

// Join makes a member: a producer or a consumer.
//
//wire:request join JoinReply
type Join struct {
	Channel uint64 `wire:"ch?"` // channel id
	Name    string `wire:"nm?"` // instead of the id: channel name, for a consumer
	Wait    uint64 `wire:"w?"`  // milliseconds to wait for a channel of that name
	Role    string `wire:"ro"`  // `producer` or `consumer`
	Oldest  bool   `wire:"ol?"` // begin with the oldest kept frame of a broadcast
	Full    string `wire:"fl?"` // policy of this consumer; left out: the channel's
}

// JoinReply has the files of a new member.
type JoinReply struct {
	Channel ChannelIdentity `wire:"c"`  // the channel
	Seat    uint64          `wire:"sl"` // seat in the roster
	Member  uint64          `wire:"mb"` // member id
	Export  Export          `wire:"x"`  // three descriptors: roster, sequencer, and the member's own file
}

// Enter says that the session has mapped the member's files. The member takes part once this is answered.
//
//wire:request enter
type Enter struct {
	Channel uint64 `wire:"ch"` // channel id
	Member  uint64 `wire:"mb"` // member id
}

// Leave ends a member.
//
//wire:request leave
type Leave struct {
	Channel uint64 `wire:"ch"` // channel id
	Member  uint64 `wire:"mb"` // member id
}

// Map asks how to map a block that a frame named. The block counts as mapped until `dropped`.
//
//wire:request map MapReply
type Map struct {
	Channel uint64 `wire:"ch"` // channel id
	Block   uint64 `wire:"bl"` // block id
}

// MapReply says how to map a block.
type MapReply struct {
	Generation uint64 `wire:"ge"` // generation of the block
	BlockBytes uint64 `wire:"bs"` // bytes of the block
	Export     Export `wire:"x"`  // how to map the block
}

// Doubt reports a frame that the consumer has acknowledged but not given to its program.
//
//wire:request doubt
type Doubt struct {
	Channel    uint64 `wire:"ch"`  // channel id
	Member     uint64 `wire:"mb"`  // member id of the consumer
	Sequence   uint64 `wire:"sq"`  // number of the frame
	Deliveries uint64 `wire:"dv?"` // how often it was delivered; left out: its record contradicts itself or the block
}

// EmptyReply says that a request succeeded, and nothing else.
type EmptyReply struct{}

// Recall asks the client to unmap each block as soon as no lease needs it, and then to send `dropped`.
//
//wire:notice recall
type Recall struct {
	Blocks []uint64 `wire:"bl"` // block ids
}

// Goodbye says why the service is about to close the connection.
//
//wire:notice goodbye
type Goodbye struct {
	Reason Error `wire:",inline"` // the reason, as in the Error of a reply
}

// Failed names leased buffers whose writer died before the content was complete.
//
//wire:notice failed
type Failed struct {
	Buffers []uint64 `wire:"bf"` // buffer ids
}

// Working says that a request takes long.
//
//wire:notice working
type Working struct {
	// request number; left out: a request for which all later requests wait
	Request uint64 `wire:"rq?"`
}

// MemberCame gives the session the file of a member of a channel, for its own members of the other role.
//
//wire:notice member
type MemberCame struct {
	Channel uint64 `wire:"ch"` // channel id
	Role    string `wire:"ro"` // `producer` or `consumer`
	Seat    uint64 `wire:"sl"` // seat in the roster
	Member  uint64 `wire:"mb"` // member id
	Export  Export `wire:"x"`  // the member's file; no descriptor if the member has left already
}

// Wanted says that somebody waits for memory of a pool in which this client has producers or ranges.
//
//wire:notice wanted
type Wanted struct {
	Pool uint64 `wire:"pl"` // pool id
}

// Forget says that the client will get no more fences of these timelines. The client unmaps their pages when nothing waits for them.
//
//wire:notice forget
type Forget struct {
	Timelines []uint64 `wire:"tl"` // timeline ids
}
