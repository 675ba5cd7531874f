package cuda_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestAStreamWaitsForAWordAndWritesAnother(t *testing.T) {
	c := context(t)
	needs(t, c.Device().SupportsStreamMemOps)
	ptr, err := c.Malloc(64)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.MFree(ptr)) }()
	require.NoError(t, c.CopyHtoD(ptr, make([]byte, 64)))
	waiter, writer := stream(t, c), stream(t, c)

	require.NoError(t, waiter.WaitValue64GEQ(ptr, 5))
	require.NoError(t, waiter.WriteValue64(ptr+8, 7))
	time.Sleep(20 * time.Millisecond)
	done, err := waiter.Query()
	require.NoError(t, err)
	assert.False(t, done, "nobody has written the word")

	require.NoError(t, writer.WriteValue64(ptr, 6))
	require.NoError(t, waiter.Synchronize())
	done, err = waiter.Query()
	require.NoError(t, err)
	assert.True(t, done)
	var words [16]byte
	require.NoError(t, c.CopyDtoH(words[:], ptr))
	assert.Equal(t, [16]byte{0: 6, 8: 7}, words)
}

func TestAnEventOrdersTwoStreams(t *testing.T) {
	c := context(t)
	needs(t, c.Device().SupportsStreamMemOps)
	ptr, err := c.Malloc(64)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.MFree(ptr)) }()
	require.NoError(t, c.CopyHtoD(ptr, make([]byte, 64)))
	first, second := stream(t, c), stream(t, c)
	e, err := c.NewEvent(cuda.EventSpec{})
	require.NoError(t, err)
	defer e.Close()

	require.NoError(t, first.WaitValue64GEQ(ptr, 1))
	require.NoError(t, e.Record(first))
	require.NoError(t, second.WaitEvent(e))
	require.NoError(t, second.WriteValue64(ptr+8, 1))
	done, err := e.Query()
	require.NoError(t, err)
	assert.False(t, done)

	third := stream(t, c)
	require.NoError(t, third.WriteValue64(ptr, 1))
	require.NoError(t, second.Synchronize())
	require.NoError(t, e.Synchronize())
	done, err = e.Query()
	require.NoError(t, err)
	assert.True(t, done)
}

func TestAWrappedStreamIsNotDestroyed(t *testing.T) {
	c := context(t)
	s := stream(t, c)
	w, err := c.WrapStream(s.Handle())
	require.NoError(t, err)
	require.NoError(t, w.Synchronize())
	require.NoError(t, w.Close())
	require.ErrorIs(t, w.Synchronize(), cuda.ErrClosed)
	require.NoError(t, s.Synchronize())
}

func TestEventsMeasureTime(t *testing.T) {
	c := context(t)
	s := stream(t, c)
	spec := cuda.EventSpec{Timing: true}
	start, err := c.NewEvent(spec)
	require.NoError(t, err)
	defer start.Close()
	end, err := c.NewEvent(spec)
	require.NoError(t, err)
	defer end.Close()
	require.NoError(t, start.Record(s))
	require.NoError(t, end.Record(s))
	require.NoError(t, end.Synchronize())
	d, err := end.ElapsedTime(start)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, d, time.Duration(0))
	assert.Less(t, d, time.Minute)
}

func TestAnEventThatRecordedNothingIsDone(t *testing.T) {
	c := context(t)
	e, err := c.NewEvent(cuda.EventSpec{})
	require.NoError(t, err)
	done, err := e.Query()
	require.NoError(t, err)
	assert.True(t, done)
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	require.ErrorIs(t, e.Record(nil), cuda.ErrClosed)
}

func TestOnlyInterprocessEventsCanBeExported(t *testing.T) {
	c := context(t)
	needs(t, c.Device().SupportsIPCEvents)
	plain, err := c.NewEvent(cuda.EventSpec{})
	require.NoError(t, err)
	defer plain.Close()
	_, err = plain.IPCHandle()
	require.Error(t, err)
	e, err := c.NewEvent(cuda.EventSpec{Interprocess: true})
	require.NoError(t, err)
	defer e.Close()
	h, err := e.IPCHandle()
	require.NoError(t, err)
	assert.NotZero(t, h)
	_, err = c.OpenEvent(h)
	require.ErrorIs(t, err, cuda.ErrInvalidContext, "it is opened in other processes only")
}
