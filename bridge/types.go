package bridge

import "github.com/poolbridge/poolbridge/mempool"

// These aliases name the types of package mempool that calls of this package take and return. So a client imports only this package.
type (
	// PoolSpec describes a pool to be made. More: go doc [mempool.PoolSpec].
	PoolSpec = mempool.PoolSpec
	// PoolInfo is what the service tells a client about a pool. More: go doc [mempool.PoolInfo].
	PoolInfo = mempool.PoolInfo
	// Access lists the users and groups that may use a pool. More: go doc [mempool.Access].
	Access = mempool.Access
	// Kind says where a pool's memory comes from. More: go doc [mempool.Kind].
	Kind = mempool.Kind
	// DeviceInfo names the device of a pool. More: go doc [mempool.DeviceInfo].
	DeviceInfo = mempool.DeviceInfo

	// Tensor describes how the elements of an array lie in a buffer. More: go doc [mempool.Tensor].
	Tensor = mempool.Tensor
	// NamedTensor is one of several arrays in a frame. More: go doc [mempool.NamedTensor].
	NamedTensor = mempool.NamedTensor
	// DType names an element type. More: go doc [mempool.DType].
	DType = mempool.DType

	// Grant describes the lease that the service has given a session. More: go doc [mempool.Grant].
	Grant = mempool.Grant
	// Publication says how a buffer is published under a name. More: go doc [mempool.Publication].
	Publication = mempool.Publication
	// Completion says when content is complete. More: go doc [mempool.Completion].
	Completion = mempool.Completion

	// ChannelSpec describes a channel to be made. More: go doc [mempool.ChannelSpec].
	ChannelSpec = mempool.ChannelSpec
	// ChannelProducer says of which process a producer is, and how it left. More: go doc [mempool.ChannelProducer].
	ChannelProducer = mempool.ChannelProducer
	// ChannelIdentity says which channel it is, and its settings. More: go doc [mempool.ChannelIdentity].
	ChannelIdentity = mempool.ChannelIdentity
	// ChannelMode says how many subscribers get each frame of a channel. More: go doc [mempool.ChannelMode].
	ChannelMode = mempool.ChannelMode
	// FullPolicy says what happens when a channel is full because a subscriber has not taken or not released old frames. More: go doc
	// [mempool.FullPolicy].
	FullPolicy = mempool.FullPolicy
	// NoProducersPolicy says what a subscriber does when no producer is left. More: go doc [mempool.NoProducersPolicy].
	NoProducersPolicy = mempool.NoProducersPolicy
	// FrameOptions says how a frame is published. More: go doc [mempool.FrameOptions].
	FrameOptions = mempool.FrameOptions
	// SubscribeOptions says which frames a subscriber gets, and how the subscriber acknowledges the frames. More: go doc
	// [mempool.SubscribeOptions].
	SubscribeOptions = mempool.SubscribeOptions

	// Queue is an ordered queue of work: a stream of a GPU, or [CPU]. [mempool.StreamQueue] makes a Queue from a CUDA stream. More: go
	// doc [mempool.Queue].
	Queue = mempool.Queue
	// Fence identifies a point in the work of a process. More: go doc [mempool.Fence].
	Fence = mempool.Fence
	// Clock makes fences of the client's own timeline. More: go doc [mempool.Clock].
	Clock = mempool.Clock
	// Event is an interprocess event of CUDA. More: go doc [mempool.Event].
	Event = mempool.Event
	// Upload fills memory of a GPU through page-locked memory. More: go doc [mempool.Upload].
	Upload = mempool.Upload

	// Epoch identifies one life of a service. More: go doc [mempool.Epoch].
	Epoch = mempool.Epoch
	// ServiceStats says what a service has at one moment: its sessions, leases, buffers and names, and the memory of its pools. More:
	// go doc [mempool.ServiceStats].
	ServiceStats = mempool.ServiceStats
	// SessionInfo describes a session. More: go doc [mempool.SessionInfo].
	SessionInfo = mempool.SessionInfo
	// NameInfo describes a name and its buffer. More: go doc [mempool.NameInfo].
	NameInfo = mempool.NameInfo
	// BufferInfo describes a buffer and its users. More: go doc [mempool.BufferInfo].
	BufferInfo = mempool.BufferInfo
	// MemberInfo describes a producer or a consumer of a channel. More: go doc [mempool.MemberInfo].
	MemberInfo = mempool.MemberInfo
	// LeaseInfo describes a lease and the session that has it. More: go doc [mempool.LeaseInfo].
	LeaseInfo = mempool.LeaseInfo
	// ChannelInfo describes a channel and its members. More: go doc [mempool.ChannelInfo].
	ChannelInfo = mempool.ChannelInfo
	// EventPage is one page of a service's history of events. More: go doc [mempool.EventPage].
	EventPage = mempool.EventPage
	// Saved says where a published buffer is, in a form that a file can hold. More: go doc [mempool.Saved].
	Saved = mempool.Saved
)

// These are the kinds of memory.
const (
	Device = mempool.Device // a CUDA memory pool
	VMM    = mempool.VMM    // memory of cuMemCreate; readers map the memory read-only
	Legacy = mempool.Legacy // memory that is shared by cuIpcGetMemHandle
	Pinned = mempool.Pinned // memory of the host that the CPU and the GPU can access
	Host   = mempool.Host   // memory of the host; this kind needs no GPU
)

// These are the modes of a channel.
const (
	Broadcast = mempool.Broadcast // every subscriber gets every frame
	WorkQueue = mempool.WorkQueue // one subscriber gets each frame
)

// These are the policies of a full channel.
const (
	Block      = mempool.Block      // Publish waits
	Fail       = mempool.Fail       // Publish fails with ErrLimit
	DropOldest = mempool.DropOldest // a subscriber that is behind misses the oldest frames
	Latest     = mempool.Latest     // a subscriber that is behind gets only the newest frame
)

// These are the policies of a subscriber without producers.
const (
	WaitForProducers     = mempool.WaitForProducers     // the loop waits for another producer
	EndWithoutProducers  = mempool.EndWithoutProducers  // the loop ends, as when the channel is closed
	FailWithoutProducers = mempool.FailWithoutProducers // the loop ends with ErrNoProducers
)

// These are the element types of a tensor.
const (
	Bool       = mempool.Bool
	Int8       = mempool.Int8
	Int16      = mempool.Int16
	Int32      = mempool.Int32
	Int64      = mempool.Int64
	Uint8      = mempool.Uint8
	Uint16     = mempool.Uint16
	Uint32     = mempool.Uint32
	Uint64     = mempool.Uint64
	Float16    = mempool.Float16
	BFloat16   = mempool.BFloat16
	Float32    = mempool.Float32
	Float64    = mempool.Float64
	Complex64  = mempool.Complex64
	Complex128 = mempool.Complex128

	Float8E4M3FN   = mempool.Float8E4M3FN
	Float8E4M3FNUZ = mempool.Float8E4M3FNUZ
	Float8E5M2     = mempool.Float8E5M2
	Float8E5M2FNUZ = mempool.Float8E5M2FNUZ
	Float8E8M0FNU  = mempool.Float8E8M0FNU

	Float4E2M1FNx2 = mempool.Float4E2M1FNx2
)

// CPU is the queue of work that the calling goroutine does itself.
var CPU = mempool.CPU

// Pack returns the description of a frame of several arrays. More: go doc [mempool.Pack].
//
// Errors: [ErrInvalid].
func Pack(arrays ...NamedTensor) (Tensor, error) { return mempool.Pack(arrays...) }

// Bytes returns the description of n plain bytes.
func Bytes(n uint64) Tensor { return mempool.Bytes(n) }
