package bridge

import (
	"math"
	"os"
	"slices"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file converts between the types of package wire and those of package mempool.

func wireTensor(t mempool.Tensor) wire.Tensor {
	return wire.Tensor{DType: string(t.DType), Shape: t.Shape, Strides: t.Strides, Offset: t.ByteOffset}
}

func tensorOf(t wire.Tensor) mempool.Tensor {
	out := mempool.Tensor{DType: mempool.DType(t.DType), Shape: t.Shape, ByteOffset: t.Offset}
	if len(t.Strides) > 0 {
		out.Strides = t.Strides
	}
	return out
}

func wirePool(p mempool.PoolInfo) wire.Pool {
	return wire.Pool{ID: p.ID, Name: p.Name, Kind: string(p.Kind), Device: uint64(max(p.Device.Ordinal, 0)), UUID: p.Device.UUID,
		MaxBytes: p.MaxBytes, MaxSessionBytes: p.SessionBytes, MaxUserBytes: p.UserBytes}
}

func poolOf(p wire.Pool) mempool.PoolInfo {
	info := mempool.PoolInfo{ID: p.ID, Name: p.Name, Kind: mempool.Kind(p.Kind), Device: mempool.NoDevice,
		MaxBytes: p.MaxBytes, SessionBytes: p.MaxSessionBytes, UserBytes: p.MaxUserBytes}
	if p.UUID != "" {
		info.Device = mempool.DeviceInfo{Ordinal: int(min(p.Device, math.MaxInt32)), UUID: p.UUID}
	}
	return info
}

func wireLease(l mempool.LeaseInfo) wire.Lease {
	return wire.Lease{ID: l.ID, Buffer: l.Buffer, Generation: l.Generation, Write: l.Write, Pool: l.Pool, Block: l.Block,
		BlockBytes: l.BlockBytes, Bytes: l.Bytes, Tensor: wireTensor(l.Tensor), Wait: wireFences(l.Wait), Event: l.Event,
		EventOnly: l.EventOnly}
}

// sameTensor reports whether two tensors are equal. nil strides differ from empty ones.
func sameTensor(a, b *mempool.Tensor) bool {
	return a.DType == b.DType && a.ByteOffset == b.ByteOffset && slices.Equal(a.Shape, b.Shape) && slices.Equal(a.Strides, b.Strides) &&
		(a.Strides == nil) == (b.Strides == nil)
}

func leaseOf(l wire.Lease) *mempool.LeaseInfo {
	return &mempool.LeaseInfo{ID: l.ID, Buffer: l.Buffer, Generation: l.Generation, Write: l.Write, Pool: l.Pool, Block: l.Block,
		BlockBytes: l.BlockBytes, Bytes: l.Bytes, Tensor: tensorOf(l.Tensor), Wait: fencesOf(l.Wait), Event: l.Event,
		EventOnly: l.EventOnly}
}

func wireFence(t *mempool.Fence) *wire.Fence {
	if t == nil {
		return nil
	}
	return &wire.Fence{Timeline: t.Timeline, Word: t.Word, Value: t.Value}
}

func wireFences(ts []mempool.Fence) []wire.Fence {
	var out []wire.Fence
	for i := range ts {
		out = append(out, *wireFence(&ts[i]))
	}
	return out
}

func fencesOf(ts []wire.Fence) []mempool.Fence {
	var out []mempool.Fence
	for _, t := range ts {
		out = append(out, mempool.Fence{Timeline: t.Timeline, Word: t.Word, Value: t.Value})
	}
	return out
}

func completionOf(ready *wire.Fence, event []byte) (c mempool.Completion, err error) {
	if ready != nil {
		c.Ready = &fencesOf([]wire.Fence{*ready})[0]
	}
	if event != nil {
		c.Event, err = mempool.EventOf(event)
		c.EventOnly = ready == nil
	}
	return c, err
}

func wireChannel(c mempool.ChannelInfo) wire.Channel {
	return wire.Channel{ID: c.ID, Name: c.Name, Pool: c.Pool, Mode: string(c.Mode), Capacity: uint64(c.Capacity), Full: string(c.Full)}
}

func channelOf(c wire.Channel) mempool.ChannelInfo {
	return mempool.ChannelInfo{ID: c.ID, ChannelSpec: mempool.ChannelSpec{Name: c.Name, Pool: c.Pool, Mode: mempool.ChannelMode(c.Mode),
		Capacity: int(min(c.Capacity, math.MaxInt32)), Full: mempool.FullPolicy(c.Full)}}
}

// wireExport returns x for the wire, and the files that are sent with it.
func wireExport(x mempool.Export) (*wire.Export, []*os.File) {
	return &wire.Export{Data: x.Data, FDs: uint64(len(x.Files))}, x.Files
}

// exportOf returns an Export that came with files.
func exportOf(x *wire.Export, files []*os.File) mempool.Export {
	return mempool.Export{Data: x.Data, Files: files}
}

func wireStats(s mempool.Stats) wire.Stats {
	out := wire.Stats{Sessions: uint64(s.Sessions), Leases: uint64(s.Leases), Buffers: uint64(s.Buffers), Names: uint64(s.Names)}
	for _, p := range s.Pools {
		out.Pools = append(out.Pools, wire.PoolStats{Pool: wirePool(p.Pool), Reserved: p.Reserved, Leased: p.Leased,
			Used: p.Used, Cached: p.Cached, Held: p.Held, Blocks: uint64(p.Blocks), Session: p.Session, User: p.User})
	}
	return out
}

func statsOf(s wire.Stats) mempool.Stats {
	out := mempool.Stats{Sessions: int(s.Sessions), Leases: int(s.Leases), Buffers: int(s.Buffers), Names: int(s.Names)}
	for _, p := range s.Pools {
		out.Pools = append(out.Pools, mempool.PoolStats{Pool: poolOf(p.Pool), Reserved: p.Reserved, Leased: p.Leased,
			Used: p.Used, Cached: p.Cached, Held: p.Held, Blocks: int(p.Blocks), Session: p.Session, User: p.User})
	}
	return out
}

// accessOf reads an access list. Ids that do not fit into 32 bits are an error.
func accessOf(uids, gids []uint64) (mempool.Access, error) {
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
