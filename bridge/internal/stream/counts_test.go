package stream

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestCountsOfVeryManyChannelsAreBounded(t *testing.T) {
	var all tallies
	of := func(channel uint64) *member {
		counts := func() shmchannel.Counts { return shmchannel.Counts{Frames: channel} }
		return &member{channel: mempool.ChannelIdentity{ID: channel}, role: shmchannel.ConsumerRole, counts: counts}
	}
	all.join(of(1))
	for id := range uint64(3 * mostTallies) {
		m := of(id + 2)
		all.join(m)
		all.leave(m)
		all.leave(m)
	}
	counts := all.all()
	assert.LessOrEqual(t, len(counts), mostTallies)
	assert.EqualValues(t, 1, counts[0].Received, "the client takes part in this one")
	assert.EqualValues(t, 3*mostTallies+1, counts[len(counts)-1].Received)
}
