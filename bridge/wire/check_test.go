package wire_test

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
)

func TestCheckAllocatesNothing(t *testing.T) {
	for _, v := range readVectors(t).Valid {
		n := testing.AllocsPerRun(10, func() { wire.Check(v.Packet) })
		require.Zero(t, n, v.Name)
	}
}

func TestDeclaredLengthsAreNotBelieved(t *testing.T) {
	// The byte 0xc6 declares a binary of 1.5 GiB. Without Check, package msgpack would allocate 1.5 GiB.
	packet := []byte("\x82\xa1o\xa3get\xa2nm\xc6\x60\x00\x00\x00")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := wire.DecodeRequest(packet)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, wire.ErrProtocol)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

func TestDeepNestingDoesNotCrash(t *testing.T) {
	for _, open := range []string{"\x91", "\x81\xa1a", "\xdc\x00\x01"} {
		packet := "\x81\xa1o" + strings.Repeat(open, (wire.MaxPacket-4)/len(open))
		_, err := wire.Check([]byte(packet))
		require.ErrorIs(t, err, wire.ErrProtocol)
		require.ErrorContains(t, err, "nested deeper than 8")
	}
}

func TestHeaderOfAPacketThatFailsLaterCanBeAnswered(t *testing.T) {
	for name, packet := range map[string]string{
		"trailing bytes":    "\x83\xa1o\xa4open\xa1q\x07\xa2nm\xa1a\x00",
		"cut short":         "\x83\xa1o\xa4open\xa1q\x07\xa2nm\xa5a",
		"wrong type":        "\x83\xa1o\xa4open\xa1q\x07\xa2nm\x01",
		"missing key":       "\x82\xa1o\xa3get\xa1q\x07",
		"unknown operation": "\x82\xa1o\xa3fly\xa1q\x07",
		"no operation":      "\x81\xa1q\x07",
	} {
		t.Run(name, func(t *testing.T) {
			q, r, err := wire.DecodeRequest([]byte(packet))
			require.Error(t, err)
			require.Nil(t, r)
			require.Equal(t, uint32(7), q)
		})
	}
}

func TestUnknownOperationIsNotMalformed(t *testing.T) {
	q, _, err := wire.DecodeRequest([]byte("\x83\xa1o\xa3fly\xa1q\x07\xa1n\x01"))
	require.Equal(t, uint32(7), q)
	require.ErrorIs(t, err, wire.CodeUnsupported)
	require.NotErrorIs(t, err, wire.ErrProtocol)
	require.Equal(t, &wire.Error{Code: wire.CodeUnsupported, Message: `unknown operation "fly"`}, wire.AsError(err))
}

func TestUnknownNoticeIsNotMalformed(t *testing.T) {
	_, err := wire.DecodeNotice([]byte("\x81\xa1n\xa5howdy"))
	require.ErrorIs(t, err, wire.CodeUnsupported)
	require.NotErrorIs(t, err, wire.ErrProtocol)
}

func TestReplyToTrimIsNoNotice(t *testing.T) {
	packet, err := wire.AppendReply(nil, 3, &wire.TrimReply{Bytes: 5})
	require.NoError(t, err)
	h, err := wire.DecodeHeader(packet)
	require.NoError(t, err)
	require.Equal(t, uint32(3), h.Q)
	require.Empty(t, h.Notice)
	_, err = h.DecodeNotice()
	require.ErrorIs(t, err, wire.ErrProtocol)
}

func TestEveryPrefixIsRefused(t *testing.T) {
	for _, v := range readVectors(t).Valid {
		step := max(1, len(v.Packet)/200)
		for n := 0; n < len(v.Packet); n += step {
			_, err := wire.Check(v.Packet[:n])
			require.ErrorIs(t, err, wire.ErrProtocol, "%s: %d bytes", v.Name, n)
		}
	}
}

func TestFaultsSayWhere(t *testing.T) {
	for packet, want := range map[string]string{
		"":                                   "malformed packet: at byte 0: empty packet",
		"\x90":                               "malformed packet: at byte 0: expected a map, found array",
		"\x81\x01\x01":                       "malformed packet: at byte 1: expected a string as key, found unsigned integer",
		"\x82\xa1o\xa1a\xa1o\xa1b":           `malformed packet: at byte 5: duplicate key "o"`,
		"\x81\xa1o\xd4\x01\x00":              "malformed packet: at byte 3: extension type",
		"\x81\xa1o\x07":                      "o: expected string, found unsigned integer",
		"\x82\xa1o\xa3get\xa2nm\xc4\x01a":    "get: nm: expected string, found binary",
		"\x82\xa1o\xa7destroy\xa2pl\xff":     "destroy: pl: expected unsigned integer up to 2^63-1, found -1",
		"\x82\xa1o\xa7destroy\xa2px\x01":     "destroy: pl: expected a value, found none",
		"\x82\xa1o\xa7dropped\xa2bl\x91\xc0": "dropped: bl[0]: expected unsigned integer up to 2^63-1, found nil",
		"\x83\xa1o\xa5alloc\xa2pl\x01\xa1t\x82\xa2dt\xa1f\xa2sh\x92\x01\xc2": "alloc: t.sh[1]: expected unsigned integer up to 2^63-1, found boolean",
	} {
		_, _, err := wire.DecodeRequest([]byte(packet))
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, wire.ErrProtocol)
		require.Equal(t, &wire.Error{Code: wire.CodeProtocol, Message: want}, wire.AsError(err))
	}
}

func TestKeysOfManyBytesAreCompared(t *testing.T) {
	long := bytes.Repeat([]byte("k"), 300)
	packet := []byte{0x82}
	for _, last := range []byte("ab") {
		packet = append(packet, 0xda, 1, 45)
		packet = append(append(packet, long...), last, 0x01)
	}
	packet[3] = 45 // 0x012d = 301 bytes
	_, err := wire.Check(packet)
	require.NoError(t, err)
	packet[len(packet)-2] = 'a'
	_, err = wire.Check(packet)
	require.ErrorContains(t, err, "duplicate key")
}
