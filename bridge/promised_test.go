package bridge

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// This test checks limits of docs/protocol.md on a real server. Other tests check the remaining limits: the test vectors check the limits
// of packets, and some limits have their own tests.
func TestWhatIsBeyondALimitIsAnsweredAsThePageSays(t *testing.T) {
	_, path := serve(t, server.Config{})
	r, _ := streaming(t, path)
	r.Ask(4, &wire.Create{Name: "p", Kind: "host", MaxBytes: 1 << 20}, &wire.PoolReply{})
	dimensions := make([]uint64, 33)
	for i := range dimensions {
		dimensions[i] = 1
	}
	for name, request := range map[string]wire.Request{
		"dimensions of a tensor":           &wire.Alloc{Pool: 1, Tensor: wire.Tensor{DType: "uint8", Shape: dimensions}},
		"a long pool name":                 &wire.Create{Name: strings.Repeat("n", 256), Kind: "host", MaxBytes: 4096},
		"no pool name":                     &wire.Create{Kind: "host", MaxBytes: 4096},
		"a control character":              &wire.MakeChannel{Name: "a\nb", Pool: 1, Capacity: 1},
		"a long channel name":              &wire.Find{Name: strings.Repeat("n", 256)},
		"a long buffer name":               &wire.Get{Name: strings.Repeat("n", 256)},
		"no frames that a channel keeps":   &wire.MakeChannel{Name: "c", Pool: 1},
		"more frames that a channel keeps": &wire.MakeChannel{Name: "c", Pool: 1, Capacity: 1025},
	} {
		r.Send(5, request)
		assert.ErrorIs(t, r.Reply(5, &wire.EmptyReply{}), wire.CodeInvalid, name)
	}
	for i := range 256 {
		r.Ask(6, &wire.MakeChannel{Name: fmt.Sprint(i), Pool: 1, Capacity: 1}, &wire.ChannelReply{})
	}
	r.Refused(7, &wire.MakeChannel{Name: "more", Pool: 1, Capacity: 1}, wire.CodeLimit)
	join := &wire.Join{Channel: 1, Role: string(service.Consumer)}
	for range mempool.MaxMembers {
		r.Ask(8, join, &wire.JoinReply{})
	}
	r.Refused(9, join, wire.CodeLimit)
}

func TestStatsCountTheServicesOwnSessions(t *testing.T) {
	svc, path := serve(t, server.Config{})
	own, err := svc.OpenSession(mempool.Self(), "", nil)
	require.NoError(t, err)
	r := greeted(t, path)
	var st wire.StatsReply
	r.Ask(2, &wire.StatsRequest{}, &st)
	assert.EqualValues(t, 2, st.Stats.Sessions)
	own.End(mempool.SessionLeft, "", nil)
	r.Ask(3, &wire.StatsRequest{}, &st)
	assert.EqualValues(t, 1, st.Stats.Sessions)
}

func TestStatsSayWhatATrimCameToInTheEnd(t *testing.T) {
	_, path := serve(t, server.Config{})
	r := greeted(t, path)
	r.Ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 1 << 20}, &wire.PoolReply{})
	var lease wire.GrantReply
	r.Ask(3, &wire.Alloc{Pool: 1, Tensor: bytesTensor(8)}, &lease)
	r.Ask(4, &wire.Release{Lease: lease.Grant.ID}, &wire.EmptyReply{})
	r.Send(5, &wire.Trim{Pool: 1})
	recalls, codes := inAnyOrder[*wire.Recall](r, 1, 5)
	require.Empty(t, codes[5])
	var trim wire.TrimReply
	r.Ask(5, &wire.Trim{Pool: 1}, &trim)
	assert.Zero(t, trim.Bytes, "the client maps it")
	var st wire.StatsReply
	r.Ask(6, &wire.StatsRequest{}, &st)
	assert.Equal(t, lease.Grant.BlockBytes, st.Stats.Pools[0].Held)
	r.Ask(7, &wire.Dropped{Blocks: recalls[0].Blocks}, &wire.EmptyReply{})
	r.Ask(8, &wire.StatsRequest{}, &st)
	assert.Zero(t, st.Stats.Pools[0].Reserved)
}
