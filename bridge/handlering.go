package bridge

import (
	"errors"
	"os"

	"github.com/poolbridge/poolbridge/bridge/shmring"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

// ring makes the session's ring. Without one the session has its socket, as before.
func (c *serverConn) ring(q uint32) {
	if q == 0 {
		return // nobody would ever know of it
	}
	if c.conn.in != nil {
		c.fail(q, situation(ErrExists, "session %d has a ring", c.session.ID()))
		return
	}
	r, files, err := shmring.New()
	if err != nil {
		c.fail(q, situation(ErrLimit, "the service can make no ring: %v", err))
		return
	}
	c.sending.Lock()
	err = c.transmit([]*os.File{files.Reads, files.Writes}, false, func(dst []byte) ([]byte, error) {
		return wire.AppendReply(dst, q, &wire.RingReply{Size: shmring.Size, Export: wire.Export{FDs: 2}})
	})
	if err == nil {
		c.conn.sendThrough(r)
	}
	c.sending.Unlock()
	if err != nil {
		c.fail(q, errors.Join(err, r.Close(), files.Close()))
		return
	}
	c.conn.receiveThrough(r)
	if err := files.Close(); err != nil {
		c.server.config.Log.Error("the files of a ring cannot be closed", "error", err)
	}
}

// unmapRing ends the session's ring, which nobody reads any more.
func (c *serverConn) unmapRing() {
	c.sending.Lock()
	defer c.sending.Unlock()
	if err := c.conn.unmap(); err != nil {
		c.server.config.Log.Error("a ring cannot be unmapped", "error", err)
	}
}
