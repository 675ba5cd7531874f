package seqpacket

import "sync"

// Buffers is a set of receive buffers that many connections share. A connection that waits for a packet needs no buffer.
type Buffers struct{ free sync.Pool }

// NewBuffers makes a set of buffers of `size` bytes each. A packet must not be longer than a buffer.
func NewBuffers(size int) *Buffers {
	b := new(Buffers)
	b.free.New = func() any { return &Packet{Data: make([]byte, size), from: b} }
	return b
}

// Packet is a packet in a buffer.
type Packet struct {
	// After RecvInto, Data is what the peer sent. After Take, Data is a buffer into which the caller can receive a packet. The caller must not
	// use Data after Free.
	Data []byte
	from *Buffers
}

// Take takes a buffer from b. The caller can pass the buffer to [Conn.Recv], which needs a buffer before a packet has come.
func (b *Buffers) Take() *Packet { return b.free.Get().(*Packet) }

// Free gives the packet back to its Buffers. The caller must not use the packet afterwards.
func (p *Packet) Free() {
	p.Data = p.Data[:cap(p.Data)]
	p.from.free.Put(p)
}

// RecvInto is like Recv, but receives into a buffer of `buffers`, and needs no buffer while it waits. The caller must call Free of the
// packet. If RecvInto returns an error, the packet is nil.
func (c *Conn) RecvInto(buffers *Buffers) (*Packet, *FDs, error) { return c.recvInto(buffers, false) }

// TryRecvInto is like RecvInto, but does not wait: it fails with ErrWouldBlock if no packet has come.
func (c *Conn) TryRecvInto(buffers *Buffers) (*Packet, *FDs, error) { return c.recvInto(buffers, true) }

func (c *Conn) recvInto(buffers *Buffers, once bool) (*Packet, *FDs, error) {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	c.in.buffers, c.in.once = buffers, once
	n, fds, err := c.received(c.raw.Read(c.in.attemptInto))
	p := c.in.packet
	c.in.buffers, c.in.packet, c.in.once = nil, nil, false
	if err != nil {
		if p != nil {
			p.Free()
		}
		return nil, nil, err
	}
	p.Data = p.Data[:n]
	return p, fds, nil
}

// receiveInto tries to receive one packet into a buffer. If no packet has arrived, receiveInto gives the buffer back. The caller holds
// c.receiving.
func (c *Conn) receiveInto(fd uintptr) (done bool) {
	p := c.in.buffers.Take()
	c.in.data = p.Data
	done = c.receive(fd)
	c.in.data = nil
	if done {
		c.in.packet = p
	} else {
		p.Free()
	}
	return done
}
