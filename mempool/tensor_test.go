package mempool

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExtentIsOnePastTheFarthestByte(t *testing.T) {
	for name, c := range map[string]struct {
		tensor Tensor
		want   uint64
	}{
		"a scalar is one element":                    {Tensor{DType: Float64}, 8},
		"a scalar behind an offset":                  {Tensor{DType: Int16, ByteOffset: 6}, 8},
		"plain bytes":                                {Bytes(7), 7},
		"no bytes":                                   {Bytes(0), 0},
		"C-contiguous":                               {Tensor{DType: Float32, Shape: []uint64{3, 5}}, 60},
		"a zero axis has no elements":                {Tensor{DType: Float32, Shape: []uint64{3, 0, 5}}, 0},
		"a zero axis, but an offset":                 {Tensor{DType: Float32, Shape: []uint64{0}, ByteOffset: 8}, 8},
		"a zero axis hides a product that overflows": {Tensor{DType: Float32, Shape: []uint64{1 << 62, 1 << 62, 0}}, 0},
		"a zero axis hides strides that overflow":    {Tensor{DType: Float32, Shape: []uint64{0, 9}, Strides: []int64{1, math.MinInt64}}, 0},
		"Fortran order":                              {Tensor{DType: Uint8, Shape: []uint64{3, 5}, Strides: []int64{1, 3}}, 15},
		"padded rows end with the last element":      {Tensor{DType: Uint8, Shape: []uint64{3, 5}, Strides: []int64{8, 1}}, 21},
		"a broadcast axis takes no room":             {Tensor{DType: Int64, Shape: []uint64{1000, 2}, Strides: []int64{0, 1}}, 16},
		"reversed, from its last element":            {Tensor{DType: Int32, Shape: []uint64{4}, Strides: []int64{-1}, ByteOffset: 12}, 16},
		"one axis forward and one back":              {Tensor{DType: Uint8, Shape: []uint64{2, 3}, Strides: []int64{3, -1}, ByteOffset: 2}, 6},
		"an axis of one may stride anywhere":         {Tensor{DType: Uint8, Shape: []uint64{1, 2}, Strides: []int64{math.MinInt64, 1}}, 2},
		"the largest":                                {Bytes(math.MaxInt64), math.MaxInt64},
		"complex":                                    {Tensor{DType: Complex128, Shape: []uint64{2}}, 32},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.tensor.Extent()
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
			assert.NoError(t, c.tensor.Validate())
		})
	}
}

func TestTheErrorForAnUnknownElementTypeListsThoseThatAreKnown(t *testing.T) {
	_, err := Tensor{DType: "float23"}.Extent()
	assert.EqualError(t, err, `invalid argument: unknown element type "float23" (known: bool, int8, int16, int32, int64, `+
		`uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64, complex64, complex128, `+
		`float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu, float4_e2m1fn_x2)`)
	assert.Len(t, itemSizes, len(dtypes))
	for _, d := range dtypes {
		assert.Positive(t, d.ItemSize(), d)
	}
}

func TestATensorThatNoBufferHoldsIsInvalid(t *testing.T) {
	many := make([]uint64, MaxDims+1)
	for name, tensor := range map[string]Tensor{
		"unknown element type":             {DType: "float8"},
		"no element type":                  {},
		"too many dimensions":              {DType: Uint8, Shape: many},
		"fewer strides than dimensions":    {DType: Uint8, Shape: []uint64{2, 2}, Strides: []int64{1}},
		"strides of a scalar":              {DType: Uint8, Strides: []int64{1}},
		"offset inside an element":         {DType: Float32, ByteOffset: 2},
		"offset past 2^63":                 {DType: Uint8, ByteOffset: 1 << 63},
		"too many elements":                {DType: Uint8, Shape: []uint64{1 << 32, 1 << 32}},
		"elements past 2^63 bytes":         {DType: Float64, Shape: []uint64{1 << 61}},
		"the last byte is one too far":     {DType: Uint8, Shape: []uint64{math.MaxInt64}, ByteOffset: 1},
		"shape that wraps to a small size": {DType: Uint8, Shape: []uint64{1 << 63, 2, 1}},
		"reversed without an offset":       {DType: Int32, Shape: []uint64{2}, Strides: []int64{-1}},
		"reversed one element too far":     {DType: Int32, Shape: []uint64{4}, Strides: []int64{-1}, ByteOffset: 8},
		"strides that overflow":            {DType: Uint8, Shape: []uint64{3}, Strides: []int64{math.MaxInt64}},
		"strides whose sum overflows":      {DType: Uint8, Shape: []uint64{2, 2}, Strides: []int64{math.MaxInt64, math.MaxInt64}},
		"the most negative stride":         {DType: Uint8, Shape: []uint64{2}, Strides: []int64{math.MinInt64}},
		"a span that overflows in bytes":   {DType: Float64, Shape: []uint64{2}, Strides: []int64{math.MaxInt64}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tensor.Extent()
			require.ErrorIs(t, err, ErrInvalid)
			assert.ErrorIs(t, tensor.Validate(), ErrInvalid)
		})
	}
}

func TestElementsAreTheProductOfTheShape(t *testing.T) {
	n, err := Tensor{Shape: []uint64{2, 3, 4}}.Elements()
	require.NoError(t, err)
	assert.EqualValues(t, 24, n)
}

func TestACloneSharesNothing(t *testing.T) {
	a := Tensor{DType: Uint8, Shape: []uint64{2}, Strides: []int64{1}}
	b := a.Clone()
	b.Shape[0], b.Strides[0] = 9, 9
	assert.Equal(t, Tensor{DType: Uint8, Shape: []uint64{2}, Strides: []int64{1}}, a)
}

// The test compares the extent with the end of every element.
func FuzzExtentHoldsEveryElement(f *testing.F) {
	f.Add(uint64(3), uint64(4), int64(4), int64(1), uint64(0))
	f.Add(uint64(3), uint64(4), int64(-4), int64(-1), uint64(44))
	f.Add(uint64(0), uint64(4), int64(-4), int64(1<<62), uint64(8))
	f.Fuzz(func(t *testing.T, d0, d1 uint64, s0, s1 int64, offset uint64) {
		tensor := Tensor{DType: Int32, Shape: []uint64{d0 % 8, d1 % 8}, Strides: []int64{s0, s1}, ByteOffset: offset}
		extent, err := tensor.Extent()
		if err != nil {
			return
		}
		ends := []uint64{tensor.ByteOffset}
		for i := range tensor.Shape[0] {
			for j := range tensor.Shape[1] {
				at := int64(offset) + 4*(int64(i)*s0+int64(j)*s1)
				if at < 0 || uint64(at)+4 > extent {
					t.Fatalf("element %d, %d lies at %d of %d", i, j, at, extent)
				}
				ends = append(ends, uint64(at)+4)
			}
		}
		if slices.Max(ends) != extent {
			t.Fatalf("%d bytes for a tensor that ends at %d", extent, slices.Max(ends))
		}
	})
}
