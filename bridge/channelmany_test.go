package bridge

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
)

func TestAThousandConsumersOfAChannelJoinAndEachGetsEveryFrame(t *testing.T) {
	const each, sessions = 63, 16
	r := start(t, server.Config{}, unhurried)
	a := sharing(t, r.path)
	pool, channel := a.makeStream(1<<16, wire.MakeChannel{Capacity: 4})
	from := a.produce(pool, channel)
	var sinks []*sink
	for range sessions {
		p := sharing(t, r.path)
		p.findStream()
		for range each {
			s := p.consume(wire.Join{Channel: channel})
			session.CloseFiles([]*os.File{s.config.Roster, s.config.Sequencer, s.config.Own}) // they are mapped; the test may have only 4,096 descriptors
			sinks = append(sinks, s)
		}
	}
	for range 2 {
		from.alloc(100)
		from.publish(7, shmchannel.Fence{})
	}
	require.Len(t, a.others, len(sinks), "the producer's session was told of each")
	for _, s := range sinks {
		for n := range uint64(2) {
			f := s.next()
			assert.Equal(t, n+1, f.Number)
			assert.EqualValues(t, 7, s.read(f))
			require.NoError(t, s.Release(f, shmchannel.Fence{}))
		}
	}
}
