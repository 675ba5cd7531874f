package mempool

import (
	"maps"
	"math"
	"math/bits"
	"slices"

	"github.com/poolbridge/poolbridge/internal/typed"
)

// Tensor describes how the elements of an array lie in a buffer.
type Tensor struct {
	DType DType
	// Shape has the number of elements along each dimension. A scalar has an empty Shape.
	Shape []uint64
	// Strides has one stride for each dimension, counted in elements. A stride may be negative. If Strides is nil, the array is
	// C-contiguous.
	Strides []int64
	// ByteOffset is the offset of the element [0, …, 0] from the beginning of the buffer.
	ByteOffset uint64
	// Arrays are the arrays of a buffer or frame of several arrays: the Tensor itself then describes all its bytes. [Pack] makes such a
	// Tensor. Arrays is nil for one array.
	Arrays []NamedTensor
	// LayoutBytes says how many bytes at the end of the buffer describe its Arrays, for the clients that lease the buffer; 0: the buffer has
	// one array. The client that allocates the buffer sets LayoutBytes. The Tensor in a list has LayoutBytes and no Arrays.
	LayoutBytes uint64
	// Metadata are texts about the Arrays of a buffer, such as the model and its revision. The client that allocates the buffer writes
	// them behind the arrays. Keys have at most 4,096 bytes, and all metadata fit into the layout with the names. Equal ignores Metadata,
	// and a frame has none: see its Meta.
	Metadata map[string]string
}

// Bytes returns the description of n plain bytes.
func Bytes(n uint64) Tensor { return Tensor{DType: Uint8, Shape: []uint64{n}} }

// Clone returns a copy that shares nothing with t.
func (t Tensor) Clone() Tensor {
	t.Shape, t.Strides, t.Arrays = slices.Clone(t.Shape), slices.Clone(t.Strides), slices.Clone(t.Arrays)
	t.Metadata = maps.Clone(t.Metadata)
	for i := range t.Arrays {
		t.Arrays[i].Tensor = t.Arrays[i].Tensor.Clone()
	}
	return t
}

// Equal reports whether t and u describe the same array, or the same arrays.
func (t Tensor) Equal(u Tensor) bool {
	return t.DType == u.DType && t.ByteOffset == u.ByteOffset && t.LayoutBytes == u.LayoutBytes && slices.Equal(t.Shape, u.Shape) && slices.Equal(t.Strides, u.Strides) &&
		slices.EqualFunc(t.Arrays, u.Arrays, func(a, b NamedTensor) bool { return a.Name == b.Name && a.Tensor.Equal(b.Tensor) })
}

// Validate returns an error if t does not describe an array that could lie in some buffer.
//
// Errors: [ErrInvalid].
func (t Tensor) Validate() error {
	_, err := t.Extent()
	return err
}

// Elements returns the number of elements, the product of the shape.
//
// Errors: [ErrInvalid] if the number is greater than 2⁶³−1.
func (t Tensor) Elements() (uint64, error) {
	n := uint64(1)
	if slices.Contains(t.Shape, 0) {
		return 0, nil
	}
	for _, d := range t.Shape {
		hi, lo := bits.Mul64(n, d)
		if hi != 0 || lo > math.MaxInt64 {
			return 0, typed.Errorf(ErrInvalid, "shape %v has more than 2^63-1 elements", t.Shape)
		}
		n = lo
	}
	return n, nil
}

// Extent returns the number of bytes that a buffer must have to hold t: the end of the element that is farthest from the buffer's
// beginning.
//
// Errors: [ErrInvalid] for an unknown element type, too many dimensions, strides that do not match the shape, an offset
// that is not a multiple of the element size, an element before the start of the buffer, sizes that overflow, or Arrays that Pack would
// refuse.
func (t Tensor) Extent() (uint64, error) {
	if t.Arrays != nil {
		if err := t.validateArrays(); err != nil {
			return 0, err
		}
	} else if len(t.Metadata) > 0 {
		return 0, typed.Errorf(ErrInvalid, "metadata without Arrays: only a buffer of several arrays has metadata, and one array can be such a buffer by Pack")
	}
	if t.LayoutBytes > 0 && (!t.isAllBytes() || t.LayoutBytes > min(t.Shape[0], MaxLayoutBytes)) {
		return 0, typed.Errorf(ErrInvalid, "a layout of %d bytes in %s%v: a buffer with a layout is uint8 with one dimension, and has at most %d bytes of layout",
			t.LayoutBytes, t.DType, t.Shape, MaxLayoutBytes)
	}
	item := t.DType.ItemSize()
	if item == 0 {
		return 0, typed.Errorf(ErrInvalid, "unknown element type %q (known: %s)", string(t.DType), listed(dtypes))
	}
	if len(t.Shape) > MaxDims {
		return 0, typed.Errorf(ErrInvalid, "a tensor has at most %d dimensions, this one has %d", MaxDims, len(t.Shape))
	}
	if t.Strides != nil && len(t.Strides) != len(t.Shape) {
		return 0, typed.Errorf(ErrInvalid, "%d strides for %d dimensions", len(t.Strides), len(t.Shape))
	}
	if t.ByteOffset%item != 0 || t.ByteOffset > math.MaxInt64 {
		return 0, typed.Errorf(ErrInvalid, "byte offset %d is not a multiple of the %d bytes of a %s", t.ByteOffset, item, t.DType)
	}
	n, err := t.Elements()
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return t.ByteOffset, nil
	}
	low, high := uint64(0), n-1 // distance of the farthest elements before and after [0, …, 0]
	if t.Strides != nil {
		if low, high, err = t.reach(); err != nil {
			return 0, err
		}
	}
	if hi, before := bits.Mul64(low, item); hi != 0 || before > t.ByteOffset {
		return 0, typed.Errorf(ErrInvalid, "strides %v reach before the start of the buffer", t.Strides)
	}
	hi, after := bits.Mul64(high+1, item)
	end, carry := bits.Add64(after, t.ByteOffset, 0)
	if hi != 0 || carry != 0 || end > math.MaxInt64 {
		return 0, typed.Errorf(ErrInvalid, "a tensor of shape %v, strides %v and offset %d is larger than 2^63-1 bytes",
			t.Shape, t.Strides, t.ByteOffset)
	}
	return end, nil
}

// reach returns how many elements t extends before and after its element [0, …, 0]. t must have elements and strides.
func (t Tensor) reach() (low, high uint64, err error) {
	for i, d := range t.Shape {
		stride := t.Strides[i]
		side, size := &high, uint64(stride)
		if stride < 0 {
			side, size = &low, -uint64(stride)
		}
		hi, span := bits.Mul64(d-1, size)
		sum, carry := bits.Add64(*side, span, 0)
		if hi != 0 || carry != 0 || sum > math.MaxInt64 {
			return 0, 0, typed.Errorf(ErrInvalid, "strides %v of shape %v overflow", t.Strides, t.Shape)
		}
		*side = sum
	}
	return low, high, nil
}
