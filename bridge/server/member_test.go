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
	n := service.MemberCame{Channel: 1, Role: service.Consumer, Slot: 2, Member: 3, File: file}
	want := wire.Member{Channel: 1, Role: "consumer", Slot: 2, Member: 3, Export: wire.Export{FDs: 1}}
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
