package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/tests/harness"
)

func TestASessionThatIsTooOldGetsNoPartOfABlock(t *testing.T) {
	svc, path := serve(t, Config{})
	pool := createPool(t, dial(t, path), hostPool("p", 1<<16))
	c, _ := harness.Streaming(t, path)
	var whole wire.GrantReply
	c.Ask(4, &wire.Open{Pool: pool.Info().ID}, &wire.PoolReply{})
	c.Ask(5, &wire.Alloc{Pool: pool.Info().ID, Tensor: bytesTensor(4096)}, &whole)
	for name, offset := range map[string]uint64{"first": 0, "later": 512} {
		var part wire.GrantReply
		c.Ask(6, &wire.AllocRange{Lease: whole.Grant.ID, Offset: offset, Tensor: bytesTensor(8)}, &part)
		assert.Equal(t, offset, part.Grant.Base)
		c.Ask(7, &wire.Publish{Lease: part.Grant.ID, Name: name}, &wire.PublishReply{})
	}
	old := harness.Greeted(t, path)
	old.Ask(2, &wire.Open{Pool: pool.Info().ID}, &wire.PoolReply{})
	old.Ask(3, &wire.Get{Name: "first"}, &wire.GrantReply{})
	before := svc.Stats().Leases
	old.Refused(4, &wire.Get{Name: "later"}, wire.CodeUnsupported)
	old.Refused(5, &wire.AllocRange{Lease: whole.Grant.ID, Tensor: bytesTensor(8)}, wire.CodeUnsupported)
	require.Equal(t, before, svc.Stats().Leases, "it has no lease")
}
