package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
)

// decoder reads values of a packet that Check has accepted: every length is right, and every string is UTF-8. A value's kind
// is looked at before it is read.
type decoder struct {
	packet []byte
	at     int
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

// decodeFrom lets read decode what starts the packet.
func decodeFrom(packet []byte, read func(*decoder) error) error {
	if len(packet) == 0 {
		return received("", "a packet that was accepted", "none")
	}
	d := decoders.Get().(*decoder)
	*d = decoder{packet: packet}
	err := read(d)
	*d = decoder{}
	decoders.Put(d)
	return err
}

func (d *decoder) kind() kind { return kindOf(d.packet[d.at]) }

// expect says whether the kind of the next value is want.
func (d *decoder) expect(want kind) error {
	if found := d.kind(); found != want {
		return received("", want.String(), found.String())
	}
	return nil
}

// length reads the head of a string, a binary, an array or a map.
func (d *decoder) length() int {
	head := codes[d.packet[d.at]]
	b := d.packet[d.at+1:]
	d.at += 1 + int(head.width)
	switch head.width {
	case 0:
		return int(head.size)
	case 1:
		return int(b[0])
	case 2:
		return int(binary.BigEndian.Uint16(b))
	}
	return int(binary.BigEndian.Uint32(b))
}

// bytes reads a string or a binary. It is a part of the packet.
func (d *decoder) bytes() []byte {
	n := d.length()
	d.at += n
	return d.packet[d.at-n : d.at]
}

// skip reads a value of which nothing is wanted.
func (d *decoder) skip() error {
	w := walker{packet: d.packet, at: d.at}
	err := w.value(1) // there is no value outside a map
	d.at = w.at
	return err
}

func (d *decoder) mapLen() (int, error) {
	if err := d.expect(kindMap); err != nil {
		return 0, err
	}
	return d.length(), nil
}

// key returns the next key of a map. It is a part of the packet.
func (d *decoder) key() []byte { return d.bytes() }

// number reads an integer; one of a signed format is negative where its highest bit is set. want is what to say of other kinds.
func (d *decoder) number(want string) (n uint64, k kind, err error) {
	code := d.packet[d.at]
	k = kindOf(code)
	if k != kindUnsigned && k != kindSigned {
		return 0, k, received("", want, k.String())
	}
	size := int(codes[code].size)
	b := d.packet[d.at+1 : d.at+1+size]
	d.at += 1 + size
	switch {
	case size == 0:
		return uint64(int8(code)), k, nil
	case k == kindSigned:
		n = uint64(int8(b[0]))
		b = b[1:]
	}
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n, k, nil
}

func (d *decoder) uint() (uint64, error) {
	const want = "unsigned integer up to 2^63-1"
	n, k, err := d.number(want)
	switch {
	case err != nil:
		return 0, err
	case k == kindSigned && int64(n) < 0:
		return 0, received("", want, fmt.Sprint(int64(n)))
	case n > MaxUint:
		return 0, received("", want, fmt.Sprint(n))
	}
	return n, nil
}

func (d *decoder) int() (int64, error) {
	const want = "signed 64-bit integer"
	n, k, err := d.number(want)
	switch {
	case err != nil:
		return 0, err
	case k == kindUnsigned && n > math.MaxInt64:
		return 0, received("", want, fmt.Sprint(n))
	}
	return int64(n), nil
}

func (d *decoder) bool() (bool, error) {
	if err := d.expect(kindBool); err != nil {
		return false, err
	}
	d.at++
	return d.packet[d.at-1] == codeTrue, nil
}

func (d *decoder) string() (string, error) {
	if err := d.expect(kindString); err != nil {
		return "", err
	}
	return string(d.bytes()), nil
}

func (d *decoder) code() (Code, error) {
	s, err := d.string()
	return Code(s), err
}

func (d *decoder) binary() ([]byte, error) {
	if err := d.expect(kindBinary); err != nil {
		return nil, err
	}
	return append([]byte(nil), d.bytes()...), nil // nil where it is empty
}

func (d *decoder) epoch() (e Epoch, err error) {
	b, err := d.binary()
	if err == nil && len(b) != len(e) {
		err = received("", fmt.Sprintf("binary of %d bytes", len(e)), fmt.Sprintf("%d bytes", len(b)))
	}
	copy(e[:], b)
	return e, err
}

func (d *decoder) texts() (map[string]string, error) {
	n, err := d.mapLen()
	if err != nil || n == 0 {
		return nil, err
	}
	m := make(map[string]string, n)
	for range n {
		k := string(d.key())
		if m[k], err = d.string(); err != nil {
			return nil, under(string(clip([]byte(k))), err)
		}
	}
	return m, nil
}

// items returns how to read an array whose elements get reads.
func items[V any](get func(*decoder) (V, error)) func(*decoder) ([]V, error) {
	return func(d *decoder) ([]V, error) {
		if err := d.expect(kindArray); err != nil {
			return nil, err
		}
		n := d.length()
		if n == 0 {
			return nil, nil
		}
		vs := make([]V, n)
		for i := range vs {
			var err error
			if vs[i], err = get(d); err != nil {
				return nil, under(fmt.Sprintf("[%d]", i), err)
			}
		}
		return vs, nil
	}
}
