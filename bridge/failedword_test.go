package bridge

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

// failures is how many times the tests of this file fail a fence: about four times as often as a timeline has words.
const failures = 2000

// failed makes a fence for the function `publish`, fails the fence after publish has returned, and frees the fence's word.
func failed(t testing.TB, c *Client, reason string, publish func(mempool.Completion)) {
	t.Helper()
	clock, ready := unreached(t, c)
	publish(mempool.Completion{Ready: &ready})
	require.NoError(t, clock.Fail(ready, reason))
	require.NoError(t, clock.Free(ready.Word))
}

// readers are leases of failed content, by the number in the content's reason.
type readers map[int]*Lease

func (of readers) check(t testing.TB) {
	t.Helper()
	assert.Len(t, of, failures/10)
	for n, reader := range of {
		gaveUp(t, reader.Check(t.Context()), fmt.Sprintf("its producer says: reason %d", n))
		release(t, reader)
		assert.ErrorIs(t, reader.Check(t.Context()), ErrReleased)
	}
}

func TestWordsOfFailedNamedContentAreUsedAgainAndOldReadersGetEachReason(t *testing.T) {
	_, path := serve(t, server.Config{})
	producer, consumer := dial(t, path), dial(t, path)
	p := createPool(t, producer, hostPool("p", 4<<20))
	old := make(readers)
	for n := range failures {
		failed(t, producer, fmt.Sprintf("reason %d", n), func(c mempool.Completion) {
			l := allocate(t, p, 16)
			require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: "x", Replace: true, Completion: c}))
			if n%10 == 0 {
				reader, err := consumer.TryGet(t.Context(), "x", LeaseOptions{})
				require.NoError(t, err)
				old[n] = reader
			}
			release(t, l)
		})
	}
	old.check(t)
}

func TestWordsOfFailedFramesAreUsedAgainAndOldReadersGetEachReason(t *testing.T) {
	for _, way := range []string{"leases", "loans"} {
		t.Run(way, func(t *testing.T) {
			s := pair(t, hostPool("p", 4<<20), mempool.ChannelSpec{Capacity: 4, Full: mempool.DropOldest})
			from := s.follow(t, mempool.SubscribeOptions{})
			p := publisher(t, s.from, 16)
			old := make(readers)
			for n := range failures {
				var f *Frame
				failed(t, s.producer, fmt.Sprintf("reason %d", n), func(c mempool.Completion) {
					o, err := mempool.FrameOptions{Completion: c}, error(nil)
					if way == "loans" {
						_, err = p.Publish(t.Context(), loan(t, p), o)
					} else {
						_, err = s.from.Publish(t.Context(), allocate(t, s.pool, 16), o)
					}
					require.NoError(t, err)
					f, err = from.next(t.Context())
					require.NoError(t, err)
				})
				if n%10 == 0 {
					old[n] = f.Lease
				} else {
					gaveUp(t, f.Lease.Check(t.Context()), fmt.Sprintf("reason %d", n))
					require.NoError(t, f.Release())
				}
			}
			old.check(t)
		})
	}
}

func TestWordsOfFencesThatFailedUnpublishedAreUsedAgain(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	for range failures {
		failed(t, c, "no light", func(mempool.Completion) {})
	}
}

func TestFailedContentThatIsStillPublishedTakesAWordUntilItIsGone(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 4<<20))
	for n := range mempool.TimelineWords {
		failed(t, c, "no light", func(o mempool.Completion) {
			l := allocate(t, p, 16)
			require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: fmt.Sprint(n), Completion: o}))
			release(t, l)
		})
	}
	clock, err := c.Clock(t.Context())
	require.NoError(t, err)
	_, err = clock.Word(t.Context())
	require.ErrorIs(t, err, ErrLimit)
	assert.ErrorContains(t, err, "512 by content that has failed")
	require.NoError(t, c.Unpublish(t.Context(), "7"))
	clock, ready := unreached(t, c)
	l := allocate(t, p, 16)
	require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: "good", Completion: mempool.Completion{Ready: &ready}}))
	reader, err := c.TryGet(t.Context(), "good", LeaseOptions{})
	require.NoError(t, err)
	assert.False(t, clock.Past(ready))
	require.NoError(t, clock.Reach(ready))
	require.NoError(t, reader.CopyTo(t.Context(), make([]byte, 16), 0))
	release(t, reader)
	release(t, l)
}
