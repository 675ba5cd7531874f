package stream

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestTheReleaseOfAFrameThatWasGivenUpHasATypedError(t *testing.T) {
	r := start(t)
	from, frame, hand := r.frame(t)
	require.NoError(t, from.shm.Release(&hand.hand, shmchannel.Fence{})) // behind the lease
	err := frame.Release(t.Context(), false)
	require.ErrorIs(t, err, mempool.ErrReleased)
	require.ErrorContains(t, err, `the subscription of channel "c" has given the frame up`)
}
