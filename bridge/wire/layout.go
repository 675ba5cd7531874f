package wire

import "fmt"

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
