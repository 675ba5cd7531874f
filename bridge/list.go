package bridge

import (
	"context"
	"iter"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

// Sessions lists the sessions of this client's user, including this client's own session. If this client's user is the service's own user,
// Sessions lists all sessions. A session that begins or ends during the loop may be missing.
//
// An error ends the loop: [ErrDisconnected], [ErrClosed], the context's error.
func (c *Client) Sessions(ctx context.Context) iter.Seq2[SessionInfo, error] {
	return pages(ctx, c, wire.List{What: wire.ListSessions}, func(r *wire.ListReply) []wire.SessionInfo { return r.Sessions }, convert.SessionInfo)
}

// Channels lists the channels that this client may use, including closed channels that still have consumers. A channel that is made or ends
// during the loop may be missing. An error ends the loop: see [Client.Sessions].
func (c *Client) Channels(ctx context.Context) iter.Seq2[ChannelInfo, error] {
	return pages(ctx, c, wire.List{What: wire.ListChannels}, func(r *wire.ListReply) []wire.ChannelInfo { return r.Channels }, convert.ChannelInfo)
}

// Names lists the names of buffers that this client may lease. A name that is published or removed during the loop may be missing. An error
// ends the loop: see [Client.Sessions].
func (c *Client) Names(ctx context.Context) iter.Seq2[NameInfo, error] {
	return pages(ctx, c, wire.List{What: wire.ListNames}, func(r *wire.ListReply) []wire.NameInfo { return r.Names }, convert.NameInfo)
}

// Buffers lists the buffers of the pools that this client may use, with the sessions that have leases on the buffers. A buffer that is
// allocated or freed during the loop may be missing. An error ends the loop: see [Client.Sessions].
func (c *Client) Buffers(ctx context.Context) iter.Seq2[BufferInfo, error] {
	return pages(ctx, c, wire.List{What: wire.ListBuffers}, func(r *wire.ListReply) []wire.BufferInfo { return r.Buffers }, convert.BufferInfo)
}

// Leases lists the leases on buffers of the pools that this client may use, with the sessions that have these leases. A lease that begins
// or ends during the loop may be missing. An error ends the loop: see [Client.Sessions].
func (c *Client) Leases(ctx context.Context) iter.Seq2[LeaseInfo, error] {
	return pages(ctx, c, wire.List{What: wire.ListLeases}, func(r *wire.ListReply) []wire.LeaseInfo { return r.Leases }, convert.LeaseInfo)
}

// Members lists the producers and consumers that take part in a channel, by the channel's id, and consumers that left and still have frames
// of a queue. A member that joins or leaves during the loop may be missing.
//
// An error ends the loop: [ErrClosed] if there is no such channel that this client may use, and the errors of [Client.Sessions].
func (c *Client) Members(ctx context.Context, channel uint64) iter.Seq2[MemberInfo, error] {
	return pages(ctx, c, wire.List{What: wire.ListMembers, Channel: channel}, func(r *wire.ListReply) []wire.MemberInfo { return r.Members }, convert.MemberInfo)
}

// pages yields the entries of a list of the service. It asks the service for one page of the list after the other.
func pages[W, T any](ctx context.Context, c *Client, list wire.List, entries func(*wire.ListReply) []W, describe func(W) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for more := true; more; {
			var page wire.ListReply
			ask := list
			if err := c.session.Call(ctx, &ask, &page); err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, e := range entries(&page) {
				if !yield(describe(e), nil) {
					return
				}
			}
			list.After, more = page.Next, page.Next != ""
		}
	}
}
