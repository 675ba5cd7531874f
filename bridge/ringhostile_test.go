package bridge

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/shmring"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// scribble writes what it likes into what a ring's writer writes, while the reader is at it.
func scribble(words []byte, random *rand.Rand) {
	values := []uint64{0, 1, 8, 16, 24, 64, 4096, shmring.Size, shmring.Size + 8, 1 << 32, 1 << 63, ^uint64(0), ^uint64(7), random.Uint64()}
	value := values[random.IntN(len(values))]
	switch random.IntN(8) {
	case 0:
		binary.LittleEndian.PutUint64(words[0:], value)
	case 1:
		binary.LittleEndian.PutUint64(words[64:], value)
	case 2:
		binary.LittleEndian.PutUint64(words[128:], value)
	default:
		binary.LittleEndian.PutUint64(words[4096+8*random.IntN(64):], value)
	}
}

// Whatever a client writes, and whenever, nobody but itself is the worse for it.
func TestAClientThatScribblesIntoItsRingHarmsNobodyElse(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	keeper := dial(t, r.path)
	p := createPool(t, keeper, hostPool("p", 64<<20))
	ch := makeChannel(t, keeper, p, mempool.ChannelSpec{Capacity: 4, Full: "drop-oldest", ThroughService: true})
	ctx, cancel := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for i := uint64(0); ctx.Err() == nil; i++ {
			assert.NoError(t, sendFrame(context.WithoutCancel(ctx), p, ch, i, 64, mempool.FrameOptions{}))
		}
	})
	for round := range 20 {
		random := rand.New(rand.NewPCG(uint64(round), 1))
		c := dialRaw(t, r.path)
		c.ask(1, &wire.Hello{Versions: []uint64{1}, Features: []string{featureTimelines, featureChannels, featureRings}}, &wire.HelloReply{})
		c.send(2, &wire.Ring{})
		_, fds, err := c.conn.Recv(c.buf)
		require.NoError(t, err)
		files := takeFiles(fds, 2)
		words, err := unix.Mmap(int(files[1].Fd()), 0, shmring.FileSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(t, err)
		theirs, err := unix.Mmap(int(files[0].Fd()), 0, shmring.FileSize, unix.PROT_READ, unix.MAP_SHARED)
		require.NoError(t, err)
		closeFiles(files)
		c.ask(3, &wire.Open{Name: "p"}, &wire.PoolReply{})
		c.send(4, &wire.Subscribe{Channel: ch.info.ID, Credit: 64})
		require.NoError(t, c.conn.Send([]byte{packetBack}, nil))
		var over atomic.Bool
		var scribbling sync.WaitGroup
		scribbling.Go(func() {
			for !over.Load() {
				// mostly what keeps the session alive for a while: it has read everything
				binary.LittleEndian.PutUint64(words[64:], binary.LittleEndian.Uint64(theirs))
				if random.IntN(50) == 0 {
					scribble(words, random)
				}
				if random.IntN(50) == 0 {
					_ = c.conn.TrySend([]byte{[]byte{packetLook, packetBack, 0x80}[random.IntN(100)/49]}, nil)
				}
			}
		})
		time.Sleep(time.Duration(round%10) * time.Millisecond) // so long it has its way, or until it is cut off
		require.NoError(t, c.conn.Close())
		over.Store(true)
		scribbling.Wait()
		require.NoError(t, unix.Munmap(words))
		require.NoError(t, unix.Munmap(theirs))
	}
	cancel()
	publishing.Wait()
	_, err := keeper.Stats(t.Context())
	require.NoError(t, err)
}

// Every method of a client may be called while it is closed, and while its ring goes away.
func TestAClientWithARingIsClosedWhileManyUseIt(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	keeper := dial(t, r.path)
	createPool(t, keeper, hostPool("p", 64<<20))
	for round := range 30 {
		c, err := Dial(t.Context(), r.path)
		require.NoError(t, err)
		p, err := c.OpenPool(t.Context(), "p", 0)
		require.NoError(t, err)
		ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "c", Pool: p.Info().ID, Capacity: 4, Full: "drop-oldest", ThroughService: true})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var using sync.WaitGroup
		for range 3 {
			using.Go(func() {
				for {
					l, err := p.Allocate(ctx, mempool.Bytes(64), patience)
					if err != nil {
						assert.True(t, errors.Is(err, ErrClosed) || errors.Is(err, ErrDisconnected), "%v", err)
						return
					}
					if _, err := ch.Publish(ctx, l, mempool.FrameOptions{}); err != nil {
						return
					}
				}
			})
			using.Go(func() {
				for f, err := range ch.Frames(ctx, mempool.SubscribeOptions{Credit: 2}) {
					if err != nil || f.Release() != nil {
						return
					}
				}
			})
			using.Go(func() {
				for {
					if _, err := c.Stats(ctx); err != nil {
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(round%10) * time.Millisecond) // at any moment
		if round%2 == 0 {
			_ = c.conn.Conn.Close() // as if the connection was lost
		}
		_ = c.Close()
		using.Wait()
		assert.NoError(t, ctx.Err())
		cancel()
	}
}
