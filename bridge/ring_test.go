package bridge

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/shmring"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// rung is a raw client with a ring, which the caller writes into as it likes.
func rung(t *testing.T, path string) (*raw, shmring.Files) {
	t.Helper()
	r := dialRaw(t, path)
	r.ask(1, &wire.Hello{Versions: []uint64{1}, Features: []string{featureRings}}, &wire.HelloReply{})
	r.send(2, &wire.Ring{})
	n, fds, err := r.conn.Recv(r.buf)
	require.NoError(t, err)
	h, err := wire.DecodeHeader(r.buf[:n])
	require.NoError(t, err)
	var reply wire.RingReply
	require.NoError(t, h.DecodeReply(&reply))
	require.EqualValues(t, shmring.Size, reply.Size)
	files := takeFiles(fds, 2)
	require.Len(t, files, 2)
	t.Cleanup(func() { closeFiles(files) })
	return r, shmring.Files{Reads: files[0], Writes: files[1]}
}

func TestASessionHasOneRing(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	r, _ := rung(t, path)
	r.refused(3, &wire.Ring{}, wire.CodeExists)
}

func TestASessionWithoutTheFeatureHasNoRing(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	greeted(t, path).refused(3, &wire.Ring{}, wire.CodeUnsupported)
}

func TestARingThatNobodyUsesChangesNothing(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	r, _ := rung(t, path)
	r.ask(3, &wire.StatsRequest{}, &wire.StatsReply{})
}

// What a hostile client writes into its ring ends its session, and nobody else's.
func TestACorruptRingEndsTheSessionOfItsWriter(t *testing.T) {
	for name, spoil := range map[string]func(words []byte){
		"its head":   func(words []byte) { words[0] = 3 },
		"its tail":   func(words []byte) { words[64] = 8 },
		"a packet":   func(words []byte) { words[4096], words[4104], words[0] = 8, 0xc1, 16 },
		"its length": func(words []byte) { words[4096], words[4100], words[0] = 0xff, 0xff, 64 },
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, ServerConfig{}, defaultLimits)
			other := dial(t, r.path)
			c, files := rung(t, r.path)
			words, err := unix.Mmap(int(files.Writes.Fd()), 0, shmring.FileSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			require.NoError(t, err)
			defer unix.Munmap(words)
			require.NoError(t, c.conn.Send([]byte{packetBack}, nil))
			spoil(words)
			_ = c.conn.Send([]byte{packetLook}, nil) // it may have looked already, and be gone
			if name == "its tail" {                  // which only matters to who sends
				require.NoError(t, c.conn.Send([]byte{packetLook}, nil))
				words[4096], words[0] = 0, 8 // over the socket again
				c.send(3, &wire.StatsRequest{})
			}
			assert.ErrorIs(t, c.last(), wire.CodeProtocol)
			_, err = other.Stats(t.Context())
			require.NoError(t, err)
			r.log.await(t, "a session ended")
		})
	}
}

// Else a client that never stops writing would hold up the end of the server.
func TestWhatARingStillHasIsNotCarriedOutAfterTheEndOfTheSession(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	c, files := rung(t, r.path)
	ring, err := shmring.Open(files)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ring.Close()) })
	require.NoError(t, c.conn.Send([]byte{packetBack}, nil))
	words, err := unix.Mmap(int(files.Reads.Fd()), 0, shmring.FileSize, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer unix.Munmap(words)
	for (*atomic.Uint64)(unsafe.Pointer(&words[128])).Load() == 0 { // until it sleeps; it is not woken
		runtime.Gosched()
	}
	for i := range 10 {
		packet, err := wire.AppendRequest(nil, uint32(3+i), &wire.Create{Name: fmt.Sprint(i), Kind: "host", MaxBytes: 4096})
		require.NoError(t, err)
		ok, _, err := ring.Put(packet)
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.NoError(t, r.Close())
	assert.LessOrEqual(t, len(r.svc.Stats().Pools), 1)
}

func TestNobodyWaitsForARingThatAnotherHasAskedFor(t *testing.T) {
	s := imitate(t)
	c := s.dial(t)
	c.ring.has = true
	done := make(chan error, 2)
	open := func() {
		_, err := c.OpenChannel(context.Background(), "c", 0)
		done <- err
	}
	go open()
	_, r := s.request(t)
	require.IsType(t, &wire.Ring{}, r)
	go open()
	_, r = s.request(t)
	require.IsType(t, &wire.Find{}, r)
	require.NoError(t, s.conn.Close())
	for range 2 {
		require.ErrorIs(t, <-done, ErrDisconnected)
	}
}

func TestAClientThatLeavesIsTakenAtItsLastWord(t *testing.T) {
	svc, path := serve(t, ServerConfig{})
	keeper := dial(t, path)
	p := createPool(t, keeper, hostPool("p", 1<<20))
	c, err := Dial(t.Context(), path)
	require.NoError(t, err)
	theirs, err := c.OpenPool(t.Context(), "p", 0)
	require.NoError(t, err)
	c.useRing(t.Context())
	l := allocate(t, theirs, 64)
	publish(t, l, "kept")
	kept, err := keeper.Get(t.Context(), "kept", LeaseOptions{})
	require.NoError(t, err)
	require.NoError(t, l.Release(false)) // through the ring, without an answer
	require.NoError(t, c.Close())
	require.NoError(t, kept.Release(false))
	all, err := p.Allocate(t.Context(), mempool.Bytes(1<<20), patience) // once everything is back
	require.NoError(t, err)
	require.NoError(t, all.Release(false))
	assert.Zero(t, svc.Stats().Names)
}

func TestWithoutDescriptorsForARingTheSocketDoes(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	var filler []*os.File
	none := unix.Rlimit{Cur: uint64(highest(t) + 1), Max: old.Max}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		filler = append(filler, f)
	}
	c.useRing(context.Background())
	closeFiles(filler)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	assert.Nil(t, c.conn.out)
	ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "c", Pool: p.Info().ID, Capacity: 4, ThroughService: true})
	require.NoError(t, err)
	_, err = ch.Publish(t.Context(), allocate(t, p, 64), mempool.FrameOptions{})
	require.NoError(t, err)
}

// highest is the highest descriptor that is in use.
func highest(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	most := 0
	for _, e := range entries {
		n := 0
		for _, digit := range e.Name() {
			n = 10*n + int(digit-'0')
		}
		most = max(most, n)
	}
	return most
}
