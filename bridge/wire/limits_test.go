package wire_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
)

func TestWhatCannotBeReceivedIsNotSent(t *testing.T) {
	big := &wire.StatsReply{Stats: wire.ServiceStats{Pools: make([]wire.PoolStats, 1000)}}
	for i := range big.Stats.Pools {
		big.Stats.Pools[i].Pool.Name = strings.Repeat("n", 255)
	}
	before := []byte("before")
	for want, m := range map[string]any{
		"destroy: pl: expected unsigned integer up to 2^63-1, found 9223372036854775808": &wire.Destroy{Pool: 1 << 63},
		`get: nm: expected UTF-8, found "a\xff"`:                                         &wire.Get{Name: "a\xff"},
		"get: nm: expected string of at most 4096 bytes, found 4097 bytes":               &wire.Get{Name: strings.Repeat("n", 4097)},
		"dropped: bl: expected array of at most 1024 elements, found 1025":               &wire.Dropped{Blocks: make([]uint64, 1025)},
		"alloc: t.sh[1]: expected unsigned integer up to 2^63-1, found 18446744073709551615": &wire.Alloc{
			Tensor: wire.Tensor{Shape: []uint64{1, math.MaxUint64}}},
		"reply: l.x.d: expected binary of at most 4096 bytes, found 4097 bytes": &wire.GrantReply{
			Grant: wire.Grant{Export: &wire.Export{Data: make([]byte, 4097)}}},
		"reply: q: expected a request number, found 0": &wire.EmptyReply{},
	} {
		var got []byte
		var err error
		switch m := m.(type) {
		case wire.Request:
			got, err = wire.AppendRequest(before, 1, m)
		case *wire.EmptyReply:
			got, err = wire.AppendReply(before, 0, m)
		case wire.Reply:
			got, err = wire.AppendReply(before, 1, m)
		}
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, wire.CodeInvalid)
		require.Equal(t, before, got)
	}
	_, err := wire.AppendReply(nil, 1, big)
	require.ErrorIs(t, err, wire.CodeInvalid)
	require.ErrorContains(t, err, "a packet of at most 65536 bytes")
	_, err = wire.AppendError(nil, 0, &wire.Error{Code: wire.CodeBusy})
	require.ErrorIs(t, err, wire.CodeInvalid)
}

func TestErrorTextIsMadeToFit(t *testing.T) {
	for _, text := range []string{
		strings.Repeat("x", 4096), strings.Repeat("x", 100000), strings.Repeat("x", 4095) + "é", "bad \xff\xfe bytes",
		strings.Repeat("\xff", 4096), "",
	} {
		packet, err := wire.AppendError(nil, 9, &wire.Error{Code: wire.CodeInternal, Message: text})
		require.NoError(t, err)
		q, err := wire.DecodeReply(packet, new(wire.EmptyReply))
		require.Equal(t, uint32(9), q)
		got, ok := errors.AsType[*wire.Error](err)
		require.True(t, ok)
		require.True(t, utf8.ValidString(got.Message))
		require.LessOrEqual(t, len(got.Message), wire.MaxString)
		if utf8.ValidString(text) && len(text) <= wire.MaxString {
			require.Equal(t, text, got.Message)
		}
		packet, err = wire.AppendNotice(nil, &wire.Goodbye{Reason: wire.Error{Message: text}})
		require.NoError(t, err)
		_, err = wire.DecodeNotice(packet)
		require.NoError(t, err)
	}
}

func TestErrorsCarryTheirCode(t *testing.T) {
	err := error(&wire.Error{Code: wire.CodeBusy, Message: "leased"})
	require.ErrorIs(t, err, wire.CodeBusy)
	require.NotErrorIs(t, err, wire.CodeTimeout)
	require.EqualError(t, err, "busy: leased")
	require.Same(t, err, error(wire.AsError(fmt.Errorf("get: %w", err))))
	require.Equal(t, wire.CodeInternal, wire.AsError(fs.ErrNotExist).Code)
	require.Equal(t, &wire.Error{Code: wire.CodeStale, Message: "get: stale"}, wire.AsError(fmt.Errorf("get: %w", wire.CodeStale)))
}

func TestDecodingLeavesNothingOfWhatWasThere(t *testing.T) {
	reply := wire.GrantReply{Grant: wire.Grant{ID: 1 << 32, Buffer: 2, Generation: 3, Write: true, Pool: 7, Block: 300, BlockBytes: 4096, Bytes: 24,
		Tensor: wire.Tensor{DType: "float32", Shape: []uint64{2, 3}}, Export: &wire.Export{Data: []byte("where"), FDs: 1}}}
	want := wire.GrantReply{Grant: wire.Grant{ID: 1, Tensor: wire.Tensor{DType: "int8"}}}
	packet, err := wire.AppendReply(nil, 1, &want)
	require.NoError(t, err)
	_, err = wire.DecodeReply(packet, &reply)
	require.NoError(t, err)
	clear(packet)
	require.Equal(t, want, reply)
}
