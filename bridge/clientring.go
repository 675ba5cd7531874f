package bridge

import (
	"context"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/shmring"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

// useRing has the session's packets go through shared memory, if that can be had. If not they go over the socket, as before.
func (c *Client) useRing(ctx context.Context) {
	if !c.ring.has || c.ring.asked.Swap(true) {
		return
	}
	var reply wire.RingReply
	var r *shmring.Ring
	err := c.call(ctx, &wire.Ring{}, &call{into: &reply, files: func(fds *seqpacket.FDs) { r = c.ringCame(&reply, fds) }})
	if err != nil || r == nil {
		return
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.conn.in != nil {
		c.conn.peerReady.Store(true)
		c.conn.sendThrough(r)
	}
}

// ringCame begins to look into the ring that came. It runs in the goroutine that receives.
func (c *Client) ringCame(reply *wire.RingReply, fds *seqpacket.FDs) *shmring.Ring {
	if reply.Size != shmring.Size || reply.Export.FDs != 2 || fds.Len() != 2 {
		return nil // of another make
	}
	files := takeFiles(fds, 2)
	defer closeFiles(files)
	r, err := shmring.Open(shmring.Files{Reads: files[0], Writes: files[1]})
	if err != nil {
		return nil
	}
	c.conn.receiveThrough(r)
	return r
}

// unmapRing ends the ring, from which nobody reads any more. It runs in the goroutine that received.
func (c *Client) unmapRing() error {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.conn.unmap()
}
