package stream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Producer is a producer of a channel. A client makes one Producer for each channel, when it first publishes in this channel or makes a
// Publisher.
type Producer struct {
	member
	joined chan struct{} // closed when shm or err is set
	err    error
	shm    *shmchannel.Producer

	reclaiming sync.Mutex    // held while the result of shm.Reclaim is used
	back       []*sending    // leases that have come back; guarded by reclaiming
	returning  chan struct{} // has a value while a goroutine releases leases that have come back
	wanted     atomic.Int64  // until this time somebody waits for memory of the pool, in nanoseconds since 1970
	draining   atomic.Bool   // the goroutine of drain runs
}

// Channel is a channel in which a client can be a producer and consumers.
type Channel struct {
	Identity mempool.ChannelIdentity
	streams  *Streams
	joined   atomic.Pointer[Producer] // the client's producer, once it has joined
}

// Channel returns the channel with this identity.
func (st *Streams) Channel(identity mempool.ChannelIdentity) *Channel {
	return &Channel{Identity: identity, streams: st}
}

// Named returns err. If the channel is gone, it returns an error with the channel's name, because the service knows only the id.
func (ch *Channel) Named(err error) error {
	if errors.Is(err, mempool.ErrClosed) && ch.streams.session.Over() == nil {
		return gone(ch.Identity.Name)
	}
	return err
}

// producer returns the client's producer of the channel. It joins the channel if necessary.
func (ch *Channel) producer(ctx context.Context) (*Producer, error) {
	if p := ch.joined.Load(); p != nil && !p.forgotten.Load() {
		return p, nil
	}
	p, err := ch.streams.producer(ch.Identity)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.joined:
	default:
		select {
		case <-p.joined:
		case <-ctx.Done():
			return nil, typed.Ended(ctx)
		}
	}
	if p.err == nil {
		ch.joined.Store(p)
	}
	return p, ch.Named(p.err)
}

// producer returns the client's producer of a channel. It begins to join the channel if necessary.
func (st *Streams) producer(channel mempool.ChannelIdentity) (*Producer, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if p := st.producers[channel.ID]; p != nil {
		return p, nil
	}
	p := &Producer{member: newMember(st, shmchannel.ProducerRole), joined: make(chan struct{}), returning: make(chan struct{}, 1)}
	p.channel = channel
	p.depart = func(context.Context) { p.sendLeave() }
	if err := st.session.Go(p.begin); err != nil { // in the background, so that joining continues if ctx ends
		return nil, err
	}
	st.producers[channel.ID] = p
	return p, nil
}

// Outstanding returns how much memory of the client's producer the channel has: the number of its frames.
func (ch *Channel) Outstanding() int {
	if p := ch.joined.Load(); p != nil {
		return p.shm.Outstanding()
	}
	return 0
}

// begin joins the channel. If joining fails, the next Publish tries again.
func (p *Producer) begin() {
	st, working := p.streams, p.session.Working()
	p.err = p.join(working, session.Once, &wire.Join{Channel: p.channel.ID}, func(config shmchannel.MemberConfig) (err error) {
		p.shm, err = shmchannel.OpenProducer(config)
		if err == nil {
			p.add, p.counts = p.shm.AddCursor, p.shm.Counts
			p.unwatch = context.AfterFunc(working, p.shm.Wake)
		}
		return err
	})
	st.mu.Lock()
	defer st.mu.Unlock()
	if p.err == nil {
		p.depart = p.retire
	} else {
		p.err = errors.Join(p.err, p.close())
		delete(st.producers, p.channel.ID)
	}
	close(p.joined)
}

const (
	// leaveTries is how long a producer keeps asking the service whether the producer may leave.
	leaveTries = 100 * time.Millisecond
	// leavePause is how long a producer waits between two of these requests.
	leavePause = 2 * time.Millisecond
)

// retire leaves the channel, and releases the published leases that have come back. If the service lets it leave, it also releases the arenas
// and the other published leases. The caller makes sure that no call of Publish is running.
func (p *Producer) retire(ctx context.Context) {
	left := p.leave(ctx)
	p.giveUpLeases(ctx)
	if left { // otherwise the service finds out what the leases need when the session ends
		p.release()
	}
}

// leave asks the service to remove the producer, and to end the leases of the memory that the channel still needs. It reports whether the
// producer is removed.
func (p *Producer) leave(ctx context.Context) bool {
	for end := time.Now().Add(leaveTries); ; {
		err := p.session.Do(ctx, &wire.Leave{Channel: p.channel.ID, Member: p.id}, &session.Call{Into: &wire.EmptyReply{}, Closing: true})
		switch busy := errors.Is(err, mempool.ErrBusy); {
		case err == nil || !busy && ctx.Err() == nil: // if the service refused, the channel is gone
			return true
		case !busy || time.Now().After(end):
			return false
		}
		time.Sleep(leavePause) // ErrBusy means that a consumer is just taking or releasing a frame
	}
}

func (p *Producer) close() error {
	if p.shm == nil {
		return nil
	}
	p.unwatch()
	return p.shm.Close()
}
