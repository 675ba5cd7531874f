package seqpacket

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAWatchEndsItsWaitWhenItIsOnAndAPacketWaits(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, b.Watch())
	buffers := NewBuffers(64)
	waited := make(chan error)
	wait := func() { go func() { waited <- b.AwaitPacket() }() }
	wait()
	require.NoError(t, a.Send([]byte("one"), nil))
	require.NoError(t, <-waited)

	b.SetWatched(false)
	packet, _, err := b.TryRecvInto(buffers)
	require.NoError(t, err)
	assert.Equal(t, "one", string(packet.Data))
	packet.Free()
	_, _, err = b.TryRecvInto(buffers)
	require.ErrorIs(t, err, ErrWouldBlock)
	wait()
	require.NoError(t, a.Send([]byte("two"), nil))
	packet, _, err = b.RecvInto(buffers) // receiving needs no watch
	require.NoError(t, err)
	assert.Equal(t, "two", string(packet.Data))
	packet.Free()
	require.NoError(t, a.Send([]byte("three"), nil))
	select {
	case err := <-waited:
		t.Fatal("the watch was off", err)
	default:
	}
	b.SetWatched(true)
	require.NoError(t, <-waited)
}

func TestTheEndOfAConnectionEndsTheWaitOfItsWatch(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, b.Watch())
	waited := make(chan error)
	go func() { waited <- b.AwaitPacket() }()
	require.NoError(t, a.Close())
	require.NoError(t, <-waited)

	_, c := pair(t)
	require.NoError(t, c.Watch())
	c.SetWatched(false)
	go func() { waited <- c.AwaitPacket() }()
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-waited, os.ErrClosed)
	c.SetWatched(true)
}
