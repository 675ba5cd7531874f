package bridge

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// due is a context whose deadline is now. But the context ends only when the test ends it.
type due struct {
	context.Context
	at time.Time
}

func dueNow(t *testing.T) (ctx due, pass context.CancelFunc) {
	parent, pass := context.WithCancel(t.Context())
	return due{parent, time.Now()}, pass
}

func (d due) Deadline() (time.Time, bool) { return d.at, true }

func (d due) Err() error {
	if d.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// refuse answers a request with an error.
func (s *imitation) refuse(t *testing.T, q uint32, why *wire.Error) {
	t.Helper()
	packet, err := wire.AppendError(nil, q, why)
	require.NoError(t, err)
	require.NoError(t, s.conn.Send(packet, nil))
}

func TestAtTheDeadlineACallSaysWhatItWaitedForAndTryAtOnce(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	p := createPool(t, c, hostPool("p", 4096))
	l := allocate(t, p, 4096)
	publish(t, l, "x")
	buffer := l.Grant()
	write := LeaseOptions{Write: true}
	calls := []struct {
		name      string
		call, try func(context.Context) error
		want      error
	}{
		{"OpenPool", func(ctx context.Context) error { _, err := other.OpenPool(ctx, "q"); return err },
			func(ctx context.Context) error { _, err := other.TryOpenPool(ctx, "q"); return err }, ErrNotFound},
		{"OpenChannel", func(ctx context.Context) error { _, err := other.OpenChannel(ctx, "c"); return err },
			func(ctx context.Context) error { _, err := other.TryOpenChannel(ctx, "c"); return err }, ErrNotFound},
		{"Subscribe", func(ctx context.Context) error { _, err := other.Subscribe(ctx, "c", SubscribeOptions{}); return err },
			func(ctx context.Context) error {
				_, err := other.TrySubscribe(ctx, "c", SubscribeOptions{})
				return err
			}, ErrNotFound},
		{"Get of no name", func(ctx context.Context) error { _, err := other.Get(ctx, "y", LeaseOptions{}); return err },
			func(ctx context.Context) error { _, err := other.TryGet(ctx, "y", LeaseOptions{}); return err }, ErrNotFound},
		{"Get to write", func(ctx context.Context) error { _, err := other.Get(ctx, "x", write); return err },
			func(ctx context.Context) error { _, err := other.TryGet(ctx, "x", write); return err }, ErrBusy},
		{"Lease", func(ctx context.Context) error {
			_, err := other.Lease(ctx, buffer.Buffer, buffer.Generation, write)
			return err
		},
			func(ctx context.Context) error {
				_, err := other.TryLease(ctx, buffer.Buffer, buffer.Generation, write)
				return err
			}, ErrBusy},
		{"Export", func(ctx context.Context) error { _, err := other.Export(ctx, "y"); return err },
			func(ctx context.Context) error { _, err := other.TryExport(ctx, "y"); return err }, ErrNotFound},
		{"Allocate", func(ctx context.Context) error { _, err := p.Allocate(ctx, mempool.Bytes(1)); return err },
			func(ctx context.Context) error { _, err := p.TryAllocate(ctx, mempool.Bytes(1)); return err }, ErrLimit},
		{"Dial", func(ctx context.Context) error {
			_, err := (Dialer{Wait: true}).Dial(ctx, filepath.Join(openDir(t), "none"))
			return err
		},
			func(ctx context.Context) error { _, err := Dial(ctx, filepath.Join(openDir(t), "none")); return err }, ErrNotRunning},
	}
	for _, c := range calls {
		t.Run(c.name, func(t *testing.T) {
			err := c.try(t.Context())
			require.ErrorIs(t, err, c.want)
			assert.NotErrorIs(t, err, context.DeadlineExceeded)
			if c.name == "Dial" { // no service knows the deadline of Dial
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				assert.ErrorIs(t, c.call(ctx), context.DeadlineExceeded)
				return
			}
			ctx, pass := dueNow(t)
			defer pass()
			err = c.call(ctx)
			require.ErrorIs(t, err, c.want)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, string(wire.CodeTimeout), Code(err))
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			assert.ErrorIs(t, c.call(ended), context.Canceled)
			assert.ErrorIs(t, c.try(ended), context.Canceled)
		})
	}
}

func TestACallWaitsForTheServicesAnswerABitLongerThanItsDeadline(t *testing.T) {
	for what, grace := range map[string]time.Duration{"an answer comes": patience, "none comes": 1} {
		t.Run(what, func(t *testing.T) {
			s := imitate(t)
			c := s.dial(t)
			c.session.DeadlineGrace = grace
			ctx, pass := dueNow(t)
			ended := make(chan error)
			go func() {
				_, err := c.Get(ctx, "x", LeaseOptions{})
				ended <- err
			}()
			q, m := s.request(t)
			assert.Equal(t, &wire.Get{Name: "x"}, m)
			pass()
			if grace == patience {
				s.refuse(t, q, &wire.Error{Code: wire.CodeTimeout, Message: "waited 1s: nothing is published as \"x\""})
				err := <-ended
				require.ErrorIs(t, err, ErrNotFound)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				assert.ErrorContains(t, err, "nothing is published")
				return
			}
			require.ErrorIs(t, <-ended, context.DeadlineExceeded)
			_, m = s.request(t)
			assert.Equal(t, &wire.Cancel{Request: uint64(q)}, m)
		})
	}
}

func TestACallWithoutADeadlineAsksAgainWhenTheServiceMayWaitNoLonger(t *testing.T) {
	s := imitate(t)
	c := s.dial(t)
	c.session.LongestWait = 1
	ended := make(chan error)
	go func() {
		_, err := c.OpenChannel(context.Background(), "c")
		ended <- err
	}()
	q, m := s.request(t)
	for range 3 {
		require.Equal(t, &wire.Find{Name: "c", Wait: 1}, m)
		s.refuse(t, q, &wire.Error{Code: wire.CodeTimeout, Message: "there is no channel"})
		q, m = s.request(t)
	}
	s.reply(t, q, &wire.ChannelReply{Channel: wire.ChannelIdentity{ID: 1, Name: "c", Capacity: 1}})
	require.NoError(t, <-ended)
}

func TestARefusalBeforeTheDeadlineIsFinal(t *testing.T) {
	s := imitate(t)
	c := s.dial(t)
	ended := make(chan error)
	go func() {
		_, err := c.Get(context.Background(), "x", LeaseOptions{})
		ended <- err
	}()
	q, m := s.request(t)
	assert.Equal(t, &wire.Get{Name: "x", Wait: uint64(c.session.LongestWait.Milliseconds())}, m)
	s.refuse(t, q, &wire.Error{Code: wire.CodeLimit, Message: "256 requests wait"})
	err := <-ended
	require.ErrorIs(t, err, ErrLimit)
	assert.NotErrorIs(t, err, context.DeadlineExceeded)
}
