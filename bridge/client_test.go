package bridge

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestACancelledCallDoesNotWaitForTheService(t *testing.T) {
	s := imitate(t)
	c := s.dial(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		_, err := c.Get(ctx, "x", LeaseOptions{})
		ended <- err
	}()
	q, _ := s.request(t)
	cancel()
	assert.ErrorIs(t, <-ended, context.Canceled)
	_, m := s.request(t)
	assert.Equal(t, &wire.Cancel{Request: uint64(q)}, m)

	// Now the service answers the cancelled request, and the client releases the lease that the service has granted.
	s.reply(t, q, &wire.GrantReply{Grant: wire.Grant{ID: 77, Block: 5, Tensor: wire.Tensor{DType: "uint8"}}})
	_, m = s.request(t)
	assert.Equal(t, &wire.Release{Lease: 77}, m)
	s.notice(t, &wire.Recall{Blocks: []uint64{5}})
	_, m = s.request(t)
	assert.Equal(t, &wire.Dropped{Blocks: []uint64{5}}, m, "the block has no lease")
}

// Several goroutines lease the same buffer at the same time. Only the service's first reply has the export of the block, and a goroutine
// with a later reply may be the first that maps the block.
func TestLeasesOnOneBlockAtATime(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	producer := dial(t, r.path)
	p := createPool(t, producer, hostPool("p", 1<<20))
	for range 20 {
		consumer := dial(t, r.path)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				l, err := consumer.Get(context.Background(), "x", LeaseOptions{})
				if assert.NoError(t, err) {
					got := make([]byte, 1)
					assert.NoError(t, l.CopyTo(context.Background(), got, 0))
					assert.Equal(t, "x", string(got))
					assert.NoError(t, l.Release(false))
				}
			})
		}
		l := allocate(t, p, 1)
		require.NoError(t, l.Fill(context.Background(), 0, 1, 'x'))
		publish(t, l, "x")
		all.Wait()
		require.NoError(t, consumer.Close())
		require.NoError(t, l.Release(false))
		require.NoError(t, producer.Unpublish(context.Background(), "x"))
		_, err := p.Trim(context.Background(), 0)
		require.NoError(t, err)
	}
}

func TestARecalledBlockStaysMappedWhileItIsLeased(t *testing.T) {
	s := imitate(t)
	c := s.dial(t)
	l := s.lease(t, c, 5)
	s.notice(t, &wire.Recall{Blocks: []uint64{5, 6}})
	_, m := s.request(t)
	assert.Equal(t, &wire.Dropped{Blocks: []uint64{6}}, m, "which it does not know at all")
	require.NoError(t, l.CopyFrom(context.Background(), 0, []byte("mine")))
	ended := make(chan error)
	go func() { ended <- l.Release(false) }()
	_, m = s.request(t)
	assert.Equal(t, &wire.Release{Lease: 1}, m)
	_, m = s.request(t)
	assert.Equal(t, &wire.Dropped{Blocks: []uint64{5}}, m, "after the release")
	require.NoError(t, <-ended)
}

func TestTrimReturnsWhenTheFreeMemoryIsUnmapped(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	c := dial(t, r.path)
	p := createPool(t, c, hostPool("p", 1<<20))
	for range 50 {
		require.NoError(t, allocate(t, p, 10).Release(false))
		_, err := p.Trim(t.Context(), 0)
		require.NoError(t, err)
		st, err := c.Stats(t.Context())
		require.NoError(t, err)
		require.Zero(t, st.Pools[0].Reserved)
	}
}

func TestWhenAClientIsClosedItsSessionHasEnded(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	createPool(t, dial(t, r.path), hostPool("p", 1<<20))
	for range 50 {
		c := dial(t, r.path)
		p, err := c.TryOpenPool(t.Context(), "p")
		require.NoError(t, err)
		publish(t, allocate(t, p, 10), "x")
		allocate(t, p, 10)
		require.NoError(t, c.Close())
		st := r.svc.Stats()
		require.Equal(t, []int{1, 0, 0, 0}, []int{st.Sessions, st.Leases, st.Names, st.Buffers})
		require.Zero(t, st.Pools[0].Held)
	}
}

func TestALeaseOfAClosedClientSaysBothWhatEndedAndWhy(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, err := Dial(t.Context(), path)
	require.NoError(t, err)
	l := allocate(t, createPool(t, c, hostPool("p", 4096)), 100)
	require.NoError(t, c.Close())
	for _, err := range []error{l.Fill(t.Context(), 0, 1, 0), l.Publish(t.Context(), mempool.Publication{Name: "n"}), l.Check(t.Context())} {
		assert.ErrorIs(t, err, ErrReleased)
		assert.ErrorIs(t, err, ErrClosed)
	}
}

func TestAnExportThatIsReleasedTwiceAtOnceIsReleasedOnce(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	c := dial(t, r.path)
	publish(t, allocate(t, createPool(t, c, hostPool("p", 1<<16)), 10), "x")
	for range 100 {
		x, err := c.TryExport(t.Context(), "x")
		require.NoError(t, err)
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() { assert.NoError(t, x.Release()) })
		}
		both.Wait()
	}
	require.NoError(t, c.Close())
}

func TestWhatWasGivenBackIsGivenBackAgainWithoutAnError(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, err := Dial(t.Context(), path)
	require.NoError(t, err)
	p := createPool(t, c, hostPool("p", 1<<20))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Name: "c", Mode: mempool.WorkQueue, Capacity: 4})
	named, sent := allocate(t, p, 10), allocate(t, p, 10)
	publish(t, named, "x")
	exported, err := c.TryExport(t.Context(), "x")
	require.NoError(t, err)
	_, err = ch.TryPublish(t.Context(), sent, mempool.FrameOptions{})
	require.NoError(t, err)
	publisher, err := ch.Publisher(t.Context(), mempool.Bytes(10))
	require.NoError(t, err)
	loan, err := publisher.Loan(t.Context())
	require.NoError(t, err)
	var frame *Frame
	for f, err := range ch.Frames(t.Context(), mempool.SubscribeOptions{ManualAck: true}) {
		require.NoError(t, err)
		frame = f
		break
	}
	back := func() {
		for _, l := range []*Lease{named, sent, loan} {
			assert.NoError(t, l.Release(false))
		}
		assert.NoError(t, frame.Release())
		assert.NoError(t, exported.Release())
		assert.NoError(t, publisher.Close())
	}
	back()
	back()
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	back()
}

func TestClosingWhileEverythingIsInUse(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	witness := dial(t, r.path)
	createPool(t, witness, hostPool("p", 1<<20))
	for range 20 {
		c, err := Dial(context.Background(), r.path)
		require.NoError(t, err)
		p, err := c.TryOpenPool(context.Background(), "p")
		require.NoError(t, err)
		held := allocate(t, p, 100)
		busy := make(chan struct{}, 64)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for {
					l, err := p.Allocate(context.Background(), mempool.Bytes(100))
					if err == nil {
						err = errors.Join(l.Fill(context.Background(), 0, 100, 1),
							l.Publish(context.Background(), mempool.Publication{Name: "x", Replace: true}), l.Release(false))
					}
					if err != nil {
						assert.Condition(t, func() bool { return errors.Is(err, ErrClosed) || errors.Is(err, ErrReleased) }, "%v", err)
						return
					}
					busy <- struct{}{}
				}
			})
			all.Go(func() {
				_, err := c.Get(context.Background(), "no such name", LeaseOptions{})
				assert.ErrorIs(t, err, ErrClosed)
			})
		}
		<-busy // the calls have begun; the next goroutine reads the other values of busy
		go func() {
			for range busy {
			}
		}()
		var closing sync.WaitGroup
		for range 2 {
			closing.Go(func() { assert.NoError(t, c.Close()) })
		}
		closing.Wait()
		assert.ErrorIs(t, held.CopyFrom(context.Background(), 0, nil), ErrReleased)
		_, err = c.Stats(context.Background())
		assert.ErrorIs(t, err, ErrClosed)
		_, err = c.TryOpenPool(context.Background(), "p")
		assert.ErrorIs(t, err, ErrClosed)
		all.Wait()
		close(busy)
	}
	for r.sessions() != 1 {
		_, err := witness.Stats(context.Background())
		require.NoError(t, err)
	}
	st, err := witness.Stats(context.Background())
	require.NoError(t, err)
	assert.Zero(t, st.Leases)
	assert.Zero(t, st.Pools[0].Held, "this process lives on, and has given back everything")
}

func TestAtTheDefaultPathBelowTmpAnotherUsersServiceIsRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	t.Setenv("POOLBRIDGE_SOCKET", "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", filepath.Dir(filepath.Dir(socketPath(t))))
	path := DefaultSocket()
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o755))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	listening := make(chan error)
	go func() {
		runtime.LockOSThread() // no unlock: the thread gets another user, and must end with this goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 4242, 4242, 4242); errno != 0 {
			listening <- errno
			return
		}
		listening <- unix.Listen(fd, 1) // the user of the thread that calls listen owns the socket
	}()
	require.NoError(t, <-listening)

	_, err = Dial(t.Context(), path)
	require.ErrorIs(t, err, ErrDenied)
	require.ErrorContains(t, err, "user 4242, expected user 0")
	accepted, _, err := unix.Accept(fd)
	require.NoError(t, err)
	defer unix.Close(accepted)
	n, err := unix.Read(accepted, make([]byte, 1))
	require.NoError(t, err)
	require.Zero(t, n, "nothing was sent to it")
}
