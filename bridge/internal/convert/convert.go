package convert

import (
	"math"
	"os"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// WireTensor returns a tensor in the form of package wire.
func WireTensor(t mempool.Tensor) wire.Tensor {
	return wire.Tensor{DType: string(t.DType), Shape: t.Shape, Strides: t.Strides, Offset: t.ByteOffset}
}

// Tensor returns the tensor of a message.
func Tensor(t wire.Tensor) mempool.Tensor {
	out := mempool.Tensor{DType: mempool.DType(t.DType), Shape: t.Shape, ByteOffset: t.Offset}
	if len(t.Strides) > 0 {
		out.Strides = t.Strides
	}
	return out
}

// WirePool returns a pool in the form of package wire, without its export.
func WirePool(p mempool.PoolInfo) wire.Pool {
	return wire.Pool{ID: p.ID, Name: p.Name, Kind: string(p.Kind), Device: uint64(max(p.Device.Ordinal, 0)), UUID: p.Device.UUID,
		MaxBytes: p.MaxBytes, MaxSessionBytes: p.SessionBytes, MaxUserBytes: p.UserBytes}
}

// Pool returns the pool of a message. A pool without a UUID is on no device.
func Pool(p wire.Pool) mempool.PoolInfo {
	info := mempool.PoolInfo{ID: p.ID, Name: p.Name, Kind: mempool.Kind(p.Kind), Device: mempool.NoDevice,
		MaxBytes: p.MaxBytes, SessionBytes: p.MaxSessionBytes, UserBytes: p.MaxUserBytes}
	if p.UUID != "" {
		info.Device = mempool.DeviceInfo{Ordinal: int(min(p.Device, math.MaxInt32)), UUID: p.UUID}
	}
	return info
}

// WireLease returns a lease in the form of package wire, without its export.
func WireLease(l mempool.LeaseInfo) wire.Lease {
	return wire.Lease{ID: l.ID, Buffer: l.Buffer, Generation: l.Generation, Write: l.Write, Pool: l.Pool, Block: l.Block,
		BlockBytes: l.BlockBytes, Bytes: l.Bytes, Tensor: WireTensor(l.Tensor), Wait: WireFences(l.Wait), Event: l.Event}
}

// Lease returns the lease of a message.
func Lease(l wire.Lease) *mempool.LeaseInfo {
	return &mempool.LeaseInfo{ID: l.ID, Buffer: l.Buffer, Generation: l.Generation, Write: l.Write, Pool: l.Pool, Block: l.Block,
		BlockBytes: l.BlockBytes, Bytes: l.Bytes, Tensor: Tensor(l.Tensor), Wait: Fences(l.Wait), Event: l.Event}
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
func Completion(ready *wire.Fence, event []byte) (c mempool.Completion, err error) {
	if ready != nil {
		c.Ready = &Fences([]wire.Fence{*ready})[0]
	}
	if event != nil {
		c.Event, err = mempool.EventOf(event)
	}
	return c, err
}

// WireChannel returns a channel in the form of package wire.
func WireChannel(c mempool.ChannelInfo) wire.Channel {
	return wire.Channel{ID: c.ID, Name: c.Name, Pool: c.Pool, Mode: string(c.Mode), Capacity: uint64(c.Capacity), Full: string(c.Full)}
}

// Channel returns the description of a channel that came in a message, in the form of package mempool.
func Channel(c wire.Channel) mempool.ChannelInfo {
	return mempool.ChannelInfo{ID: c.ID, ChannelSpec: mempool.ChannelSpec{Name: c.Name, Pool: c.Pool, Mode: mempool.ChannelMode(c.Mode),
		Capacity: int(min(c.Capacity, math.MaxInt32)), Full: mempool.FullPolicy(c.Full)}}
}

// WireExport returns an export in the form of package wire, and the files that are sent with it.
func WireExport(x mempool.Export) (*wire.Export, []*os.File) {
	return &wire.Export{Data: x.Data, FDs: uint64(len(x.Files))}, x.Files
}

// Export returns an export that came in a message, in the form of package mempool. `files` are the files that came with the message.
func Export(x *wire.Export, files []*os.File) mempool.Export {
	return mempool.Export{Data: x.Data, Files: files}
}

// WireStats returns the counts of a service, and the memory use of its pools, in the form of package wire.
func WireStats(s mempool.Stats) wire.Stats {
	out := wire.Stats{Sessions: uint64(s.Sessions), Leases: uint64(s.Leases), Buffers: uint64(s.Buffers), Names: uint64(s.Names)}
	for _, p := range s.Pools {
		out.Pools = append(out.Pools, wire.PoolStats{Pool: WirePool(p.Pool), Reserved: p.Reserved, Leased: p.Leased,
			Used: p.Used, Cached: p.Cached, Held: p.Held, Blocks: uint64(p.Blocks), Session: p.Session, User: p.User})
	}
	return out
}

// Stats returns the counts of a service, and the memory use of its pools, which came in a message.
func Stats(s wire.Stats) mempool.Stats {
	out := mempool.Stats{Sessions: int(s.Sessions), Leases: int(s.Leases), Buffers: int(s.Buffers), Names: int(s.Names)}
	for _, p := range s.Pools {
		out.Pools = append(out.Pools, mempool.PoolStats{Pool: Pool(p.Pool), Reserved: p.Reserved, Leased: p.Leased,
			Used: p.Used, Cached: p.Cached, Held: p.Held, Blocks: int(p.Blocks), Session: p.Session, User: p.User})
	}
	return out
}

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
