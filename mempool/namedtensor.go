package mempool

import (
	"math"

	"github.com/poolbridge/poolbridge/internal/typed"
)

// NamedTensor is one of several arrays that lie in one buffer.
type NamedTensor struct {
	Name   string // 1 to 255 bytes of UTF-8 without control characters
	Tensor Tensor // where the array lies in the buffer; it has no Arrays of its own
}

// arrayAlignment is the alignment of the arrays that Pack places. JAX and CUDA use arrays in place whose addresses are multiples of it.
const arrayAlignment = 256

// Pack returns the description of a buffer or frame of several arrays. It places the arrays one after the other, each at a multiple of 256
// bytes, and ignores the ByteOffset of each Tensor.
//
// Errors: [ErrInvalid] for no array, two arrays of one name, strides, or an array that [Tensor.Validate] refuses.
func Pack(arrays ...NamedTensor) (Tensor, error) {
	packed, end := make([]NamedTensor, len(arrays)), uint64(0)
	for i, a := range arrays {
		if a.Tensor.Strides != nil {
			return Tensor{}, typed.Errorf(ErrInvalid, "array %q has strides: Pack places arrays that are C-contiguous", a.Name)
		}
		a.Tensor.ByteOffset = (end + arrayAlignment - 1) &^ (arrayAlignment - 1)
		var err error
		if end, err = a.Tensor.Extent(); err != nil {
			return Tensor{}, typed.Errorf(ErrInvalid, "array %q: %v", a.Name, err)
		}
		packed[i] = a
	}
	t := Bytes(end)
	t.Arrays = packed
	return t, t.validateArrays()
}

// Array returns the description of the array with this name. ok is false if there is none.
func (t Tensor) Array(name string) (array Tensor, ok bool) {
	for _, a := range t.Arrays {
		if a.Name == name {
			return a.Tensor, true
		}
	}
	return Tensor{}, false
}

// Slice returns the part of a buffer's bytes in which a C-contiguous array lies. It is nil if the array has strides, or does not lie in
// these bytes.
func (t Tensor) Slice(buffer []byte) []byte {
	end, err := t.Extent()
	if err != nil || t.Strides != nil || end > uint64(len(buffer)) {
		return nil
	}
	return buffer[t.ByteOffset:end:end]
}

// isAllBytes reports whether t describes bytes, beginning with the buffer's first one.
func (t Tensor) isAllBytes() bool {
	return t.DType == Uint8 && len(t.Shape) == 1 && t.Strides == nil && t.ByteOffset == 0 && t.Shape[0] <= math.MaxInt64
}

// validateArrays checks the arrays of a buffer or frame of several arrays.
func (t Tensor) validateArrays() error {
	if len(t.Arrays) == 0 {
		return typed.Errorf(ErrInvalid, "a buffer or frame has at least one array")
	}
	if !t.isAllBytes() {
		return typed.Errorf(ErrInvalid, "the Tensor of several arrays describes all bytes: uint8 with one dimension; Pack makes it")
	}
	names := make(map[string]struct{}, len(t.Arrays))
	for _, a := range t.Arrays {
		if err := ValidateName("array", a.Name); err != nil {
			return err
		}
		if _, twice := names[a.Name]; twice {
			return typed.Errorf(ErrInvalid, "two arrays have the name %q", a.Name)
		}
		names[a.Name] = struct{}{}
		switch end, err := a.Tensor.Extent(); {
		case err != nil:
			return typed.Errorf(ErrInvalid, "array %q: %v", a.Name, err)
		case a.Tensor.Arrays != nil:
			return typed.Errorf(ErrInvalid, "array %q has arrays: join the names, as in \"outer.inner\"", a.Name)
		case t.LayoutBytes > t.Shape[0], end > t.Shape[0]-t.LayoutBytes:
			return typed.Errorf(ErrInvalid, "array %q ends at byte %d of %d", a.Name, end, t.Shape[0])
		}
	}
	return nil
}
