package bridge

import (
	"context"
	"fmt"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestALeaseReachesItsOwnBytesOnly(t *testing.T) {
	ctx := t.Context()
	_, path := serve(t, server.Config{})
	p := createPool(t, dial(t, path), hostPool("p", 1<<16))
	l := allocate(t, p, 5)
	require.NoError(t, l.CopyFrom(ctx, 0, []byte("hello")))
	require.NoError(t, l.CopyFrom(ctx, 5, nil))
	require.NoError(t, l.Fill(ctx, 1, 3, '-'))
	require.NoError(t, l.Fill(ctx, 5, 0, '!'))
	got := make([]byte, 4)
	require.NoError(t, l.CopyTo(ctx, got, 1))
	assert.Equal(t, "---o", string(got))
	for _, err := range []error{
		l.CopyFrom(ctx, 0, make([]byte, 6)), l.CopyFrom(ctx, 6, nil), l.CopyFrom(ctx, ^uint64(0), []byte{1}),
		l.CopyTo(ctx, make([]byte, 5), 1), l.CopyTo(ctx, nil, 6), l.Fill(ctx, 0, 6, 0), l.Fill(ctx, 2, ^uint64(0), 0),
	} {
		assert.ErrorIs(t, err, ErrInvalid)
	}
	b, err := l.Bytes(ctx)
	require.NoError(t, err)
	assert.Equal(t, "h---o", string(b))
	assert.Equal(t, 5, cap(b))
	at, err := l.Pointer(ctx)
	require.NoError(t, err)
	assert.NotZero(t, at)
	assert.Equal(t, mempool.Bytes(5), l.Tensor())
	publish(t, l, "x")
	assert.ErrorIs(t, l.CopyFrom(ctx, 0, []byte{1}), ErrInvalid, "published")
	assert.ErrorIs(t, l.Fill(ctx, 0, 1, 0), ErrInvalid)
	require.NoError(t, l.CopyTo(ctx, got, 0))
	release(t, l)
	_, err = l.Bytes(ctx)
	assert.ErrorIs(t, err, ErrReleased)
	_, err = l.Pointer(ctx)
	assert.ErrorIs(t, err, ErrReleased)
	assert.ErrorIs(t, l.CopyFrom(ctx, 0, nil), ErrReleased)
	assert.ErrorIs(t, l.Fill(ctx, 0, 0, 0), ErrReleased)
}

func TestAReaderCannotWriteMemoryOfTheCPU(t *testing.T) {
	ctx := t.Context()
	_, path := serve(t, server.Config{})
	writer, reader := dial(t, path), dial(t, path)
	p := createPool(t, writer, hostPool("p", 1<<16))
	l := allocate(t, p, 5)
	require.NoError(t, l.CopyFrom(ctx, 0, []byte("hello")))
	require.NoError(t, l.Publish(ctx, mempool.Publication{Name: "x"}))
	got, err := reader.Get(ctx, "x", LeaseOptions{})
	require.NoError(t, err)
	b, err := got.Bytes(ctx)
	require.NoError(t, err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a fault of this goroutine becomes a panic
	assert.Panics(t, func() { b[0] = '!' })
	assert.Equal(t, "hello", string(b))
	assert.Regexp(t, `^lease 2: uint8\[5\], 5 bytes, read$`, fmt.Sprint(got))
	assert.Equal(t, `pool "p" of kind host, at most 65536 bytes`, fmt.Sprint(p))
	ch := makeChannel(t, writer, p, mempool.ChannelSpec{})
	assert.Equal(t, `channel "c": broadcast of 8 frames, policy block`, fmt.Sprint(ch))
	assert.Equal(t, `publisher of frames of 512 bytes in channel "c": broadcast of 8 frames, policy block`, fmt.Sprint(publisher(t, ch, 512)))
	sub, err := writer.TrySubscribe(t.Context(), "c", SubscribeOptions{})
	require.NoError(t, err)
	assert.Equal(t, `subscription to channel "c": broadcast of 8 frames, policy block`, fmt.Sprint(sub))
	sub.Close()
	assert.Regexp(t, `^client, session \d+$`, fmt.Sprint(writer))
	release(t, got)
	assert.Regexp(t, `released$`, got.String())
}

func TestWhoReadsContentThatIsPromisedWaitsForIt(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	clock, ready := unreached(t, c)
	l := allocate(t, p, 5)
	m := memoryOf(t, l)
	require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: "x", Completion: mempool.Completion{Ready: &ready}}))
	got, err := c.TryGet(t.Context(), "x", LeaseOptions{})
	require.NoError(t, err)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, noBytes := got.Bytes(cancelled)
	_, noPointer := got.Pointer(cancelled)
	for _, err := range []error{got.WaitOn(cancelled, mempool.CPU), got.CopyTo(cancelled, make([]byte, 5), 0), noBytes, noPointer} {
		require.ErrorIs(t, err, context.Canceled)
	}
	read := make(chan string)
	go func() {
		text := make([]byte, 5)
		assert.NoError(t, got.CopyTo(context.Background(), text, 0), "it waits")
		read <- string(text)
	}()
	require.NoError(t, m.CopyFrom(0, []byte("hello")))
	require.NoError(t, clock.Reach(ready))
	assert.Equal(t, "hello", <-read)
	assert.ErrorIs(t, clock.Reach(mempool.Fence{Timeline: clock.Timeline() + 1, Word: 0, Value: 1}), ErrInvalid)
	require.NoError(t, c.Close())
	assert.ErrorIs(t, clock.Reach(ready), ErrClosed)
}
