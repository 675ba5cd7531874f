package seqpacket

import "sync"

// Buffers are what many connections receive packets into: those that wait for one need no buffer.
type Buffers struct{ free sync.Pool }

// NewBuffers makes buffers of size bytes, which is what the longest packet may have.
func NewBuffers(size int) *Buffers {
	b := new(Buffers)
	b.free.New = func() any { return &Packet{Data: make([]byte, size), from: b} }
	return b
}

// Packet is a packet in a buffer.
type Packet struct {
	// Data is what the peer sent, or room for it. It must not be used after Free.
	Data []byte
	from *Buffers
}

// Take takes a buffer, for a packet that is to be received by other means than [Conn.RecvInto].
func (b *Buffers) Take() *Packet { return b.free.Get().(*Packet) }

// Free returns the packet to its Buffers. The caller must not use it afterwards.
func (p *Packet) Free() {
	p.Data = p.Data[:cap(p.Data)]
	p.from.free.Put(p)
}

// RecvInto is Recv into a buffer that is only taken when a packet is there. The packet is to be freed; it is nil if there
// is an error.
func (c *Conn) RecvInto(buffers *Buffers) (*Packet, *FDs, error) {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	c.in.buffers = buffers
	n, fds, err := c.received(c.raw.Read(c.in.attemptInto))
	p := c.in.packet
	c.in.buffers, c.in.packet = nil, nil
	if err != nil {
		if p != nil {
			p.Free()
		}
		return nil, nil, err
	}
	p.Data = p.Data[:n]
	return p, fds, nil
}

// receiveInto tries to receive one packet into a buffer, which it gives back where there is none. c.receiving is held.
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
