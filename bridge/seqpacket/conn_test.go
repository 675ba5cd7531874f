package seqpacket

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const maxPacket = 65536

func TestPacketsKeepTheirBorders(t *testing.T) {
	a, b := pair(t)
	for _, s := range []string{"one", "three", "x"} {
		require.NoError(t, a.Send([]byte(s), nil))
	}
	buf := make([]byte, 64)
	for _, s := range []string{"one", "three", "x"} {
		n, fds, err := b.Recv(buf)
		require.NoError(t, err)
		require.Nil(t, fds)
		require.Equal(t, s, string(buf[:n]))
	}
}

func TestReceivingThatWasClosedStillReturnsWhatThePeerHadSent(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.Send([]byte("before"), nil))
	require.NoError(t, b.CloseRead())
	require.ErrorIs(t, a.Send([]byte("after"), nil), ErrPeerClosed)
	buf := make([]byte, 16)
	n, _, err := b.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "before", string(buf[:n]))
	_, _, err = b.Recv(buf)
	require.Equal(t, io.EOF, err)
}

func TestPacketOfTheGreatestSize(t *testing.T) {
	a, b := pair(t)
	want := bytes.Repeat([]byte("poolbridge.packet"), maxPacket/17+1)[:maxPacket]
	require.NoError(t, a.Send(want, nil))
	buf := make([]byte, maxPacket)
	n, _, err := b.Recv(buf)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, buf[:n]))
}

func TestPacketThatTheSocketNeverTakes(t *testing.T) {
	a, _ := pair(t)
	err := a.Send(make([]byte, 64<<20), nil)
	require.ErrorIs(t, err, ErrTooLong)
	require.ErrorIs(t, err, unix.EMSGSIZE)
}

func TestTruncatedDataIsRefusedAndTheNextPacketArrives(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.Send([]byte("too long"), nil))
	require.NoError(t, a.Send([]byte("fits"), nil))
	buf := make([]byte, 4)
	n, _, err := b.Recv(buf)
	require.ErrorIs(t, err, ErrDataTruncated)
	require.Zero(t, n)
	n, _, err = b.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "fits", string(buf[:n]))
}

func TestEmptyPacketIsNotTheEnd(t *testing.T) {
	a, b := pair(t)
	require.ErrorIs(t, a.Send(nil, nil), ErrEmptyPacket)
	sendRaw(t, a, nil, nil)
	require.NoError(t, a.Send([]byte("after"), nil))
	buf := make([]byte, 16)
	_, _, err := b.Recv(buf)
	require.ErrorIs(t, err, ErrEmptyPacket)
	n, _, err := b.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "after", string(buf[:n]))
}

func TestEmptyBufferReadsNothing(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.Send([]byte("x"), nil))
	_, _, err := b.Recv(nil)
	require.ErrorIs(t, err, ErrDataTruncated)
	n, _, err := b.Recv(make([]byte, 1))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestQueuedPacketsArriveBeforeTheEnd(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.Send([]byte("last"), nil))
	require.NoError(t, a.Close())
	buf := make([]byte, 16)
	n, _, err := b.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "last", string(buf[:n]))
	for range 2 {
		_, _, err = b.Recv(buf)
		require.Equal(t, io.EOF, err)
	}
	require.ErrorIs(t, b.Send([]byte("x"), nil), ErrPeerClosed)
}

func TestWhoSaysNothingMoreStillReads(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.Send([]byte("last"), nil))
	require.NoError(t, a.CloseWrite())
	require.ErrorIs(t, a.Send([]byte("x"), nil), ErrPeerClosed)
	buf := make([]byte, 16)
	n, _, err := b.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "last", string(buf[:n]))
	_, _, err = b.Recv(buf)
	require.Equal(t, io.EOF, err)
	require.NoError(t, b.Send([]byte("answer"), nil))
	require.NoError(t, b.Close())
	n, _, err = a.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "answer", string(buf[:n]))
	_, _, err = a.Recv(buf)
	require.Equal(t, io.EOF, err)
	require.NoError(t, a.Close())
	require.ErrorIs(t, a.CloseWrite(), os.ErrClosed)
}

// A peer sends packets and then closes its end before it has read all packets. The kernel reports ECONNRESET first, and afterwards delivers
// the packets that the peer sent. The last of these packets may say why the peer closed its end, so Recv must return this packet.
func TestPeerThatClosesWithoutReadingStillGetsItsLastWordIn(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, b.Send([]byte("never read"), nil))
	require.NoError(t, a.Send([]byte("goodbye"), nil))
	require.NoError(t, a.Close())
	buf := make([]byte, 16)
	n, _, err := b.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "goodbye", string(buf[:n]))
	_, _, err = b.Recv(buf)
	require.ErrorIs(t, err, ErrPeerClosed)
	require.ErrorIs(t, err, unix.ECONNRESET)
}

func TestSendIntoAClosedPeerRaisesNoSignal(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, b.Close())
	err := a.Send([]byte("x"), nil)
	require.ErrorIs(t, err, ErrPeerClosed)
	var call *os.SyscallError
	require.ErrorAs(t, err, &call)
	require.Equal(t, "sendmsg", call.Syscall)
}

func TestCloseWakesWhoeverWaits(t *testing.T) {
	a, _ := pair(t)
	fill(t, a)
	done := make(chan error, 2)
	go func() {
		_, _, err := a.Recv(make([]byte, 16))
		done <- err
	}()
	go func() { done <- a.Send([]byte("x"), nil) }()
	require.NoError(t, a.Close())
	for range 2 {
		require.ErrorIs(t, <-done, os.ErrClosed)
	}
	require.NoError(t, a.Close(), "closing again")
	require.ErrorIs(t, a.Send([]byte("x"), nil), os.ErrClosed)
	_, err := a.Peer()
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, a.SetDeadline(time.Time{}), os.ErrClosed)
}

func TestStalledPeerWithAFullBuffer(t *testing.T) {
	a, b := pair(t)
	sent := fill(t, a)

	require.NoError(t, a.SetWriteDeadline(time.Now().Add(-time.Second)))
	require.ErrorIs(t, a.Send([]byte("x"), nil), os.ErrDeadlineExceeded)

	require.NoError(t, a.SetWriteDeadline(time.Time{}))
	waiting := make(chan error, 1)
	go func() { waiting <- a.Send([]byte("x"), nil) }()
	require.NoError(t, a.SetWriteDeadline(time.Unix(1, 0)), "a deadline that is set while Send waits")
	require.ErrorIs(t, <-waiting, os.ErrDeadlineExceeded)

	require.NoError(t, a.SetWriteDeadline(time.Time{}))
	go func() { waiting <- a.Send([]byte("last"), nil) }()
	buf := make([]byte, maxPacket)
	for range sent {
		_, _, err := b.Recv(buf)
		require.NoError(t, err)
	}
	require.NoError(t, <-waiting, "the peer read again")
	n, _, err := b.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "last", string(buf[:n]))
}

func TestASenderKnowsHowMuchThePeerHasNotReceived(t *testing.T) {
	a, b := pair(t)
	unread := func() int {
		n, err := a.Unread()
		require.NoError(t, err)
		return n
	}
	require.Zero(t, unread())
	sent := fill(t, a)
	require.GreaterOrEqual(t, unread(), sent*4096)
	buf := make([]byte, maxPacket)
	for range sent {
		_, _, err := b.Recv(buf)
		require.NoError(t, err)
	}
	require.Zero(t, unread())
	require.NoError(t, a.Close())
	_, err := a.Unread()
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestReadDeadline(t *testing.T) {
	a, _ := pair(t)
	require.NoError(t, a.SetReadDeadline(time.Unix(1, 0)))
	_, _, err := a.Recv(make([]byte, 16))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// fill sends packets until the socket's buffer is full, and returns how many packets it has sent.
func fill(t *testing.T, c *Conn) int {
	t.Helper()
	for n := 0; ; n++ {
		if err := c.TrySend(make([]byte, 4096), nil); err != nil {
			require.ErrorIs(t, err, ErrWouldBlock)
			require.ErrorIs(t, err, unix.EAGAIN)
			return n
		}
	}
}

// sendRaw sends a packet that Send would refuse.
func sendRaw(t *testing.T, c *Conn, data []byte, fds []int) {
	t.Helper()
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	require.NoError(t, c.do(func(fd int) error { return unix.Sendmsg(fd, data, control, nil, unix.MSG_NOSIGNAL) }))
}

func BenchmarkRoundTrip(b *testing.B) {
	x, y := pair(b)
	buf := make([]byte, 4096)
	packet := make([]byte, 128)
	b.ReportAllocs()
	for b.Loop() {
		if err := x.Send(packet, nil); err != nil {
			b.Fatal(err)
		}
		if _, _, err := y.Recv(buf); err != nil {
			b.Fatal(err)
		}
	}
}
