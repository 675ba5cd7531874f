package bridge

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/program"
)

// imitation stands for a service. The test decides which answers it sends.
type imitation struct {
	path     string
	listener *seqpacket.Listener
	conn     *seqpacket.Conn
	buf      []byte
}

func imitate(t *testing.T) *imitation {
	t.Helper()
	path := filepath.Join(openDir(t), "s")
	l, err := seqpacket.Listen(path, seqpacket.ListenConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return &imitation{path: path, listener: l, buf: make([]byte, wire.MaxPacket)}
}

// dial connects a client and answers the client's hello. At the end of the test, dial first closes the service's end of the connection, and
// then closes the client.
func (s *imitation) dial(t *testing.T) *Client {
	t.Helper()
	connected := make(chan *Client)
	go func() {
		c, err := Dial(context.Background(), s.path)
		assert.NoError(t, err)
		connected <- c
	}()
	s.accept(t)
	q, _ := s.request(t)
	s.reply(t, q, &wire.HelloReply{Version: 1, Session: 1})
	c := <-connected
	require.NotNil(t, c)
	c.session.Blocks.Checked = false // tests compare the requests with those of a usual client
	t.Cleanup(func() {
		_ = s.conn.Close()
		assert.NoError(t, c.Close())
	})
	return c
}

func (s *imitation) accept(t *testing.T) {
	t.Helper()
	var err error
	s.conn, err = s.listener.Accept()
	require.NoError(t, err)
}

func (s *imitation) request(t *testing.T) (uint32, wire.Request) {
	t.Helper()
	n, fds, err := s.conn.Recv(s.buf)
	require.NoError(t, err)
	require.NoError(t, fds.Close())
	q, m, err := wire.DecodeRequest(s.buf[:n])
	require.NoError(t, err)
	return q, m
}

func (s *imitation) reply(t *testing.T, q uint32, m wire.Reply, fds ...int) {
	t.Helper()
	packet, err := wire.AppendReply(nil, q, m)
	require.NoError(t, err)
	require.NoError(t, s.conn.Send(packet, fds))
}

func (s *imitation) notice(t *testing.T, n wire.Notice) {
	t.Helper()
	packet, err := wire.AppendNotice(nil, n)
	require.NoError(t, err)
	require.NoError(t, s.conn.Send(packet, nil))
}

// lease gives a client a lease on a block of a pool of one page, and answers the client's request `open` for this pool.
func (s *imitation) lease(t *testing.T, c *Client, block uint64) *Lease {
	t.Helper()
	got := make(chan *Lease)
	go func() {
		l, err := c.TryGet(context.Background(), "x", LeaseOptions{})
		assert.NoError(t, err)
		got <- l
	}()
	q, _ := s.request(t)
	s.reply(t, q, &wire.GrantReply{Grant: s.leaseOn(block)})
	q, m := s.request(t)
	require.Equal(t, &wire.Open{Pool: 9}, m)
	memfd, err := unix.MemfdCreate("page", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	file := os.NewFile(uintptr(memfd), "page")
	defer file.Close()
	require.NoError(t, file.Truncate(4096))
	_, err = unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	require.NoError(t, err)
	s.reply(t, q, &wire.PoolReply{Pool: wire.PoolInfo{ID: 9, Name: "p", Kind: "host", MaxBytes: 4096, Export: &wire.Export{FDs: 1}}}, int(file.Fd()))
	l := <-got
	require.NotNil(t, l)
	return l
}

func (s *imitation) leaseOn(block uint64) wire.Grant {
	return wire.Grant{ID: 1, Buffer: 1, Generation: 1, Write: true, Pool: 9, Block: block, BlockBytes: 4096, Bytes: 4,
		Tensor: wire.Tensor{DType: "uint8", Shape: []uint64{4}}, Export: &wire.Export{Data: binary.LittleEndian.AppendUint64(nil, 0)}}
}

func TestAServiceThatTalksNonsenseIsLeft(t *testing.T) {
	for what, nonsense := range map[string]func(*testing.T, *imitation, uint32){
		"no packet":                   func(t *testing.T, s *imitation, _ uint32) { require.NoError(t, s.conn.Send([]byte{0xc1}, nil)) },
		"an answer to nobody":         func(t *testing.T, s *imitation, q uint32) { s.reply(t, q+1, &wire.EmptyReply{}) },
		"an answer to something else": func(t *testing.T, s *imitation, q uint32) { s.reply(t, q, &wire.EmptyReply{}) },
	} {
		t.Run(what, func(t *testing.T) {
			s := imitate(t)
			c := s.dial(t)
			ended := make(chan error)
			go func() {
				_, err := c.Get(context.Background(), "x", LeaseOptions{})
				ended <- err
			}()
			q, _ := s.request(t)
			nonsense(t, s, q)
			assert.Error(t, <-ended)
			<-c.Done()
			_, err := c.Stats(context.Background())
			assert.ErrorIs(t, err, ErrDisconnected)
			_, _, err = s.conn.Recv(s.buf)
			assert.Error(t, err, "the client hung up")
		})
	}
}

func TestALostConnectionSaysWhatIsLostAndWhatToDo(t *testing.T) {
	s := imitate(t)
	c := s.dial(t)
	require.NoError(t, s.conn.Close())
	_, err := c.Stats(context.Background())
	require.ErrorIs(t, err, ErrDisconnected)
	assert.ErrorContains(t, err, "leases and subscriptions have ended")
	assert.ErrorContains(t, err, "dial again")
}

func TestAGoodbyeIsReadThoughTheServiceTakesNoMorePackets(t *testing.T) {
	for range 20 { // in some runs, the client reads the goodbye before its request fails
		s := imitate(t)
		c := s.dial(t)
		s.notice(t, &wire.Goodbye{Reason: wire.Error{Code: wire.CodeLimit, Message: "too slow"}})
		require.NoError(t, s.conn.Close())
		_, err := c.Stats(context.Background())
		require.ErrorIs(t, err, ErrDisconnected)
		require.ErrorIs(t, err, ErrLimit)
		assert.ErrorContains(t, err, "too slow")
	}
}

func TestNoticesOfALaterVersionAreIgnored(t *testing.T) {
	s := imitate(t)
	c := s.dial(t)
	require.NoError(t, s.conn.Send([]byte("\x81\xa1n\xa4warp"), nil))
	ended := make(chan error)
	go func() { ended <- c.Unpublish(context.Background(), "x") }()
	q, _ := s.request(t)
	s.reply(t, q, &wire.EmptyReply{})
	assert.NoError(t, <-ended)
}

func TestAnOlderServiceThatDoesNotKnowARequestIsToBeUpdated(t *testing.T) {
	s := imitate(t)
	c := s.dial(t)
	ended := make(chan error)
	go func() { ended <- c.Unpublish(context.Background(), "x") }()
	q, _ := s.request(t)
	packet, err := wire.AppendError(nil, q, &wire.Error{Code: wire.CodeUnsupported, Message: "the service is poolsvc 0.1.0"})
	require.NoError(t, err)
	require.NoError(t, s.conn.Send(packet, nil))
	err = <-ended
	assert.ErrorIs(t, err, ErrUnsupported)
	assert.ErrorContains(t, err, "the service is poolsvc 0.1.0; this client is of poolbridge "+program.Version()+": use one version")
}

func TestAVersionThatTheClientDidNotOfferIsRefused(t *testing.T) {
	s := imitate(t)
	ended := make(chan error)
	go func() {
		_, err := Dial(context.Background(), s.path)
		ended <- err
	}()
	s.accept(t)
	defer s.conn.Close()
	q, _ := s.request(t)
	s.reply(t, q, &wire.HelloReply{Version: 2})
	err := <-ended
	assert.ErrorIs(t, err, ErrVersion)
	assert.ErrorContains(t, err, "and speaks version 1: use one version of poolbridge on both sides")
}

func TestAServiceThatNeverSaysHelloIsLeftWhenTimeIsUp(t *testing.T) {
	s := imitate(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		_, err := Dial(ctx, s.path)
		ended <- err
	}()
	s.accept(t)
	defer s.conn.Close()
	s.request(t)
	cancel()
	assert.ErrorIs(t, <-ended, context.Canceled)
}

func TestALeaseThatCannotBeMappedIsGivenBack(t *testing.T) {
	for what, spoil := range map[string]func(*wire.Grant){
		"no export":       func(l *wire.Grant) { l.Export = nil },
		"an empty export": func(l *wire.Grant) { l.Export = &wire.Export{} },
		"behind the pool": func(l *wire.Grant) { l.BlockBytes = 8192 },
		"a missing file":  func(l *wire.Grant) { l.Export.FDs = 3; l.BlockBytes = 1 << 40 },
	} {
		t.Run(what, func(t *testing.T) {
			s := imitate(t)
			c := s.dial(t)
			first := s.lease(t, c, 5)
			ended := make(chan error)
			go func() {
				_, err := c.TryGet(context.Background(), "y", LeaseOptions{})
				ended <- err
			}()
			q, _ := s.request(t)
			bad := s.leaseOn(6)
			bad.ID = 2
			spoil(&bad)
			s.reply(t, q, &wire.GrantReply{Grant: bad})
			_, m := s.request(t)
			assert.Equal(t, &wire.Release{Lease: 2}, m)
			assert.Error(t, <-ended)
			require.NoError(t, first.CopyTo(context.Background(), make([]byte, 4), 0))
		})
	}
}
