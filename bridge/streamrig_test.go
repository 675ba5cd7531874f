package bridge

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// kinds runs a test of streams for each kind of memory: host memory, and device memory if the machine has a GPU.
func kinds(t *testing.T, f func(t *testing.T, spec mempool.PoolSpec)) {
	for _, kind := range []mempool.Kind{mempool.Host, mempool.Device} {
		t.Run(string(kind), func(t *testing.T) {
			if err := kind.Probe(""); err != nil {
				t.Skip(err)
			}
			f(t, mempool.PoolSpec{Name: "p", Kind: kind, MaxBytes: 64 << 20})
		})
	}
}

// awaitReclaimed waits until a service has no leases and no buffers.
func awaitReclaimed(t testing.TB, svc *service.Service) {
	t.Helper()
	eventually(t, func() bool { st := svc.Stats(); return st.Leases == 0 && st.Buffers == 0 })
}

func makeChannel(t testing.TB, c *Client, p *Pool, spec mempool.ChannelSpec) *Channel {
	t.Helper()
	spec.Pool = p.Info().ID
	if spec.Name == "" {
		spec.Name = "c"
	}
	ch, err := c.CreateChannel(context.Background(), spec)
	require.NoError(t, err)
	return ch
}

// frameOf returns the content of a frame: words of 8 bytes that count up from n in steps of 8.
func frameOf(n uint64, size int) []byte {
	b := make([]byte, size&^7)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], n+uint64(i))
	}
	return b
}

// sendFrame sends a frame of size bytes with the content that frameOf makes from n.
func sendFrame(ctx context.Context, p *Pool, ch *Channel, n uint64, size int, o mempool.FrameOptions) error {
	return sendFrameBy(ctx, ch.Publish, p, n, size, o)
}

// trySendFrame is like sendFrame, but does not wait for room in the channel.
func trySendFrame(ctx context.Context, p *Pool, ch *Channel, n uint64, size int) error {
	return sendFrameBy(ctx, ch.TryPublish, p, n, size, mempool.FrameOptions{})
}

type publishing = func(context.Context, *Lease, mempool.FrameOptions) (uint64, error)

func sendFrameBy(ctx context.Context, publish publishing, p *Pool, n uint64, size int, o mempool.FrameOptions) error {
	b := frameOf(n, size)
	l, err := p.Allocate(ctx, mempool.Bytes(uint64(len(b))))
	if err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	if err := l.CopyFrom(context.Background(), 0, b); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if o.Meta == nil {
		o.Meta = map[string]any{"n": fmt.Sprint(n)}
	}
	_, err = publish(ctx, l, o)
	return err
}

// verify checks that a frame has content that sendFrame has written, and returns the argument n of sendFrame.
func verify(f *Frame) (n uint64, err error) {
	b := make([]byte, f.Lease.Grant().Bytes)
	if err := f.Lease.CopyTo(context.Background(), b, 0); err != nil {
		return 0, err
	}
	if _, err := fmt.Sscan(fmt.Sprint(f.Meta["n"]), &n); err != nil {
		return 0, fmt.Errorf("frame %d says %q: %w", f.Seq, f.Meta, err)
	}
	for i := 0; i < len(b); i += 8 {
		if got := binary.LittleEndian.Uint64(b[i:]); got != n+uint64(i) {
			return n, fmt.Errorf("frame %d, number %d: %d at byte %d of %d, not %d", f.Seq, n, got, i, len(b), n+uint64(i))
		}
	}
	return n, nil
}

// take takes want frames and returns their contents.
func take(t testing.TB, ch *Channel, o mempool.SubscribeOptions, want int) (numbers []uint64) {
	t.Helper()
	for f, err := range ch.Frames(context.Background(), o) {
		require.NoError(t, err)
		n, err := verify(f)
		require.NoError(t, err)
		require.NoError(t, f.Release())
		if numbers = append(numbers, n); len(numbers) == want {
			break
		}
	}
	return numbers
}

// inAnyOrder receives packets until all `requests` are answered and at least `notices` notices of type N have come. It returns these
// notices, and the error code of each answer: "" means success.
func inAnyOrder[N wire.Notice](r *raw, notices int, requests ...uint32) (came []N, codes map[uint32]wire.Code) {
	r.Helper()
	codes = make(map[uint32]wire.Code)
	for len(came) < notices || len(codes) < len(requests) {
		packet, err := r.Recv()
		require.NoError(r, err)
		h, err := wire.DecodeHeader(packet)
		require.NoError(r, err)
		if h.Q == 0 {
			n, err := h.DecodeNotice()
			require.NoError(r, err)
			if want, ok := n.(N); ok {
				came = append(came, want)
			}
			continue
		}
		require.Contains(r, requests, h.Q)
		codes[h.Q] = ""
		if failure, ok := errors.AsType[*wire.Error](h.DecodeReply(&wire.EmptyReply{})); ok {
			codes[h.Q] = failure.Code
		}
	}
	return came, codes
}

// openStream connects a client for a child, and opens the pool "p" and the channel "c".
func openStream(ctx context.Context) (*Client, *Pool, *Channel, error) {
	c, err := Dial(ctx, os.Getenv("POOLBRIDGE_SOCKET"))
	if err != nil {
		return nil, nil, nil, err
	}
	p, err := c.OpenPool(ctx, "p")
	if err != nil {
		return nil, nil, nil, err
	}
	ch, err := c.TryOpenChannel(ctx, "c")
	return c, p, ch, err
}
