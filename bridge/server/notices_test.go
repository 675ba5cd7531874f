package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool/service"
)

func TestNoticesComeInOrderAndTakeRoomForThoseThatWait(t *testing.T) {
	q := notices{wake: make(chan struct{}, 1)}
	notice := func(i int) service.Notice { return service.Recall{Blocks: []uint64{uint64(i)}} }
	require.Nil(t, q.next())
	for i := range 3 {
		require.True(t, q.add(notice(i), 4))
	}
	for i := range 10_000 {
		require.True(t, q.add(notice(i+3), 4))
		require.Equal(t, notice(i), q.next())
	}
	require.True(t, q.add(notice(10_003), 4))
	require.False(t, q.add(notice(10_004), 4), "four wait")
	for i := range 4 {
		require.Equal(t, notice(10_000+i), q.next())
	}
	require.Nil(t, q.next())
	assert.Less(t, cap(q.list), 32)
	assert.Len(t, q.wake, 1, "the goroutine that sends them is woken once")
}
