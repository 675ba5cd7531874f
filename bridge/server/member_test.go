package server

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func TestTheNoticeOfAMemberThatHasLeftComesWithoutAFile(t *testing.T) {
	r := start(t, Config{}, unhurried)
	client := greeted(t, r.path)
	server := r.only(t)
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	n := service.MemberCame{Channel: 1, Role: service.Consumer, Seat: 2, Member: 3, File: file}
	want := wire.MemberCame{Channel: 1, Role: "consumer", Seat: 2, Member: 3, Export: wire.Export{FDs: 1}}
	for range 2 {
		server.sendMember(n)
		length, fds, err := client.Conn.Recv(client.Buffer)
		require.NoError(t, err)
		h, err := wire.DecodeHeader(client.Buffer[:length])
		require.NoError(t, err)
		notice, err := h.DecodeNotice()
		require.NoError(t, err)
		assert.Equal(t, &want, notice)
		assert.EqualValues(t, want.Export.FDs, fds.Len())
		require.NoError(t, fds.Close())
		_ = file.Close() // in the second round, the file is closed already
		want.Export.FDs = 0
	}
}

func TestByeRemovesTheNamesAndKeepsTheLeases(t *testing.T) {
	r := start(t, Config{}, unhurried)
	p := createPool(t, dial(t, r.path), hostPool("p", 4096))
	client := greeted(t, r.path)
	client.Ask(2, &wire.Open{Pool: p.Info().ID}, &wire.PoolReply{})
	var reply wire.GrantReply
	client.Ask(3, &wire.Alloc{Pool: p.Info().ID, Tensor: bytesTensor(1)}, &reply)
	client.Ask(4, &wire.Publish{Lease: reply.Grant.ID, Name: "x"}, &wire.EmptyReply{})
	client.Ask(5, &wire.Bye{}, &wire.EmptyReply{})
	client.Refused(6, &wire.Get{Name: "x"}, wire.CodeNotFound)
	var stats wire.StatsReply
	client.Ask(7, &wire.StatsRequest{}, &stats)
	assert.EqualValues(t, 1, stats.Stats.Leases)
	client.Ask(8, &wire.Release{Lease: reply.Grant.ID}, &wire.EmptyReply{})
}
