package wire_test

import (
	"runtime/metrics"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/poolbridge/poolbridge/bridge/wire"
)

func seed(f *testing.F) {
	v := readVectors(f)
	for _, list := range [][]vector{v.Valid, v.Accepted, v.Invalid} {
		for _, v := range list {
			if len(v.Packet) < 1024 {
				f.Add([]byte(v.Packet))
			}
		}
	}
}

// allocated returns how many bytes the process has allocated.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// slack is how many bytes the fuzzer's own goroutines may allocate while a packet is decoded.
const slack = 4 << 20

// FuzzCheckAgainstDecoder compares Check with package msgpack. If Check accepts a packet, msgpack must decode the whole packet without
// large allocations. Check must refuse the same packet if its last byte is missing or if it has one more byte.
func FuzzCheckAgainstDecoder(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, packet []byte) {
		if _, err := wire.Check(packet); err != nil {
			require.ErrorIs(t, err, wire.ErrProtocol)
			return // the library could use up all memory for a packet that Check refuses
		}
		before := allocated()
		var v map[string]any
		err := msgpack.Unmarshal(packet, &v)
		require.NoError(t, err)
		require.Less(t, allocated()-before, uint64(200*len(packet)+slack))

		require.Less(t, depth(v), wire.MaxDepth+1)
		again, err := msgpack.Marshal(v)
		require.NoError(t, err)
		if len(again) <= wire.MaxPacket { // the library writes an integer in an interface in its longest format, so the packet may grow
			_, err = wire.Check(again)
			require.NoError(t, err)
		}
		_, err = wire.Check(packet[:len(packet)-1])
		require.ErrorIs(t, err, wire.ErrProtocol)
		_, err = wire.Check(append(packet[:len(packet):len(packet)], 0))
		require.ErrorIs(t, err, wire.ErrProtocol)
	})
}

func depth(v any) int {
	deepest := 0
	switch v := v.(type) {
	case map[string]any:
		for _, x := range v {
			deepest = max(deepest, depth(x))
		}
	case []any:
		for _, x := range v {
			deepest = max(deepest, depth(x))
		}
	default:
		return 0
	}
	return 1 + deepest
}

// FuzzCheckAcceptsPlainMaps tests that Check accepts every packet that package msgpack writes, if the packet is within the limits of the
// protocol.
func FuzzCheckAcceptsPlainMaps(f *testing.F) {
	f.Add("nm", "camera/0", []byte("d"), uint64(1), int64(-1), true, uint8(3))
	f.Fuzz(func(t *testing.T, key, text string, data []byte, u uint64, i int64, b bool, nest uint8) {
		var v any = []any{text, data, u, i, b, nil, 1.5}
		for range nest % (wire.MaxDepth - 1) {
			v = map[string]any{key: v, key + "'": u}
		}
		packet, err := msgpack.Marshal(map[string]any{"x" + key: v})
		require.NoError(t, err)
		_, err = wire.Check(packet)
		fits := len(packet) <= wire.MaxPacket && len(key)+1 <= wire.MaxString && len(text) <= wire.MaxString &&
			len(data) <= wire.MaxBinary && utf8Valid(key, text)
		require.Equal(t, fits, err == nil, "%v", err)
	})
}

// FuzzDecodeRequest tests that decoding does not panic and makes no large allocations. If decoding succeeds, FuzzDecodeRequest encodes the
// message, decodes the result, and tests that the second message is the same as the first.
func FuzzDecodeRequest(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, packet []byte) {
		before := allocated()
		q, r, err := wire.DecodeRequest(packet)
		require.Less(t, allocated()-before, uint64(64*len(packet)+slack))
		if err != nil {
			require.Nil(t, r)
			require.Contains(t, []wire.Code{wire.CodeProtocol, wire.CodeUnsupported}, wire.AsError(err).Code)
			return
		}
		first, err := wire.AppendRequest(nil, q, r)
		require.NoError(t, err)
		require.LessOrEqual(t, len(first), len(packet))
		q2, r2, err := wire.DecodeRequest(first)
		require.NoError(t, err)
		require.Equal(t, q, q2)
		require.Equal(t, r, r2)
		second, err := wire.AppendRequest(nil, q2, r2)
		require.NoError(t, err)
		require.Equal(t, first, second)
	})
}

// FuzzDecodeFromService does the same as FuzzDecodeRequest, for replies and notices.
func FuzzDecodeFromService(f *testing.F) {
	seed(f)
	ops := []string{"hello", "open", "get", "trim", "stats", "destroy", "timeline", "channel", "join"}
	f.Fuzz(func(t *testing.T, packet []byte) {
		if n, err := wire.DecodeNotice(packet); err == nil {
			first, err := wire.AppendNotice(nil, n)
			require.NoError(t, err)
			n2, err := wire.DecodeNotice(first)
			require.NoError(t, err)
			require.Equal(t, n, n2)
		}
		for _, op := range ops {
			v := vector{Direction: "reply", Type: op, Packet: packet}
			first, err := recode(v)
			if err != nil {
				require.ErrorIs(t, err, wire.ErrProtocol)
				continue
			}
			v.Packet = first
			second, err := recode(v)
			require.NoError(t, err)
			require.Equal(t, first, second)
		}
	})
}

func utf8Valid(texts ...string) bool {
	for _, s := range texts {
		if !utf8.ValidString(s) {
			return false
		}
	}
	return true
}

// FuzzBufferLayout checks that a layout that DecodeBufferLayout accepts is that of the same arrays and metadata when it is encoded again, and
// that none needs much memory.
func FuzzBufferLayout(f *testing.F) {
	arrays := make([]wire.NamedTensor, 70)
	for i := range arrays {
		arrays[i] = wire.NamedTensor{Name: string(rune('a' + i)), Tensor: wire.Tensor{DType: "int16", Shape: []uint64{2, 3}, Offset: uint64(256 * i)}}
	}
	for _, n := range []int{0, 1, 64, 70} {
		for _, metadata := range []map[string]string{nil, {"": ""}, {"model": "llama", "long": strings.Repeat("ä", 3000), "z": "\x00"}} {
			layout, err := wire.AppendBufferLayout(nil, metadata, arrays[:n])
			require.NoError(f, err)
			f.Add(layout)
		}
	}
	f.Fuzz(func(t *testing.T, layout []byte) {
		before := allocated()
		metadata, arrays, err := wire.DecodeBufferLayout(layout)
		require.Less(t, allocated()-before, uint64(200*len(layout)+slack))
		if err != nil {
			require.ErrorIs(t, err, wire.ErrProtocol)
			return
		}
		again, err := wire.AppendBufferLayout(nil, metadata, arrays)
		require.NoError(t, err)
		said, decoded, err := wire.DecodeBufferLayout(again)
		require.NoError(t, err)
		require.Equal(t, arrays, decoded)
		require.Equal(t, metadata, said)
	})
}
