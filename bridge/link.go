package bridge

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/shmring"
	"github.com/poolbridge/poolbridge/mempool/wakeful"
)

// link carries the packets of a session: over its socket, and once it has a ring through shared memory, where a packet
// costs no system call. Each direction is one sequence of packets, whichever way they come.
//
// One goroutine at a time may send, and one receive.
type link struct {
	*seqpacket.Conn
	out, in *shmring.Ring // nil: that direction has only the socket. Otherwise they are the same ring.

	peerReady atomic.Bool // the peer has the ring too
	aside     bool        // what is sent goes over the socket for now

	over bool      // what is received comes over the socket for now
	came arrival   // over the socket, behind what the ring still has
	last time.Time // when the last packet was found in the ring
	wakeful.Eagerness
	failure error // what the socket said at last, behind what the ring still has
	closed  atomic.Bool
}

// arrival is a packet that came over the socket; empty if there is none.
type arrival struct {
	packet *seqpacket.Packet
	fds    *seqpacket.FDs
}

// Packets of one byte, which no message is, are the link's own.
const (
	packetLook = 0xc0 // there is something in the ring
	packetBack = 0xc3 // the next packets come through the ring again
)

// errAside is for packets that came over the socket when they should have come through the ring.
var errAside = fmt.Errorf("%w: a packet came over the socket, where only a packet of the ring's own was expected", ErrProtocol)

// sendThrough lets packets be sent through the ring, once the peer has it too.
func (l *link) sendThrough(r *shmring.Ring) { l.out, l.aside = r, true }

// receiveThrough lets packets come through the ring, once the peer says so.
func (l *link) receiveThrough(r *shmring.Ring) { l.in, l.over = r, true }

// TrySend sends a packet without waiting. fds go with it over the socket; so does what is urgent, for someone who may not
// be looking into the ring.
//
// Errors: those of [seqpacket.Conn.TrySend]; [ErrProtocol].
func (l *link) TrySend(data []byte, fds []int, urgent bool) error {
	if len(fds) == 0 && !urgent {
		if done, err := l.tryRing(data); done || err != nil {
			return err
		}
	}
	l.stepAside()
	return l.Conn.TrySend(data, fds)
}

// Send is TrySend of what is not urgent, and waits until the write deadline.
func (l *link) Send(data []byte, fds []int) error {
	if len(fds) == 0 {
		if done, err := l.tryRing(data); done || err != nil {
			return err
		}
	}
	l.stepAside()
	return l.Conn.Send(data, fds)
}

// tryRing sends a packet through the ring if there is one with room for it, and the peer has read all that was sent before.
// An error ends the session, even if the packet was sent: nobody may have been woken for it.
//
// Errors: [ErrProtocol] for a corrupt ring; those of the socket.
func (l *link) tryRing(data []byte) (done bool, err error) {
	if l.out == nil {
		return false, nil
	}
	if l.aside {
		if !l.peerReady.Load() {
			return false, nil
		}
		drained, err := l.out.Drained()
		if err != nil || !drained || len(data) > shmring.MaxPacket {
			return false, breach(err)
		}
		if err := l.Conn.TrySend([]byte{packetBack}, nil); err != nil {
			return false, nil //nolint:nilerr // the next send over the socket fails and says why
		}
		l.aside = false
	}
	done, wake, err := l.out.Put(data)
	if !wake {
		return done, breach(err)
	}
	err = l.Conn.TrySend([]byte{packetLook}, nil)
	if errors.Is(err, seqpacket.ErrWouldBlock) || errors.Is(err, seqpacket.ErrPeerClosed) {
		err = nil // a full socket's reader does not sleep; one that is gone needs nothing
	}
	return done, err
}

// stepAside says in the ring that the next packets come over the socket.
func (l *link) stepAside() {
	if l.out != nil && !l.aside {
		l.out.Mark()
		l.aside = true
	}
}

// Recv receives the next packet into a buffer that is only taken when a packet is there. The packet is to be freed; it is
// nil if there is an error. What was sent through the ring before the peer left comes before the end; after Close nothing does.
//
// Errors: those of [seqpacket.Conn.RecvInto], of which those that only a peer can cause that breaks the protocol are
// [ErrProtocol]; so is a corrupt ring.
func (l *link) Recv(buffers *seqpacket.Buffers) (*seqpacket.Packet, *seqpacket.FDs, error) {
	p, fds, err := l.recv(buffers)
	return p, fds, breach(err)
}

// breaches are the errors that only a peer can cause that breaks the protocol.
var breaches = []error{shmring.ErrCorrupt, seqpacket.ErrDataTruncated, seqpacket.ErrControlTruncated, seqpacket.ErrSurplusFDs,
	seqpacket.ErrEmptyPacket}

// breach makes an [ErrProtocol] of what is one.
func breach(err error) error {
	if err != nil && slices.ContainsFunc(breaches, func(one error) bool { return errors.Is(err, one) }) {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return err
}

func (l *link) recv(buffers *seqpacket.Buffers) (*seqpacket.Packet, *seqpacket.FDs, error) {
	for l.in != nil {
		switch {
		case l.closed.Load():
			return nil, nil, os.ErrClosed
		case !l.over && !l.in.Empty():
			p, err := l.take(buffers)
			if p != nil || err != nil {
				return p, nil, err
			}
		case !l.over && l.failure != nil:
			return nil, nil, l.failure
		case !l.over && l.came.packet != nil:
			return nil, nil, errAside
		case !l.over:
			l.sleep(buffers)
		case l.came.packet != nil:
			came := l.came
			l.came = arrival{}
			return came.packet, came.fds, nil
		default:
			p, fds, err := l.RecvInto(buffers)
			if err != nil || !own(p) {
				return p, fds, err
			}
			if p.Data[0] == packetBack {
				l.over = false
				l.peerReady.Store(true)
			}
			p.Free()
			if err := fds.Close(); err != nil {
				return nil, nil, err
			}
		}
	}
	return l.RecvInto(buffers)
}

// own says whether a packet is one of the link's own.
func own(p *seqpacket.Packet) bool {
	return len(p.Data) == 1 && (p.Data[0] == packetBack || p.Data[0] == packetLook)
}

// take takes the next packet out of the ring; nil if it was a mark.
func (l *link) take(buffers *seqpacket.Buffers) (*seqpacket.Packet, error) {
	p := buffers.Take()
	n, kind, err := l.in.Take(p.Data)
	l.last = time.Now()
	if err == nil && kind == shmring.Packet {
		p.Data = p.Data[:n]
		return p, nil
	}
	p.Free()
	l.over = kind == shmring.Marked
	return nil, err
}

// Close closes the connection. What the ring still has is nobody's then.
func (l *link) Close() error {
	l.closed.Store(true)
	return l.Conn.Close()
}

// unmap ends the ring, and closes what came over the socket behind it. Nobody may send or receive any more.
func (l *link) unmap() error {
	r, came := l.in, l.came
	if r == nil {
		return nil
	}
	l.in, l.out, l.came = nil, nil, arrival{}
	if came.packet != nil {
		came.packet.Free()
	}
	return errors.Join(came.fds.Close(), r.Close())
}

// lookAround looks into the ring for a while, if that is worth it and few others do.
func (l *link) lookAround() (found bool) {
	if !l.Willing() || !wakeful.Stay(1) {
		return l.glance()
	}
	defer wakeful.Leave()
	// Goroutines that the last packet gave work to may begin. To let others run again and again would wake a thread each
	// time, which takes this goroutine to another CPU.
	runtime.Gosched()
	for i := 0; !found && time.Since(l.last) < wakeful.Limit; i++ {
		if i%4 == 3 && !wakeful.Spare() {
			runtime.Gosched()
		}
		found = !l.in.Empty()
	}
	l.Learn(found)
	return found
}

// glance looks into the ring once, after goroutines that are ready to send could do so.
func (l *link) glance() (found bool) {
	runtime.Gosched()
	return !l.in.Empty()
}

// sleep waits until there may be something in the ring.
func (l *link) sleep(buffers *seqpacket.Buffers) {
	if l.lookAround() || !l.in.Sleep() {
		return
	}
	p, fds, err := l.RecvInto(buffers)
	l.in.Wake()
	l.last = time.Now()
	switch {
	case err != nil:
		l.failure = err
	case len(p.Data) == 1 && p.Data[0] == packetLook:
		p.Free()
		l.failure = fds.Close()
	default:
		l.came = arrival{p, fds}
	}
}
