package seqpacket

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRecvIntoTakesABufferForAPacketAndNotForTheWait(t *testing.T) {
	a, b := pair(t)
	taken := make(chan struct{}, 16)
	buffers := NewBuffers(8)
	fresh := buffers.free.New
	buffers.free.New = func() any {
		taken <- struct{}{}
		return fresh()
	}
	require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Millisecond)))
	p, _, err := b.RecvInto(buffers)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Nil(t, p)
	require.Nil(t, b.in.packet)
	require.Nil(t, b.in.data, "a connection that waits holds no buffer")

	require.NoError(t, b.SetReadDeadline(time.Time{}))
	for _, s := range []string{"one", "two"} {
		require.NoError(t, a.Send([]byte(s), nil))
		p, fds, err := b.RecvInto(buffers)
		require.NoError(t, err)
		require.Nil(t, fds)
		require.Equal(t, s, string(p.Data))
		p.Free()
	}
	require.NotEmpty(t, taken)

	require.NoError(t, a.Send([]byte("too long for it"), nil))
	_, _, err = b.RecvInto(buffers)
	require.ErrorIs(t, err, ErrDataTruncated)
	require.NoError(t, a.Send([]byte("a buffer"), nil))
	p, _, err = b.RecvInto(buffers)
	require.NoError(t, err)
	require.Equal(t, "a buffer", string(p.Data))
	p.Free()
}

func TestRecvIntoWakesForAPacketThatComesLater(t *testing.T) {
	a, b := pair(t)
	buffers := NewBuffers(64)
	came := make(chan string)
	go func() {
		p, _, err := b.RecvInto(buffers)
		if err != nil {
			came <- err.Error()
			return
		}
		defer p.Free()
		came <- string(p.Data)
	}()
	require.NoError(t, a.Send([]byte("late"), nil))
	require.Equal(t, "late", <-came)
}
