package bridge

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestFeaturesAreForThoseWhoNamedThem(t *testing.T) {
	_, path := serve(t, server.Config{})
	for _, offered := range [][]string{nil, {"channels"}, {"time lines"}} {
		r := dialRaw(t, path)
		var hello wire.HelloReply
		r.Ask(1, &wire.Hello{Versions: []uint64{1}, Features: offered}, &hello)
		assert.Empty(t, hello.Features)
		for _, m := range []wire.Request{&wire.GetTimeline{}, &wire.Seal{}, &wire.MakeChannel{Name: "c", Pool: 1, Capacity: 1}, &wire.Find{Name: "c"},
			&wire.CloseChannel{}, &wire.Join{Channel: 1, Role: "consumer"}, &wire.Enter{Channel: 1, Member: 1}, &wire.Leave{Channel: 1, Member: 1},
			&wire.Map{Channel: 1, Block: 1}, &wire.Doubt{Channel: 1, Member: 1, Sequence: 1}} {
			r.Refused(2, m, wire.CodeUnsupported)
		}
	}
	r := dialRaw(t, path)
	var hello wire.HelloReply
	r.Ask(1, &wire.Hello{Versions: []uint64{1}, Features: []string{"timelines"}}, &hello)
	assert.Equal(t, []string{"timelines"}, hello.Features)
	r.Ask(2, &wire.GetTimeline{}, &wire.TimelineReply{})
	r.Refused(3, &wire.Find{Name: "c"}, wire.CodeUnsupported)
}

func TestAClientWithoutTimelinesGetsOnlyWhatIsComplete(t *testing.T) {
	l := unhurried
	l.Recall = patience
	rig := start(t, server.Config{}, l)
	old := greeted(t, rig.path)
	c := dial(t, rig.path)
	p := createPool(t, c, hostPool("p", 4096))
	clock, err := c.Clock(t.Context())
	require.NoError(t, err)
	word, err := clock.Word(t.Context())
	require.NoError(t, err)
	ready := clock.Next(word)
	out := allocate(t, p, 10)
	require.NoError(t, out.Publish(t.Context(), mempool.Publication{Name: "x", Completion: mempool.Completion{Ready: &ready}}))
	old.Send(2, &wire.Get{Name: "x"})
	old.Ask(3, &wire.StatsRequest{}, &wire.StatsReply{}) // the service answers this request before the get
	require.NoError(t, clock.Reach(ready))
	var got wire.GrantReply
	require.NoError(t, old.Reply(2, &got))
	assert.Empty(t, got.Grant.Wait)
	old.Ask(4, &wire.Release{Lease: got.Grant.ID}, &wire.EmptyReply{})

	later := clock.Next(word)
	require.NoError(t, out.held.EndLocked(false, later))
	out.held.Forget()
	require.NoError(t, c.Unpublish(t.Context(), "x"))
	old.Send(5, &wire.Alloc{Pool: p.Info().ID, Tensor: bytesTensor(10)})
	old.Ask(6, &wire.StatsRequest{}, &wire.StatsReply{})
	old.Send(0, &wire.Cancel{Request: 5})
	assert.ErrorIs(t, old.Reply(5, &got), wire.CodeCancelled)
	require.NoError(t, clock.Reach(later))
	old.Ask(7, &wire.Alloc{Pool: p.Info().ID, Tensor: bytesTensor(10)}, &got)
}

func TestALeaseThatCannotBeWaitedForIsReleased(t *testing.T) {
	l := unhurried
	l.Waiting = 1
	rig := start(t, server.Config{}, l)
	old := greeted(t, rig.path)
	c := dial(t, rig.path)
	p := createPool(t, c, hostPool("p", 4096))
	clock, err := c.Clock(t.Context())
	require.NoError(t, err)
	word, err := clock.Word(t.Context())
	require.NoError(t, err)
	ready := clock.Next(word)
	out := allocate(t, p, 10)
	require.NoError(t, out.Publish(t.Context(), mempool.Publication{Name: "x", Completion: mempool.Completion{Ready: &ready}}))
	old.Send(2, &wire.Get{Name: "y", Wait: longWait})
	for range 3 {
		old.Refused(3, &wire.Get{Name: "x"}, wire.CodeLimit)
	}
	assert.Equal(t, 1, rig.svc.Stats().Leases, "the writer's")
	require.NoError(t, clock.Reach(ready))
	var got wire.GrantReply
	old.Ask(4, &wire.Get{Name: "x"}, &got)
}

func TestWhatNoClientShouldAskOfStreams(t *testing.T) {
	_, path := serve(t, server.Config{})
	r, own := streaming(t, path)
	_, foreign := streaming(t, path)
	r.Ask(4, &wire.Create{Name: "p", Kind: "host", MaxBytes: 1 << 20}, &wire.PoolReply{})
	r.Ask(5, &wire.MakeChannel{Name: "c", Pool: 1, Capacity: 2, Full: "fail"}, &wire.ChannelReply{})
	var lease wire.GrantReply
	r.Ask(6, &wire.Alloc{Pool: 1, Tensor: bytesTensor(8)}, &lease)
	l := lease.Grant.ID
	fence := func(tl, word, value uint64) *wire.Fence { return &wire.Fence{Timeline: tl, Word: word, Value: value} }
	for i, bad := range []*wire.Fence{fence(foreign, 0, 1), fence(0, 0, 1), fence(99, 0, 1), fence(own, 512, 1), fence(own, math.MaxInt64, 1),
		fence(own, 0, 0), fence(own, 0, 1<<62), fence(own, 0, math.MaxInt64)} {
		q := uint32(100 + i)
		r.Refused(q, &wire.Publish{Lease: l, Name: "x", Ready: bad}, wire.CodeInvalid)
		r.Refused(q, &wire.Release{Lease: l, Done: []wire.Fence{*bad}}, wire.CodeInvalid)
	}
	r.Refused(7, &wire.Release{Lease: l, Done: make([]wire.Fence, 17)}, wire.CodeInvalid)
	r.Refused(7, &wire.Publish{Lease: l, Name: "x", Event: make([]byte, 65)}, wire.CodeInvalid)
	r.Refused(7, &wire.GetTimeline{Timeline: 99}, wire.CodeStale)
	r.Refused(7, &wire.GetTimeline{Timeline: foreign}, wire.CodeStale)
	r.Refused(7, &wire.MakeChannel{Name: "c", Pool: 1, Capacity: math.MaxInt64}, wire.CodeInvalid)
	r.Refused(7, &wire.MakeChannel{Name: "c", Pool: 1, Capacity: 3}, wire.CodeExists)
	r.Refused(7, &wire.MakeChannel{Name: "d", Pool: 1, Capacity: 3, Mode: "x"}, wire.CodeInvalid)
	r.Refused(7, &wire.MakeChannel{Name: "d", Pool: 1, Capacity: 3, Full: "x"}, wire.CodeInvalid)
	r.Refused(7, &wire.MakeChannel{Name: "d", Pool: 9, Capacity: 3}, wire.CodeNotFound)
	r.Refused(7, &wire.Find{Name: ""}, wire.CodeInvalid)
	r.Refused(7, &wire.Find{Name: "d"}, wire.CodeNotFound)
	r.Refused(7, &wire.Find{Name: "d", Wait: 1}, wire.CodeTimeout)
	r.Ask(9, &wire.Seal{}, &wire.EmptyReply{}) // sealing again does nothing
	r.Ask(51, &wire.CloseChannel{Channel: 1}, &wire.EmptyReply{})
	r.Refused(52, &wire.CloseChannel{Channel: 1}, wire.CodeClosed)
	r.Ask(53, &wire.StatsRequest{}, &wire.StatsReply{})
}

func TestLeasesOfOthersAreNotTouched(t *testing.T) {
	_, path := serve(t, server.Config{})
	r, _ := streaming(t, path)
	other, _ := streaming(t, path)
	r.Ask(4, &wire.Create{Name: "p", Kind: "host", MaxBytes: 1 << 20}, &wire.PoolReply{})
	var lease wire.GrantReply
	r.Ask(6, &wire.Alloc{Pool: 1, Tensor: bytesTensor(8)}, &lease)
	for _, try := range []struct {
		request wire.Request
		code    wire.Code
	}{
		{&wire.Release{Lease: lease.Grant.ID}, wire.CodeReleased},
		{&wire.Publish{Lease: lease.Grant.ID, Name: "x"}, wire.CodeReleased},
	} {
		other.Send(8, try.request)
		err := other.Reply(8, &wire.EmptyReply{})
		assert.ErrorIs(t, err, try.code, try.request.Op())
		assert.ErrorContains(t, err, "it has ended, or it is another session's", try.request.Op())
	}
}

func TestAClientCannotSealItsTimeline(t *testing.T) {
	_, path := serve(t, server.Config{})
	r := dialRaw(t, path)
	r.Ask(1, &wire.Hello{Versions: []uint64{1}, Features: []string{wire.FeatureTimelines}}, &wire.HelloReply{})
	r.Send(2, &wire.GetTimeline{})
	_, fds, err := r.Conn.Recv(r.Buffer)
	require.NoError(t, err)
	files := session.TakeFiles(fds, 1)
	defer session.CloseFiles(files)
	_, err = unix.FcntlInt(files[0].Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
	require.ErrorIs(t, err, unix.EPERM)
}
