package wire

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// layoutArrays is the number of arrays in a part of the layout of a buffer. The longest names and shapes of so many arrays fit into
// LayoutBytes.
const layoutArrays = 64

// AppendLayout appends the layout of a frame to dst, as docs/streams.md describes it. If the layout exceeds a limit, AppendLayout returns
// dst unchanged and a *FieldError that wraps CodeInvalid.
func AppendLayout(dst []byte, l *Layout) ([]byte, error) {
	out, err := appendTo(dst, func(e *encoder) error { return layoutFields.encode(e, l) })
	if n := len(out) - len(dst); err == nil && n > LayoutBytes {
		return dst, &FieldError{Message: "layout", Expected: fmt.Sprintf("at most %d bytes", LayoutBytes), Found: fmt.Sprintf("%d bytes", n), Code: CodeInvalid}
	}
	return out, of("layout", err)
}

// DecodeLayout checks and decodes the layout of a frame. It does not check the tensors.
func DecodeLayout(layout []byte) (*Layout, error) {
	if _, err := Check(layout); err != nil {
		return nil, of("layout", err)
	}
	l := new(Layout)
	return l, of("layout", decodeFrom(layout, func(d *decoder) error { return layoutFields.decode(d, l) }))
}

// AppendBufferLayout appends the layout of a buffer to dst: parts, each a Layout behind the number of its bytes in 4 bytes. If the layout
// exceeds a limit, AppendBufferLayout returns dst unchanged and a *FieldError that wraps CodeInvalid.
func AppendBufferLayout(dst []byte, arrays []NamedTensor) ([]byte, error) {
	out := dst
	for part := range slices.Chunk(arrays, layoutArrays) {
		at := len(out)
		var err error
		if out, err = AppendLayout(append(out, 0, 0, 0, 0), &Layout{Arrays: part}); err != nil {
			return dst, err
		}
		binary.LittleEndian.PutUint32(out[at:], uint32(len(out)-at-4))
	}
	if n := len(out) - len(dst); n > MaxLayoutBytes {
		return dst, &FieldError{Message: "layout", Expected: fmt.Sprintf("at most %d bytes", MaxLayoutBytes), Found: fmt.Sprintf("%d bytes", n), Code: CodeInvalid}
	}
	return out, nil
}

// DecodeBufferLayout checks and decodes the layout of a buffer. It does not check the tensors.
func DecodeBufferLayout(layout []byte) (arrays []NamedTensor, err error) {
	for len(layout) > 0 {
		if len(layout) < 4 || uint64(binary.LittleEndian.Uint32(layout)) > uint64(len(layout)-4) {
			return nil, of("layout", received("ar", "a part behind the number of its bytes", fmt.Sprintf("%d bytes", len(layout))))
		}
		end := 4 + binary.LittleEndian.Uint32(layout)
		part, err := DecodeLayout(layout[4:end])
		if err != nil {
			return nil, err
		}
		arrays, layout = append(arrays, part.Arrays...), layout[end:]
	}
	return arrays, nil
}
