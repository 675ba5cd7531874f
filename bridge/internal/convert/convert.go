package convert

import (
	"math"
	"os"
	"time"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// WireTensor returns a tensor in the form of package wire.
func WireTensor(t mempool.Tensor) wire.Tensor {
	return wire.Tensor{DType: string(t.DType), Shape: t.Shape, Strides: t.Strides, Offset: t.ByteOffset, LayoutBytes: t.LayoutBytes}
}

// Tensor returns the tensor of a message.
func Tensor(t wire.Tensor) mempool.Tensor {
	out := mempool.Tensor{DType: mempool.DType(t.DType), Shape: t.Shape, ByteOffset: t.Offset, LayoutBytes: t.LayoutBytes}
	if len(t.Strides) > 0 {
		out.Strides = t.Strides
	}
	return out
}

// WireLayout returns the arrays of a frame in the form of package wire.
func WireLayout(arrays []mempool.NamedTensor) *wire.Layout {
	l := &wire.Layout{Arrays: make([]wire.NamedTensor, len(arrays))}
	for i, a := range arrays {
		l.Arrays[i] = wire.NamedTensor{Name: a.Name, Tensor: WireTensor(a.Tensor)}
	}
	return l
}

// Arrays returns the arrays of a layout.
func Arrays(l *wire.Layout) []mempool.NamedTensor {
	arrays := make([]mempool.NamedTensor, len(l.Arrays))
	for i, a := range l.Arrays {
		arrays[i] = mempool.NamedTensor{Name: a.Name, Tensor: Tensor(a.Tensor)}
	}
	return arrays
}

// WirePoolInfo returns a pool in the form of package wire, without its export.
func WirePoolInfo(p mempool.PoolInfo) wire.PoolInfo {
	return wire.PoolInfo{ID: p.ID, Name: p.Name, Kind: wire.Kind(p.Kind), DeviceOrdinal: uint64(max(p.Device.Ordinal, 0)), DeviceUUID: p.Device.UUID,
		MaxBytes: p.MaxBytes, SessionBytes: p.SessionBytes, UserBytes: p.UserBytes}
}

// PoolInfo returns the pool of a message. A pool without a UUID is on no device.
func PoolInfo(p wire.PoolInfo) mempool.PoolInfo {
	info := mempool.PoolInfo{ID: p.ID, Name: p.Name, Kind: mempool.Kind(p.Kind), Device: mempool.NoDevice,
		MaxBytes: p.MaxBytes, SessionBytes: p.SessionBytes, UserBytes: p.UserBytes}
	if p.DeviceUUID != "" {
		info.Device = mempool.DeviceInfo{Ordinal: int(min(p.DeviceOrdinal, math.MaxInt32)), UUID: p.DeviceUUID}
	}
	return info
}

// WireGrant returns a grant in the form of package wire, without its export.
func WireGrant(l mempool.Grant) wire.Grant {
	return wire.Grant{ID: l.ID, Buffer: l.Buffer, Generation: l.Generation, Write: l.Write, Pool: l.Pool, Block: l.Block,
		BlockBytes: l.BlockBytes, Bytes: l.Bytes, Base: l.Base, Tensor: WireTensor(l.Tensor), Wait: WireFences(l.Wait), Event: l.Event}
}

// Grant returns the grant of a message.
func Grant(l wire.Grant) *mempool.Grant {
	return &mempool.Grant{ID: l.ID, Buffer: l.Buffer, Generation: l.Generation, Write: l.Write, Pool: l.Pool, Block: l.Block,
		BlockBytes: l.BlockBytes, Bytes: l.Bytes, Base: l.Base, Tensor: Tensor(l.Tensor), Wait: Fences(l.Wait), Event: l.Event}
}

// WireFence returns a fence in the form of package wire; nil if t is nil.
func WireFence(t *mempool.Fence) *wire.Fence {
	if t == nil {
		return nil
	}
	return &wire.Fence{Timeline: t.Timeline, Word: t.Word, Value: t.Value}
}

// WireFences returns fences in the form of package wire.
func WireFences(ts []mempool.Fence) []wire.Fence {
	var out []wire.Fence
	for i := range ts {
		out = append(out, *WireFence(&ts[i]))
	}
	return out
}

// Fences returns the fences of a message.
func Fences(ts []wire.Fence) []mempool.Fence {
	var out []mempool.Fence
	for _, t := range ts {
		out = append(out, mempool.Fence{Timeline: t.Timeline, Word: t.Word, Value: t.Value})
	}
	return out
}

// Completion returns the Completion of a publication that came in a message. The content is complete when the fence `ready` is reached and
// the interprocess event `event` of CUDA has happened. Either may be nil.
//
// Errors: [mempool.ErrInvalid] if `event` has a wrong length.
func Completion(ready *wire.Fence, event []byte) (c mempool.Completion, err error) {
	if ready != nil {
		c.Ready = &Fences([]wire.Fence{*ready})[0]
	}
	if event != nil {
		c.Event, err = mempool.EventOf(event)
	}
	return c, err
}

// WireChannelIdentity returns a channel in the form of package wire.
func WireChannelIdentity(c mempool.ChannelIdentity) wire.ChannelIdentity {
	return wire.ChannelIdentity{ID: c.ID, Name: c.Name, Pool: c.Pool, Mode: wire.ChannelMode(c.Mode), Capacity: uint64(c.Capacity), Full: wire.FullPolicy(c.Full),
		MaxDeliveries: uint64(c.MaxDeliveries)}
}

// ChannelIdentity returns the identity of a channel that came in a message, in the form of package mempool.
func ChannelIdentity(c wire.ChannelIdentity) mempool.ChannelIdentity {
	return mempool.ChannelIdentity{ID: c.ID, ChannelSpec: mempool.ChannelSpec{Name: c.Name, Pool: c.Pool, Mode: mempool.ChannelMode(c.Mode),
		Capacity: int(min(c.Capacity, math.MaxInt32)), Full: mempool.FullPolicy(c.Full), MaxDeliveries: int(min(c.MaxDeliveries, math.MaxInt32))}}
}

// WireExport returns an export in the form of package wire, and the files that are sent with it.
func WireExport(x mempool.Export) (*wire.Export, []*os.File) {
	return &wire.Export{Data: x.Data, FDs: uint64(len(x.Files))}, x.Files
}

// Export returns an export that came in a message, in the form of package mempool. `files` are the files that came with the message.
func Export(x *wire.Export, files []*os.File) mempool.Export {
	return mempool.Export{Data: x.Data, Files: files}
}

// Events returns the events of a message.
func Events(events []wire.HistoryEvent) []mempool.HistoryEvent { return each(events, HistoryEvent) }

// WireEvents returns events in the form of package wire.
func WireEvents(events []mempool.HistoryEvent) []wire.HistoryEvent {
	return each(events, WireHistoryEvent)
}

// each converts the elements of a list.
func each[A, B any](list []A, convert func(A) B) []B {
	var out []B
	for _, one := range list {
		out = append(out, convert(one))
	}
	return out
}

// timeOf returns the zero time for 0.
func timeOf(t wire.Time) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(t))
}

func wireTime(t time.Time) wire.Time {
	if t.IsZero() {
		return 0
	}
	return wire.Time(max(t.UnixNano(), 0))
}

func durationOf(d wire.Duration) time.Duration   { return time.Duration(min(d, math.MaxInt64)) }
func wireDuration(d time.Duration) wire.Duration { return wire.Duration(max(d, 0)) }
func countOf(n wire.Count) int                   { return int(min(n, math.MaxInt)) }
func wireCount(n int) wire.Count                 { return wire.Count(max(n, 0)) }
func userOf(id wire.UserID) uint32               { return uint32(min(id, math.MaxUint32)) }
func processOf(id wire.ProcessID) int32          { return int32(min(id, math.MaxInt32)) }
func wireProcess(id int32) wire.ProcessID        { return wire.ProcessID(max(id, 0)) }

// Access returns an access list of user and group ids. An id that does not fit into 32 bits is an error.
func Access(uids, gids []uint64) (mempool.Access, error) {
	var a mempool.Access
	for _, list := range []struct {
		what string
		from []uint64
		to   *[]uint32
	}{{"user", uids, &a.UIDs}, {"group", gids, &a.GIDs}} {
		for _, id := range list.from {
			if id >= math.MaxUint32 {
				return a, &wire.Error{Code: wire.CodeInvalid, Message: "a " + list.what + " id must be less than 2^32-1"}
			}
			*list.to = append(*list.to, uint32(id))
		}
	}
	return a, nil
}
