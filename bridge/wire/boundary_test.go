package wire_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/poolbridge/poolbridge/bridge/wire"
)

// Where the form of a value changes with its size, another implementation reads what was written, and so do we.
func TestValuesAtTheBoundariesOfTheirForms(t *testing.T) {
	var unsigned []uint64
	for _, n := range []uint64{1, 1 << 7, 1 << 8, 1 << 16, 1 << 32, 1 << 63} {
		unsigned = append(unsigned, n-1, min(n, math.MaxInt64))
	}
	signed := []int64{math.MinInt64, math.MaxInt64}
	for _, n := range []int64{0, 32, 1 << 7, 1 << 15, 1 << 31} {
		signed = append(signed, n-1, n, -n, -n-1)
	}
	for _, n := range []int{1, 15, 16, 31, 32, 255, 256, wire.MaxString} {
		alloc := &wire.Alloc{Pool: uint64(n), Tensor: wire.Tensor{DType: strings.Repeat("x", n), Shape: unsigned, Strides: signed}}
		packet, err := wire.AppendRequest(nil, uint32(n), alloc)
		require.NoError(t, err)
		var theirs struct {
			T struct {
				DType   string   `msgpack:"dt"`
				Shape   []uint64 `msgpack:"sh"`
				Strides []int64  `msgpack:"st"`
			} `msgpack:"t"`
		}
		require.NoError(t, msgpack.Unmarshal(packet, &theirs))
		require.Equal(t, alloc.Tensor, wire.Tensor{DType: theirs.T.DType, Shape: theirs.T.Shape, Strides: theirs.T.Strides})
		_, ours, err := wire.DecodeRequest(packet)
		require.NoError(t, err)
		require.Equal(t, alloc, ours)

		publish := &wire.Publish{Lease: 1, Name: "x", Event: bytes.Repeat([]byte("y"), n)}
		packet, err = wire.AppendRequest(nil, 1, publish)
		require.NoError(t, err)
		var event struct {
			Event []byte `msgpack:"ev"`
		}
		require.NoError(t, msgpack.Unmarshal(packet, &event))
		require.Equal(t, publish.Event, event.Event)
		_, ours, err = wire.DecodeRequest(packet)
		require.NoError(t, err)
		require.Equal(t, publish, ours)
	}
	dropped := &wire.Dropped{}
	for _, n := range []int{15, 16, wire.MaxElements} {
		for len(dropped.Blocks) < n {
			dropped.Blocks = append(dropped.Blocks, uint64(len(dropped.Blocks)))
		}
		packet, err := wire.AppendRequest(nil, 0, dropped)
		require.NoError(t, err)
		var theirs struct {
			Blocks []uint64 `msgpack:"bl"`
		}
		require.NoError(t, msgpack.Unmarshal(packet, &theirs))
		require.Equal(t, dropped.Blocks, theirs.Blocks)
		_, ours, err := wire.DecodeRequest(packet)
		require.NoError(t, err)
		require.Equal(t, dropped, ours)
	}
}
