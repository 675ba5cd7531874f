package seqpacket

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/spin"
)

func TestAGoroutineThatSpunInVainSpinsLessAndLessOften(t *testing.T) {
	if !spin.Begin() {
		t.Skip("on one CPU no goroutine spins")
	}
	spin.End()
	_, b := pair(t)
	b.in.buffers, b.in.once = NewBuffers(64), true
	require.NoError(t, b.raw.Read(b.in.attemptInto))
	var learnt spin.Adaptive
	for range 8 {
		require.True(t, b.nothingCame(b.spin()))
		if learnt.Worth() {
			learnt.Learn(false)
		}
		assert.Equal(t, learnt, b.in.spinner)
	}
}

func TestAPacketIsReceivedWhileAGoroutineSpinsOrSleeps(t *testing.T) {
	a, b := pair(t)
	buffers := NewBuffers(64)
	came := make(chan string)
	go func() {
		for range 100 {
			p, _, err := b.RecvSoonInto(buffers)
			if err != nil {
				came <- err.Error()
				return
			}
			came <- string(p.Data)
			p.Free()
		}
	}()
	for range 100 {
		require.NoError(t, a.Send([]byte("a packet"), nil))
		require.Equal(t, "a packet", <-came)
	}
}

func TestAPacketThatHasComeIsReceivedWithoutSpinning(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.Send([]byte("early"), nil))
	p, _, err := b.RecvSoonInto(NewBuffers(64))
	require.NoError(t, err)
	assert.Equal(t, "early", string(p.Data))
	assert.Equal(t, spin.Adaptive{}, b.in.spinner)
}

func TestAttemptsToReceiveGiveTheirBufferBack(t *testing.T) {
	_, b := pair(t)
	made := 0
	buffers := NewBuffers(64)
	fresh := buffers.free.New
	buffers.free.New = func() any {
		made++
		return fresh()
	}
	const tries = 1000
	for range tries {
		_, _, err := b.TryRecvInto(buffers)
		require.ErrorIs(t, err, ErrWouldBlock)
	}
	assert.Less(t, made, tries/2, "the race detector lets a pool lose some")
}

func TestCloseEndsAReceiveThatSpinsOrSleeps(t *testing.T) {
	for range 200 {
		a, b, err := Pair()
		require.NoError(t, err)
		ended := make(chan error)
		begun := make(chan struct{})
		go func() {
			close(begun)
			_, _, err := b.RecvSoonInto(NewBuffers(64))
			ended <- err
		}()
		<-begun
		require.NoError(t, b.Close())
		require.ErrorIs(t, <-ended, os.ErrClosed)
		require.NoError(t, a.Close())
	}
}
