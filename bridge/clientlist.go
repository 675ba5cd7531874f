package bridge

import (
	"context"
	"iter"
	"math"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// Sessions lists the sessions of this client's user, including this client's own session. If this client's user is the service's own user,
// Sessions lists all sessions. A session that begins or ends during the loop may be missing.
//
// An error ends the loop: [ErrDisconnected], [ErrClosed], the context's error.
func (c *Client) Sessions(ctx context.Context) iter.Seq2[SessionInfo, error] {
	return pages(ctx, c, wire.ListSessions, func(r *wire.ListReply) []wire.SessionEntry { return r.Sessions }, func(e wire.SessionEntry) mempool.SessionInfo {
		return mempool.SessionInfo{ID: e.ID, UID: uint32(min(e.UID, math.MaxUint32)), PID: int32(min(e.PID, math.MaxInt32)), Program: e.Program,
			Began: timeOf(e.Began), Leases: intOf(e.Leases), Blocks: intOf(e.Blocks), Members: intOf(e.Members), Bytes: e.Bytes,
			Waits: intOf(e.Waits), WaitsFor: e.For, Since: timeOf(e.Since)}
	})
}

// Channels lists the channels that this client may use, including closed channels that still have consumers. A channel that is made or ends
// during the loop may be missing. An error ends the loop: see [Client.Sessions].
func (c *Client) Channels(ctx context.Context) iter.Seq2[ChannelStatus, error] {
	return pages(ctx, c, wire.ListChannels, func(r *wire.ListReply) []wire.ChannelEntry { return r.Channels }, func(e wire.ChannelEntry) mempool.ChannelStatus {
		return mempool.ChannelStatus{ChannelInfo: convert.Channel(e.Channel), UID: uint32(min(e.UID, math.MaxUint32)), Producers: intOf(e.Producers),
			Consumers: intOf(e.Consumers), Closed: e.Closed, Published: e.Published, Waiting: e.Waiting, Slowest: e.Slowest,
			Used: e.Used, Dropped: e.Dropped}
	})
}

// Names lists the names of buffers that this client may lease. A name that is published or removed during the loop may be missing. An error
// ends the loop: see [Client.Sessions].
func (c *Client) Names(ctx context.Context) iter.Seq2[NameInfo, error] {
	return pages(ctx, c, wire.ListNames, func(r *wire.ListReply) []wire.NameEntry { return r.Names }, func(e wire.NameEntry) mempool.NameInfo {
		return mempool.NameInfo{Name: e.Name, Buffer: e.Buffer, Pool: e.Pool, Bytes: e.Bytes, Tensor: convert.Tensor(e.Tensor),
			UID: uint32(min(e.UID, math.MaxUint32)), Session: e.Session}
	})
}

// Buffers lists the buffers of the pools that this client may use, with the sessions that have leases on the buffers. A buffer that is
// allocated or freed during the loop may be missing. An error ends the loop: see [Client.Sessions].
func (c *Client) Buffers(ctx context.Context) iter.Seq2[BufferInfo, error] {
	return pages(ctx, c, wire.ListBuffers, func(r *wire.ListReply) []wire.BufferEntry { return r.Buffers }, func(e wire.BufferEntry) mempool.BufferInfo {
		return mempool.BufferInfo{ID: e.ID, Generation: e.Generation, Pool: e.Pool, Bytes: e.Bytes, BlockBytes: e.BlockBytes, Tensor: convert.Tensor(e.Tensor),
			Writer: e.Writer, Readers: e.Readers, Reads: intOf(e.Reads), Names: intOf(e.Names), InChannel: e.InChannel}
	})
}

// Leases lists the leases on buffers of the pools that this client may use, with the sessions that have these leases. A lease that begins
// or ends during the loop may be missing. An error ends the loop: see [Client.Sessions].
func (c *Client) Leases(ctx context.Context) iter.Seq2[LeaseStatus, error] {
	return pages(ctx, c, wire.ListLeases, func(r *wire.ListReply) []wire.LeaseEntry { return r.Leases }, func(e wire.LeaseEntry) mempool.LeaseStatus {
		return mempool.LeaseStatus{ID: e.ID, Session: e.Session, UID: uint32(min(e.UID, math.MaxUint32)), PID: int32(min(e.PID, math.MaxInt32)), Program: e.Program,
			Buffer: e.Buffer, Pool: e.Pool, Bytes: e.Bytes, BlockBytes: e.BlockBytes, Write: e.Write, Began: timeOf(e.Began), WaitsFor: e.For, Since: timeOf(e.Since)}
	})
}

// timeOf converts nanoseconds since 1970 to a time. For 0 it returns the zero time.
func timeOf(n uint64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(n))
}

func intOf(n uint64) int { return int(min(n, math.MaxInt)) }

// pages yields the entries of the service's list `what`. It asks the service for one page of the list after the other.
func pages[W, T any](ctx context.Context, c *Client, what string, entries func(*wire.ListReply) []W, describe func(W) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for after, more := "", true; more; {
			var page wire.ListReply
			if err := c.call(ctx, &wire.List{What: what, After: after}, &call{into: &page}); err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, e := range entries(&page) {
				if !yield(describe(e), nil) {
					return
				}
			}
			after, more = page.Next, page.Next != ""
		}
	}
}
