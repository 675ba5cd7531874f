package wire

import (
	"bytes"
	"fmt"
	"math"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// decoder reads values of a packet that Check has accepted. It checks the kind of every value before it reads the value, because
// package msgpack converts between types silently: -1 becomes 2^64-1, and a binary becomes a string.
type decoder struct {
	src bytes.Reader
	mp  *msgpack.Decoder
	buf [MaxString]byte // bytes of the current key
}

var decoders = sync.Pool{New: func() any {
	d := new(decoder)
	d.mp = msgpack.NewDecoder(&d.src)
	return d
}}

// decodeFrom calls the function `read` to decode the packet from its beginning.
func decodeFrom(packet []byte, read func(*decoder) error) error {
	d := decoders.Get().(*decoder)
	d.src.Reset(packet)
	err := read(d)
	d.src.Reset(nil)
	decoders.Put(d)
	return err
}

// expect returns an error if the next value does not have the kind `want`.
func (d *decoder) expect(want kind) error {
	code, err := d.mp.PeekCode()
	if err != nil {
		return err
	}
	if found := kindOf(code); found != want {
		return received("", want.String(), found.String())
	}
	return nil
}

func (d *decoder) mapLen() (int, error) {
	if err := d.expect(kindMap); err != nil {
		return 0, err
	}
	return d.mp.DecodeMapLen()
}

// key returns the next key of a map. The key is valid until the next call of key.
func (d *decoder) key() ([]byte, error) {
	n, err := d.mp.DecodeBytesLen()
	if err != nil {
		return nil, err
	}
	key := d.buf[:n]
	return key, d.mp.ReadFull(key)
}

func (d *decoder) uint() (uint64, error) {
	const want = "unsigned integer up to 2^63-1"
	code, err := d.mp.PeekCode()
	if err != nil {
		return 0, err
	}
	switch k := kindOf(code); k {
	case kindUnsigned:
		n, err := d.mp.DecodeUint64()
		if err == nil && n > MaxUint {
			return 0, received("", want, fmt.Sprint(n))
		}
		return n, err
	case kindSigned:
		n, err := d.mp.DecodeInt64()
		if err == nil && n < 0 {
			return 0, received("", want, fmt.Sprint(n))
		}
		return uint64(n), err
	default:
		return 0, received("", want, k.String())
	}
}

func (d *decoder) int() (int64, error) {
	const want = "signed 64-bit integer"
	code, err := d.mp.PeekCode()
	if err != nil {
		return 0, err
	}
	switch k := kindOf(code); k {
	case kindUnsigned:
		n, err := d.mp.DecodeUint64()
		if err == nil && n > math.MaxInt64 {
			return 0, received("", want, fmt.Sprint(n))
		}
		return int64(n), err
	case kindSigned:
		return d.mp.DecodeInt64()
	default:
		return 0, received("", want, k.String())
	}
}

func (d *decoder) bool() (bool, error) {
	if err := d.expect(kindBool); err != nil {
		return false, err
	}
	return d.mp.DecodeBool()
}

func (d *decoder) string() (string, error) {
	if err := d.expect(kindString); err != nil {
		return "", err
	}
	return d.mp.DecodeString()
}

func (d *decoder) code() (Code, error) {
	s, err := d.string()
	return Code(s), err
}

func (d *decoder) binary() ([]byte, error) {
	if err := d.expect(kindBinary); err != nil {
		return nil, err
	}
	n, err := d.mp.DecodeBytesLen()
	if err != nil || n == 0 {
		return nil, err
	}
	b := make([]byte, n)
	return b, d.mp.ReadFull(b)
}

func (d *decoder) epoch() (e Epoch, err error) {
	b, err := d.binary()
	if err == nil && len(b) != len(e) {
		err = received("", fmt.Sprintf("binary of %d bytes", len(e)), fmt.Sprintf("%d bytes", len(b)))
	}
	copy(e[:], b)
	return e, err
}

// items returns a function that reads an array. The function calls `get` for each element.
func items[V any](get func(*decoder) (V, error)) func(*decoder) ([]V, error) {
	return func(d *decoder) ([]V, error) {
		if err := d.expect(kindArray); err != nil {
			return nil, err
		}
		n, err := d.mp.DecodeArrayLen()
		if err != nil || n == 0 {
			return nil, err
		}
		vs := make([]V, n)
		for i := range vs {
			if vs[i], err = get(d); err != nil {
				return nil, under(fmt.Sprintf("[%d]", i), err)
			}
		}
		return vs, nil
	}
}
