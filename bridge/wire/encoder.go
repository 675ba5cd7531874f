package wire

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
)

// encoder appends messages to a slice.
type encoder struct {
	out appender
	mp  *msgpack.Encoder
}

// appender is the io.Writer of the encoder's output.
type appender struct{ buf []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.buf = append(a.buf, p...)
	return len(p), nil
}

func (a *appender) WriteByte(c byte) error {
	a.buf = append(a.buf, c)
	return nil
}

var encoders = sync.Pool{New: func() any {
	e := new(encoder)
	e.mp = msgpack.NewEncoder(&e.out)
	return e
}}

// appendTo calls the function `write`, which appends one packet to dst. If `write` fails, appendTo returns dst unchanged.
func appendTo(dst []byte, write func(*encoder) error) ([]byte, error) {
	e := encoders.Get().(*encoder)
	e.out.buf = dst
	err := write(e)
	out := e.out.buf
	e.out.buf = nil
	encoders.Put(e)
	if err != nil {
		return dst, err
	}
	if n := len(out) - len(dst); n > MaxPacket {
		return dst, &FieldError{Expected: fmt.Sprintf("a packet of at most %d bytes", MaxPacket),
			Found: fmt.Sprintf("%d bytes", n), Code: CodeInvalid}
	}
	return out, nil
}

func (e *encoder) key(s string) error { return e.mp.EncodeString(s) }

// pair writes a key of the envelope, and `name` as the key's value.
func (e *encoder) pair(key, name string) error {
	if err := e.key(key); err != nil {
		return err
	}
	return e.mp.EncodeString(name)
}

// number writes the request number q, unless q is 0.
func (e *encoder) number(q uint32) error {
	if q == 0 {
		return nil
	}
	if err := e.key("q"); err != nil {
		return err
	}
	return e.mp.EncodeUint(uint64(q))
}

func (e *encoder) uint(n uint64) error {
	if n > MaxUint {
		return unsendable("unsigned integer up to 2^63-1", fmt.Sprint(n))
	}
	return e.mp.EncodeUint(n)
}

func (e *encoder) int(n int64) error { return e.mp.EncodeInt(n) }

func (e *encoder) bool(b bool) error { return e.mp.EncodeBool(b) }

func (e *encoder) string(s string) error {
	switch {
	case len(s) > MaxString:
		return unsendable(fmt.Sprintf("string of at most %d bytes", MaxString), fmt.Sprintf("%d bytes", len(s)))
	case !utf8.ValidString(s):
		return unsendable("UTF-8", fmt.Sprintf("%q", clip([]byte(s))))
	}
	return e.mp.EncodeString(s)
}

// text writes a text that people read, as valid UTF-8. It cuts a text that is longer than MaxString bytes.
func (e *encoder) text(s string) error {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > MaxString {
		s = strings.ToValidUTF8(s[:MaxString], "")
	}
	return e.mp.EncodeString(s)
}

func (e *encoder) code(c Code) error { return e.string(string(c)) }

func (e *encoder) binary(b []byte) error {
	if len(b) > MaxBinary {
		return unsendable(fmt.Sprintf("binary of at most %d bytes", MaxBinary), fmt.Sprintf("%d bytes", len(b)))
	}
	if err := e.mp.EncodeBytesLen(len(b)); err != nil { // EncodeBytes writes nil for a nil slice
		return err
	}
	_, err := e.out.Write(b)
	return err
}

func (e *encoder) epoch(v Epoch) error { return e.binary(v[:]) }

// list returns a function that writes an array. The function calls `put` for each element.
func list[V any](put func(*encoder, V) error) func(*encoder, []V) error {
	return listAt(func(e *encoder, v *V) error { return put(e, *v) })
}

// listAt is like list, for large elements: it does not copy the elements.
func listAt[V any](put func(*encoder, *V) error) func(*encoder, []V) error {
	return func(e *encoder, vs []V) error {
		if len(vs) > MaxElements {
			return unsendable(fmt.Sprintf("array of at most %d elements", MaxElements), fmt.Sprint(len(vs)))
		}
		if err := e.mp.EncodeArrayLen(len(vs)); err != nil {
			return err
		}
		for i := range vs {
			if err := put(e, &vs[i]); err != nil {
				return under(fmt.Sprintf("[%d]", i), err)
			}
		}
		return nil
	}
}

func unsendable(expected, found string) *FieldError {
	return &FieldError{Expected: expected, Found: found, Code: CodeInvalid}
}
