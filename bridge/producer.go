package bridge

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
)

// producing is a producer of a channel. A client makes one value of type producing for each channel, when it first publishes in this channel
// or makes a Publisher.
type producing struct {
	membership
	joined chan struct{} // closed when native or err is set
	err    error
	native *shmchannel.Producer

	reclaiming sync.Mutex   // held while the result of native.Reclaim is used
	wanted     atomic.Int64 // until this time somebody waits for memory of the pool, in nanoseconds since 1970
	draining   atomic.Bool  // the goroutine of drain runs
}

// producer returns the client's producer of the channel. It joins the channel if necessary.
func (ch *Channel) producer(ctx context.Context) (*producing, error) {
	if p := ch.joined.Load(); p != nil && !p.forgotten.Load() {
		return p, nil
	}
	c, s := ch.client, &ch.client.shared
	s.mu.Lock()
	p := s.producers[ch.info.ID]
	if p == nil {
		p = &producing{membership: newMembership(ch, shmchannel.ProducerRole), joined: make(chan struct{})}
		p.depart = func(context.Context) { p.sendLeave() }
		if err := c.session.Go(p.begin); err != nil { // in the background, so that joining continues if ctx ends
			s.mu.Unlock()
			return nil, err
		}
		if s.producers == nil {
			s.producers = make(map[uint64]*producing)
		}
		s.producers[ch.info.ID] = p
	}
	s.mu.Unlock()
	select {
	case <-p.joined:
	default:
		select {
		case <-p.joined:
		case <-ctx.Done():
			return nil, situation.Ended(ctx)
		}
	}
	if p.err == nil {
		ch.joined.Store(p)
	}
	return p, p.err
}

// begin joins the channel. If joining fails, the next Publish tries again.
func (p *producing) begin() {
	s := &p.client.shared
	p.err = p.join(p.client.session.Working(), &wire.Join{}, func(config shmchannel.MemberConfig) (err error) {
		p.native, err = shmchannel.OpenProducer(config)
		if err == nil {
			p.add, p.counts = p.native.AddCursor, p.native.Counts
			p.unwatch = context.AfterFunc(p.client.session.Working(), p.native.Wake)
		}
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.err == nil {
		p.depart = p.retire
	} else {
		p.err = errors.Join(p.err, p.close())
		delete(s.producers, p.channel.ID)
	}
	close(p.joined)
}

const (
	// leaveTries is how long a producer keeps asking the service whether the producer may leave.
	leaveTries = 100 * time.Millisecond
	// leavePause is how long a producer waits between two of these requests.
	leavePause = 2 * time.Millisecond
)

// retire leaves the channel, and releases the arenas and the leases that were published. The caller makes sure that no call of Publish is
// running.
func (p *producing) retire(ctx context.Context) {
	left := p.leave(ctx)
	p.giveUpLeases()
	if left { // otherwise the service finds out what the leases need when the session ends
		p.release()
	}
}

// leave asks the service to remove the producer, and to end the leases of the memory that the channel still needs. It reports whether the
// producer is removed.
func (p *producing) leave(ctx context.Context) bool {
	for end := time.Now().Add(leaveTries); ; {
		err := p.client.session.Do(ctx, &wire.Leave{Channel: p.channel.ID, Member: p.id}, &session.Call{Into: &wire.EmptyReply{}, Closing: true})
		_, refused := errors.AsType[*RemoteError](err)
		switch {
		case err == nil || refused && !errors.Is(err, ErrBusy): // if the service refused, the channel is gone
			return true
		case !refused || time.Now().After(end):
			return false
		}
		time.Sleep(leavePause) // ErrBusy means that a consumer is just taking or releasing a frame
	}
}

func (p *producing) close() error {
	if p.native == nil {
		return nil
	}
	p.unwatch()
	return p.native.Close()
}
