package stream

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
	"github.com/poolbridge/poolbridge/tests/harness"
)

// rig is a service with the pool "p" of two blocks and the channel "c", which keeps one frame, and a session with both.
type rig struct {
	path    string
	svc     *service.Service
	session *session.Session
	streams *Streams
	pool    *session.Pool
	channel *Channel
}

func start(t *testing.T) *rig {
	t.Helper()
	r := &rig{path: harness.SocketPath(t)}
	svc := service.New(service.Config{})
	r.svc = svc
	limits := server.DefaultLimits()
	limits.Hello, limits.Send, limits.Recall = harness.Patience, harness.Patience, harness.Patience
	srv, err := server.Listen(r.path, svc, server.Config{Limits: &limits})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, srv.Close())
		svc.Close()
	})
	r.session, r.streams = dial(t, r.path)
	r.pool, err = r.session.Blocks.Open(t.Context(), session.Once, &wire.Create{Name: "p", Kind: "host", MaxBytes: 2 << 16}, nil)
	require.NoError(t, err)
	var reply wire.ChannelReply
	require.NoError(t, r.session.Call(t.Context(), &wire.MakeChannel{Name: "c", Pool: r.pool.Info.ID, Mode: "broadcast", Capacity: 1, Full: "drop-oldest"}, &reply))
	r.channel = r.streams.Channel(convert.ChannelIdentity(reply.Channel))
	return r
}

func dial(t *testing.T, path string) (*session.Session, *Streams) {
	t.Helper()
	conn, err := seqpacket.Dial(t.Context(), path)
	require.NoError(t, err)
	s := session.New(conn)
	st := New(s)
	s.Refused = func(op string, why *wire.Error) error {
		return fmt.Errorf("%s: %w: %w", op, convert.Sentinel(why.Code), why)
	}
	require.NoError(t, s.Hello(t.Context(), "test"))
	t.Cleanup(func() {
		require.True(t, s.BeginClose())
		for _, l := range s.Blocks.BeginClose() {
			assert.NoError(t, l.Release(session.Unasked, true))
		}
		st.Leave()
		assert.NoError(t, errors.Join(s.Blocks.Close(), s.HangUp(), st.Close(), s.Timelines.Close()))
	})
	return s, st
}

func (r *rig) allocate(t *testing.T) *session.Lease {
	t.Helper()
	l := new(session.Lease)
	require.NoError(t, r.session.Blocks.Allocate(t.Context(), l, session.Once, r.pool, mempool.Bytes(1<<16)))
	return l
}

func TestAFrameIsNotSentBeforeTheClientHasJoined(t *testing.T) {
	r := start(t)
	held := r.allocate(t)
	clock, err := r.session.Timelines.Clock(t.Context())
	require.NoError(t, err)
	word, err := clock.Word(t.Context())
	require.NoError(t, err)
	ready := clock.Next(word)
	l := r.allocate(t)
	joining := &Producer{member: newMember(r.streams, shmchannel.ProducerRole), joined: make(chan struct{})}
	r.streams.producers[r.channel.Identity.ID] = joining // it never ends
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.channel.Publish(ctx, session.Waiting, l, mempool.FrameOptions{Completion: mempool.Completion{Ready: &ready}})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, l.Release(t.Context(), false), mempool.ErrReleased)
	again := r.allocate(t)
	assert.Equal(t, []mempool.Fence{ready}, again.Info().Wait)
	require.NoError(t, clock.Reach(ready))
	require.NoError(t, again.Release(t.Context(), false))
	require.NoError(t, held.Release(t.Context(), false))
}

func TestWhoFailsToJoinLeavesItsPlaceToOthers(t *testing.T) {
	const tries = 70 // more members than a session may have
	for what, fail := range map[string]func(cancel func()) error{
		"its files cannot be mapped": func(func()) error { return errors.New("no memory") },
		"it is cancelled": func(cancel func()) error {
			cancel()
			return nil
		},
	} {
		for _, role := range []shmchannel.Role{shmchannel.ProducerRole, shmchannel.ConsumerRole} {
			t.Run(fmt.Sprint(what, ", ", role), func(t *testing.T) {
				r := start(t)
				for range tries {
					ctx, cancel := context.WithCancel(t.Context())
					m := newMember(r.streams, role)
					m.depart, m.counts = func(context.Context) { m.sendLeave() }, func() (none shmchannel.Counts) { return none }
					if err := m.join(ctx, session.Once, &wire.Join{Channel: r.channel.Identity.ID}, func(shmchannel.MemberConfig) error { return fail(cancel) }); err == nil {
						m.sendLeave()
					}
					cancel()
				}
				_, err := r.channel.Publish(t.Context(), session.Waiting, r.allocate(t), mempool.FrameOptions{})
				require.NoError(t, err)
			})
		}
	}
}

func TestAProducerDoesNotWaitForTheFileOfAConsumerThatHasLeft(t *testing.T) {
	r := start(t)
	p, err := r.channel.producer(t.Context())
	require.NoError(t, err)
	const seat, id = 3, 99
	known := make(chan error)
	go func() {
		_, err := p.await(t.Context(), session.Waiting, &shmchannel.UnknownMemberError{Role: shmchannel.ConsumerRole, Seat: seat, ID: id})
		known <- err
	}()
	r.streams.MemberCame(&wire.MemberCame{Channel: r.channel.Identity.ID, Role: "consumer", Seat: seat, Member: id}, new(seqpacket.FDs))
	require.NoError(t, <-known)
	_, err = r.channel.Publish(t.Context(), session.Once, r.allocate(t), mempool.FrameOptions{})
	require.NoError(t, err)
}
