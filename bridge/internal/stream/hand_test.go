package stream

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestTheReleaseOfAFrameThatWasGivenUpHasATypedError(t *testing.T) {
	r := start(t)
	from, err := r.channel.Consume(t.Context(), mempool.SubscribeOptions{})
	require.NoError(t, err)
	defer from.Leave()
	r.publish(t)
	came, err := from.Take(t.Context())
	require.NoError(t, err)
	frame, hand := new(session.Lease), new(Hand)
	require.NoError(t, from.Adopt(t.Context(), frame, hand, came))
	require.NoError(t, from.native.Release(&hand.hand, shmchannel.Fence{})) // behind the lease
	err = frame.Release(t.Context(), false)
	require.ErrorIs(t, err, mempool.ErrReleased)
	require.ErrorContains(t, err, `the subscription of channel "c" has given the frame up`)
}
