package wire

// Channel describes a channel.
type Channel struct {
	ID       uint64 // never reused within an epoch
	Name     string
	Pool     uint64 // pool id, whose buffers it carries and whose access list holds
	Mode     string // "broadcast" or "queue"
	Capacity uint64 // frames that it keeps
	Full     string // what happens when it is full: "block", "drop-oldest", "latest" or "fail"
}

var channelFields = record[Channel]{
	uintField("id", func(m *Channel) *uint64 { return &m.ID }),
	stringField("nm", func(m *Channel) *string { return &m.Name }),
	uintField("pl", func(m *Channel) *uint64 { return &m.Pool }),
	stringField("md", func(m *Channel) *string { return &m.Mode }),
	uintField("cp", func(m *Channel) *uint64 { return &m.Capacity }),
	stringField("fl", func(m *Channel) *string { return &m.Full }),
}

// MakeChannel is the operation "channel": it makes a channel, or opens the one that is just like it. A ChannelReply
// answers it.
type MakeChannel struct {
	Name     string // channel name
	Pool     uint64 // pool id
	Mode     string // empty: "broadcast"
	Capacity uint64 // frames that it keeps
	Full     string // empty: "block"
}

var makeChannelFields = record[MakeChannel]{
	stringField("nm", func(m *MakeChannel) *string { return &m.Name }),
	uintField("pl", func(m *MakeChannel) *uint64 { return &m.Pool }),
	stringField("md", func(m *MakeChannel) *string { return &m.Mode }).maybe(),
	uintField("cp", func(m *MakeChannel) *uint64 { return &m.Capacity }),
	stringField("fl", func(m *MakeChannel) *string { return &m.Full }).maybe(),
}

// Op returns "channel".
func (*MakeChannel) Op() string { return "channel" }

func (m *MakeChannel) fields() fields { return makeChannelFields.of(m) }

// ChannelReply answers MakeChannel and Find.
type ChannelReply struct {
	Channel Channel
}

var channelReplyFields = record[ChannelReply]{
	structField("c", func(m *ChannelReply) *Channel { return &m.Channel }, channelFields),
}

func (*ChannelReply) reply() {}

func (m *ChannelReply) fields() fields { return channelReplyFields.of(m) }

// Find asks for a channel by name. A ChannelReply answers it.
type Find struct {
	Name string // channel name
	Wait uint64 // milliseconds to wait for the name
}

var findFields = record[Find]{
	stringField("nm", func(m *Find) *string { return &m.Name }),
	uintField("w", func(m *Find) *uint64 { return &m.Wait }).maybe(),
}

// Op returns "find".
func (*Find) Op() string { return "find" }

func (m *Find) fields() fields { return findFields.of(m) }

// CloseChannel closes a channel: nothing more can be sent, and subscribers get an End after the last frame. An EmptyReply answers
// it.
type CloseChannel struct {
	Channel uint64 // channel id
}

var closeChannelFields = record[CloseChannel]{
	uintField("ch", func(m *CloseChannel) *uint64 { return &m.Channel }),
}

// Op returns "close".
func (*CloseChannel) Op() string { return "close" }

func (m *CloseChannel) fields() fields { return closeChannelFields.of(m) }

// Join asks to take part in a channel whose frames go through shared memory. A JoinReply answers it. The member takes part once it
// has sent Enter.
type Join struct {
	Channel uint64 // channel id
	Role    string // "producer" or "consumer"
	Oldest  bool   // a consumer of a broadcast begins with the oldest frame kept, not with the newest
	Full    string // what happens when this consumer of a broadcast is slow; empty: as the channel has it
}

var joinFields = record[Join]{
	uintField("ch", func(m *Join) *uint64 { return &m.Channel }),
	stringField("ro", func(m *Join) *string { return &m.Role }),
	boolField("ol", func(m *Join) *bool { return &m.Oldest }).maybe(),
	stringField("fl", func(m *Join) *string { return &m.Full }).maybe(),
}

// Op returns "join".
func (*Join) Op() string { return "join" }

func (m *Join) fields() fields { return joinFields.of(m) }

// JoinReply answers Join.
type JoinReply struct {
	Slot   uint64 // of the roster
	Member uint64 // member id, never reused in the channel
	Export Export // three file descriptors: the roster, the sequencer, and the member's own file
}

var joinReplyFields = record[JoinReply]{
	uintField("sl", func(m *JoinReply) *uint64 { return &m.Slot }),
	uintField("mb", func(m *JoinReply) *uint64 { return &m.Member }),
	structField("x", func(m *JoinReply) *Export { return &m.Export }, exportFields),
}

func (*JoinReply) reply() {}

func (m *JoinReply) fields() fields { return joinReplyFields.of(m) }

// Enter says that a member has mapped the files of its JoinReply. The member takes part once an EmptyReply has answered it.
type Enter struct {
	Channel uint64 // channel id
	Member  uint64 // member id
}

var enterFields = record[Enter]{
	uintField("ch", func(m *Enter) *uint64 { return &m.Channel }),
	uintField("mb", func(m *Enter) *uint64 { return &m.Member }),
}

// Op returns "enter".
func (*Enter) Op() string { return "enter" }

func (m *Enter) fields() fields { return enterFields.of(m) }

// Leave says that a consumer takes no frames any more. It is usually sent without a reply; otherwise an EmptyReply answers it.
type Leave struct {
	Channel uint64 // channel id
	Member  uint64 // member id
}

var leaveFields = record[Leave]{
	uintField("ch", func(m *Leave) *uint64 { return &m.Channel }),
	uintField("mb", func(m *Leave) *uint64 { return &m.Member }),
}

// Op returns "leave".
func (*Leave) Op() string { return "leave" }

func (m *Leave) fields() fields { return leaveFields.of(m) }

// Member gives the file of a member to the members of the other role that the session has in a channel.
type Member struct {
	Channel uint64 // channel id
	Role    string // of the member: "producer" or "consumer"
	Slot    uint64 // of the roster
	Member  uint64 // member id
	Export  Export // one file descriptor: the member's file
}

var memberFields = record[Member]{
	uintField("ch", func(m *Member) *uint64 { return &m.Channel }),
	stringField("ro", func(m *Member) *string { return &m.Role }),
	uintField("sl", func(m *Member) *uint64 { return &m.Slot }),
	uintField("mb", func(m *Member) *uint64 { return &m.Member }),
	structField("x", func(m *Member) *Export { return &m.Export }, exportFields),
}

// Notice returns "member".
func (*Member) Notice() string { return "member" }

func (m *Member) fields() fields { return memberFields.of(m) }

// Map asks how to map a block that a frame of shared memory named. A MapReply answers it. The block counts as one whose export the
// session was sent: a Recall asks for it back.
type Map struct {
	Channel uint64 // channel id, in which the session is a consumer
	Block   uint64 // block id, in the channel's pool
}

var mapFields = record[Map]{
	uintField("ch", func(m *Map) *uint64 { return &m.Channel }),
	uintField("bl", func(m *Map) *uint64 { return &m.Block }),
}

// Op returns "map".
func (*Map) Op() string { return "map" }

func (m *Map) fields() fields { return mapFields.of(m) }

// MapReply answers Map.
type MapReply struct {
	Generation uint64 // of the block at this use
	BlockBytes uint64 // of the block
	Export     Export // how to map it
}

var mapReplyFields = record[MapReply]{
	uintField("ge", func(m *MapReply) *uint64 { return &m.Generation }),
	uintField("bs", func(m *MapReply) *uint64 { return &m.BlockBytes }),
	structField("x", func(m *MapReply) *Export { return &m.Export }, exportFields),
}

func (*MapReply) reply() {}

func (m *MapReply) fields() fields { return mapReplyFields.of(m) }

// Doubt says that what a producer wrote about a frame contradicts itself. It is usually sent without a reply; otherwise an EmptyReply
// answers it.
type Doubt struct {
	Channel  uint64 // channel id
	Member   uint64 // member id of the consumer that found it
	Sequence uint64 // number of the frame
}

var doubtFields = record[Doubt]{
	uintField("ch", func(m *Doubt) *uint64 { return &m.Channel }),
	uintField("mb", func(m *Doubt) *uint64 { return &m.Member }),
	uintField("sq", func(m *Doubt) *uint64 { return &m.Sequence }),
}

// Op returns "doubt".
func (*Doubt) Op() string { return "doubt" }

func (m *Doubt) fields() fields { return doubtFields.of(m) }

// Wanted says that memory of a pool is wanted: for a second, the client releases each lease that it keeps for its next allocation, and
// each block that a channel's shared memory gives back.
type Wanted struct {
	Pool uint64 // pool id
}

var wantedFields = record[Wanted]{
	uintField("pl", func(m *Wanted) *uint64 { return &m.Pool }),
}

// Notice returns "wanted".
func (*Wanted) Notice() string { return "wanted" }

func (m *Wanted) fields() fields { return wantedFields.of(m) }
