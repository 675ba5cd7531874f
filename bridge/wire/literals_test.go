package wire_test

import (
	"math"

	"github.com/poolbridge/poolbridge/bridge/wire"
)

const uuid = "GPU-8f3a1c2e-0b4d-4c61-9a57-1e2d3c4b5a69"

var (
	data64 = func() (b []byte) {
		for i := range 64 {
			b = append(b, byte(i))
		}
		return b
	}()
	f32Tensor  = wire.Tensor{DType: "float32", Shape: []uint64{480, 640, 3}}
	someFences = []wire.Fence{{Timeline: 3, Word: 511, Value: 1<<62 - 1}, {Timeline: 1 << 32, Word: 256, Value: 65536}}
	someTensor = wire.Tensor{DType: "complex128", Shape: []uint64{2, 3}, Strides: []int64{-3, 1}, Offset: 144}
	somePool   = wire.Pool{ID: 7, Name: "frames", Kind: "device", Device: 3, UUID: uuid, MaxBytes: 1 << 34,
		MaxSessionBytes: 1 << 32, MaxUserBytes: 1 << 33, Export: &wire.Export{FDs: 1}}
	someLease = wire.Lease{ID: 1 << 32, Buffer: 1<<32 + 1, Generation: 65536, Write: true, Pool: 7, Block: 300,
		BlockBytes: 2097152, Bytes: 1843200, Tensor: wire.Tensor{DType: "float32", Shape: []uint64{480, 640, 3}},
		Export: &wire.Export{Data: data64, FDs: 1}}
)

// literals ties the Go fields of each message to the keys that a vector shows: a table of this package that had two
// fields exchanged would still survive decoding and encoding.
var literals = []struct {
	direction, vector string
	q                 uint32
	message           any
}{
	{"request", "hello, all fields", 1, &wire.Hello{Versions: []uint64{1, 2, 3}, Name: "trainer", Features: []string{"host", "vmm"}}},
	{"reply", "hello reply, all fields", 1, &wire.HelloReply{Version: 1, Epoch: wire.Epoch{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255},
		Session: math.MaxInt64, PID: 4194304, Features: []string{"host"}}},
	{"request", "create, all fields", 2, &wire.Create{Name: "frames", Kind: "device", Device: uuid, MaxBytes: 1 << 34,
		MaxSessionBytes: 1 << 32, MaxUserBytes: 1 << 33, UIDs: []uint64{0, 1000}, GIDs: []uint64{27, 4294967294}, Ensure: true}},
	{"reply", "create reply, all fields", 2, &wire.PoolReply{Pool: somePool}},
	{"request", "open by name, all fields", 3, &wire.Open{Name: "frames", Wait: 30000}},
	{"request", "open by id", 3, &wire.Open{Pool: 7}},
	{"reply", "open reply, all fields", 3, &wire.PoolReply{Pool: somePool}},
	{"request", "destroy", 4, &wire.Destroy{Pool: 1}},
	{"reply", "destroy reply", 4, &wire.EmptyReply{}},
	{"request", "trim, all fields", 5, &wire.Trim{Pool: 1, Keep: 67108864}},
	{"reply", "trim reply", 5, &wire.TrimReply{Bytes: 1048576}},
	{"request", "alloc, all fields", 6, &wire.Alloc{Pool: 1, Tensor: someTensor, Wait: 1000}},
	{"reply", "alloc reply, all fields", 6, &wire.LeaseReply{Lease: someLease}},
	{"request", "publish, optional fields absent", 7, &wire.Publish{Lease: 1, Name: "camera/0"}},
	{"request", "publish, all fields", 7, &wire.Publish{Lease: 1, Name: "camera/0", Tensor: &someTensor, Keep: true, Replace: true}},
	{"request", "unpublish", 8, &wire.Unpublish{Name: "camera/0"}},
	{"request", "get, all fields", 9, &wire.Get{Name: "camera/0", Write: true, Wait: 1000}},
	{"request", "lease, all fields", 10, &wire.Borrow{Buffer: 2, Generation: 3, Write: true, Wait: 1000}},
	{"reply", "lease reply, optional fields absent", 10, &wire.LeaseReply{Lease: wire.Lease{ID: 1, Buffer: 2, Generation: 3, Pool: 4,
		Block: 5, BlockBytes: 4096, Tensor: wire.Tensor{DType: "float32"}}}},
	{"request", "release without reply", 0, &wire.Release{Lease: 1}},
	{"request", "release, all fields", 11, &wire.Release{Lease: 1, Failed: true}},
	{"request", "cancel without reply", 0, &wire.Cancel{Request: 6}},
	{"request", "dropped with reply", 13, &wire.Dropped{Blocks: []uint64{5}}},
	{"request", "dropped, no blocks", 0, &wire.Dropped{}},
	{"request", "stats", 14, &wire.StatsRequest{}},
	{"reply", "stats reply, two pools", 14, &wire.StatsReply{Stats: wire.Stats{Sessions: 3, Leases: 4, Buffers: 2, Names: 1,
		Pools: []wire.PoolStats{
			{Pool: wire.Pool{ID: 1, Name: "frames", Kind: "host", MaxBytes: 1048576}},
			{Pool: wire.Pool{ID: 7, Name: "frames", Kind: "device", Device: 3, UUID: uuid, MaxBytes: 1 << 34, MaxSessionBytes: 1 << 32, MaxUserBytes: 1 << 33},
				Reserved: 10485760, Leased: 4194304, Used: 3686400, Cached: 5242880, Held: 1048576, Blocks: 5, Session: 1 << 16, User: 1 << 17},
		}}}},
	{"request", "list, all fields", 34, &wire.List{What: "buffers", After: "70000", Most: 64}},
	{"reply", "list reply, sessions", 34, &wire.ListReply{Sessions: []wire.SessionEntry{{ID: 3, UID: 1000, PID: 4711, Program: "camera.py", Began: 1767225600000000000,
		Leases: 4, Blocks: 300, Members: 2, Bytes: 1 << 33}}, Next: "3"}},
	{"reply", "list reply, channels", 34, &wire.ListReply{Channels: []wire.ChannelEntry{{Channel: wire.Channel{ID: 1, Name: "camera", Pool: 4, Mode: "broadcast",
		Capacity: 4, Full: "block"}, UID: 1000, Producers: 1, Consumers: 2, Closed: true}}}},
	{"reply", "list reply, names", 34, &wire.ListReply{Names: []wire.NameEntry{{Name: "weights", Buffer: 2, Pool: 4, Bytes: 24, Tensor: f32Tensor, UID: 1000, Session: 3}}}},
	{"reply", "list reply, buffers", 34, &wire.ListReply{Buffers: []wire.BufferEntry{{ID: 2, Generation: 3, Pool: 4, Bytes: 24, BlockBytes: 512, Tensor: f32Tensor,
		Writer: 3, Readers: []uint64{5, 300}, Reads: 3, Names: 1, InChannel: true}}}},
	{"reply", "error not-found", 5, &wire.Error{Code: wire.CodeNotFound, Message: "what to do about not-found"}},
	{"notice", "recall", 0, &wire.Recall{Blocks: []uint64{5, 300}}},
	{"request", "publish with a fence and an event", 7, &wire.Publish{Lease: 1, Name: "camera/0", Tensor: &f32Tensor, Keep: true, Replace: true,
		Ready: &someFences[0], Event: data64}},
	{"request", "release of several leases", 0, &wire.Release{Lease: 1, Done: someFences[:1], Also: []uint64{2, 1 << 32}}},
	{"request", "release with fences", 11, &wire.Release{Lease: 1, Failed: true, Done: someFences}},
	{"reply", "alloc reply, to wait for", 6, &wire.LeaseReply{Lease: wire.Lease{ID: 1, Buffer: 2, Generation: 3, Write: true, Pool: 4,
		Block: 5, BlockBytes: 4096, Bytes: 4, Tensor: wire.Tensor{DType: "float32"}, Wait: someFences}}},
	{"request", "timeline, own", 15, &wire.Timeline{}},
	{"request", "timeline, another's", 15, &wire.Timeline{Timeline: 3}},
	{"reply", "timeline reply", 15, &wire.TimelineReply{Timeline: 3, Words: 512, Export: wire.Export{FDs: 1}}},
	{"request", "seal", 16, &wire.Seal{}},
	{"request", "channel, all fields", 17, &wire.MakeChannel{Name: "frames", Pool: 4, Mode: "queue", Capacity: 1024, Full: "drop-oldest"}},
	{"reply", "find reply", 18, &wire.ChannelReply{Channel: wire.Channel{ID: 1 << 33, Name: "jobs", Pool: 4, Mode: "queue", Capacity: 1024, Full: "latest"}}},
	{"request", "find, all fields", 18, &wire.Find{Name: "frames", Wait: 30000}},
	{"request", "close", 23, &wire.CloseChannel{Channel: 1}},
	{"request", "join, all fields", 30, &wire.Join{Channel: 1 << 33, Role: "consumer", Oldest: true, Full: "drop-oldest"}},
	{"reply", "join reply", 30, &wire.JoinReply{Slot: 1023, Member: 1 << 40, Export: wire.Export{FDs: 3}}},
	{"request", "enter", 31, &wire.Enter{Channel: 1, Member: 300}},
	{"request", "leave without reply", 0, &wire.Leave{Channel: 1, Member: 300}},
	{"request", "map", 33, &wire.Map{Channel: 1, Block: 70000}},
	{"reply", "map reply, all fields", 33, &wire.MapReply{Generation: 3, BlockBytes: 4096, Export: wire.Export{Data: data64, FDs: 1}}},
	{"request", "doubt without reply", 0, &wire.Doubt{Channel: 1, Member: 300, Sequence: 1 << 40}},
	{"notice", "member that is a producer", 0, &wire.Member{Channel: 1, Role: "producer", Slot: 62, Member: 300, Export: wire.Export{FDs: 1}}},
	{"notice", "wanted", 0, &wire.Wanted{Pool: 4}},
	{"notice", "failed", 0, &wire.Failed{Buffers: []uint64{2, 300}}},
	{"notice", "forget", 0, &wire.Forget{Timelines: []uint64{3}}},
	{"notice", "goodbye", 0, &wire.Goodbye{Reason: wire.Error{Code: wire.CodeClosed, Message: "the service is shutting down"}}},
	{"notice", "working", 0, &wire.Working{Request: 70000}},
	{"notice", "working, optional fields absent", 0, &wire.Working{}},
}
