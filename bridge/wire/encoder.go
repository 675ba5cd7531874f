package wire

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"unicode/utf8"
)

// encoder writes messages at the end of a slice, each value in its shortest form.
type encoder struct{ buf []byte }

var encoders = sync.Pool{New: func() any { return new(encoder) }}

// appendTo lets write encode one packet after dst. On error it returns dst as it was.
func appendTo(dst []byte, write func(*encoder) error) ([]byte, error) {
	e := encoders.Get().(*encoder)
	e.buf = dst
	err := write(e)
	out := e.buf
	e.buf = nil
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

// The first bytes of values. Those of short values hold the value, or the length.
const (
	codeShortMap    = 0x80
	codeShortArray  = 0x90
	codeShortString = 0xa0
	codeFalse       = 0xc2
	codeTrue        = 0xc3
	codeBinary      = 0xc4 // and c5 with a longer length
	codeUint        = 0xcc // and cd, ce, cf: of 1, 2, 4 and 8 bytes
	codeInt         = 0xd0 // and d1, d2, d3
	codeString      = 0xd9 // and da
	codeArray       = 0xdc
	codeMap         = 0xde
)

// What stands in the first byte.
const (
	mostShort       = 15  // length of a map or an array
	mostShortString = 31  // length of a string
	leastShort      = -32 // of the integers that are their own code
)

// head writes the length of a string or a binary after the code for a length of one byte, or the next for one of two, which is
// as long as the limits let any be.
func (e *encoder) head(code byte, n int) {
	if n <= math.MaxUint8 {
		e.buf = append(e.buf, code, byte(n))
	} else {
		e.head16(code+1, n)
	}
}

func (e *encoder) head16(code byte, n int) {
	e.buf = binary.BigEndian.AppendUint16(append(e.buf, code), uint16(n))
}

func (e *encoder) mapLen(n int) {
	if n <= mostShort {
		e.buf = append(e.buf, codeShortMap|byte(n))
	} else {
		e.head16(codeMap, n)
	}
}

func (e *encoder) arrayLen(n int) {
	if n <= mostShort {
		e.buf = append(e.buf, codeShortArray|byte(n))
	} else {
		e.head16(codeArray, n)
	}
}

// text writes a string that is known to be within the limits.
func (e *encoder) text(s string) {
	if len(s) <= mostShortString {
		e.buf = append(e.buf, codeShortString|byte(len(s)))
	} else {
		e.head(codeString, len(s))
	}
	e.buf = append(e.buf, s...)
}

// pair writes a key of the envelope and its name.
func (e *encoder) pair(key, name string) {
	e.text(key)
	e.text(name)
}

// number writes the request number, if there is one.
func (e *encoder) number(q uint32) {
	if q != 0 {
		e.text("q")
		e.unsigned(uint64(q))
	}
}

func (e *encoder) unsigned(n uint64) {
	switch {
	case n <= math.MaxInt8:
		e.buf = append(e.buf, byte(n))
	case n <= math.MaxUint8:
		e.buf = append(e.buf, codeUint, byte(n))
	case n <= math.MaxUint16:
		e.buf = binary.BigEndian.AppendUint16(append(e.buf, codeUint+1), uint16(n))
	case n <= math.MaxUint32:
		e.buf = binary.BigEndian.AppendUint32(append(e.buf, codeUint+2), uint32(n))
	default:
		e.buf = binary.BigEndian.AppendUint64(append(e.buf, codeUint+3), n)
	}
}

func (e *encoder) uint(n uint64) error {
	if n > MaxUint {
		return unsendable("unsigned integer up to 2^63-1", fmt.Sprint(n))
	}
	e.unsigned(n)
	return nil
}

func (e *encoder) int(n int64) error {
	switch {
	case n >= 0:
		e.unsigned(uint64(n))
	case n >= leastShort:
		e.buf = append(e.buf, byte(n))
	case n >= math.MinInt8:
		e.buf = append(e.buf, codeInt, byte(n))
	case n >= math.MinInt16:
		e.buf = binary.BigEndian.AppendUint16(append(e.buf, codeInt+1), uint16(n))
	case n >= math.MinInt32:
		e.buf = binary.BigEndian.AppendUint32(append(e.buf, codeInt+2), uint32(n))
	default:
		e.buf = binary.BigEndian.AppendUint64(append(e.buf, codeInt+3), uint64(n))
	}
	return nil
}

func (e *encoder) bool(b bool) error {
	code := byte(codeFalse)
	if b {
		code = codeTrue
	}
	e.buf = append(e.buf, code)
	return nil
}

func (e *encoder) string(s string) error {
	switch {
	case len(s) > MaxString:
		return unsendable(fmt.Sprintf("string of at most %d bytes", MaxString), fmt.Sprintf("%d bytes", len(s)))
	case !utf8.ValidString(s):
		return unsendable("UTF-8", fmt.Sprintf("%q", clip([]byte(s))))
	}
	e.text(s)
	return nil
}

func (e *encoder) code(c Code) error { return e.string(string(c)) }

func (e *encoder) binary(b []byte) error {
	if len(b) > MaxBinary {
		return unsendable(fmt.Sprintf("binary of at most %d bytes", MaxBinary), fmt.Sprintf("%d bytes", len(b)))
	}
	e.head(codeBinary, len(b))
	e.buf = append(e.buf, b...)
	return nil
}

func (e *encoder) epoch(v Epoch) error { return e.binary(v[:]) }

func (e *encoder) texts(m map[string]string) error {
	if len(m) > MaxEntries {
		return unsendable(fmt.Sprintf("map of at most %d entries", MaxEntries), fmt.Sprint(len(m)))
	}
	e.mapLen(len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if err := e.string(k); err != nil {
			return err
		}
		if err := e.string(m[k]); err != nil {
			return under(string(clip([]byte(k))), err)
		}
	}
	return nil
}

// list returns how to write an array whose elements put writes.
func list[V any](put func(*encoder, V) error) func(*encoder, []V) error {
	return func(e *encoder, vs []V) error {
		if len(vs) > MaxElements {
			return unsendable(fmt.Sprintf("array of at most %d elements", MaxElements), fmt.Sprint(len(vs)))
		}
		e.arrayLen(len(vs))
		for i := range vs {
			if err := put(e, vs[i]); err != nil {
				return under(fmt.Sprintf("[%d]", i), err)
			}
		}
		return nil
	}
}

func unsendable(expected, found string) *FieldError {
	return &FieldError{Expected: expected, Found: found, Code: CodeInvalid}
}
