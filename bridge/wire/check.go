package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// Header has the values of the envelope of a checked packet: the kind of the packet, its name and its request number.
type Header struct {
	Op     string // operation of a request; empty in a packet from the service
	Notice string // name of a notice; empty in requests and replies
	Q      uint32 // request number; 0 in a notice and in a request that wants no reply
	Failed bool   // the packet is a reply that has an error

	packet []byte
	fault  int // position of the error in a reply
}

// Check checks a packet and returns the values of its envelope. Check allocates no memory, and never reads past the packet's end, even if
// the packet states greater lengths. A packet that Check accepts is exactly one map with string keys. This packet keeps every limit of the
// encoding, and has no duplicate keys, no trailing bytes, no extension types and no invalid UTF-8.
//
// For every other packet, Check returns a *PacketError, or a *FieldError if a value of the envelope is wrong. Both errors wrap ErrProtocol.
// The header then has the values that Check read before the error, so that a service can answer the packet.
func Check(packet []byte) (Header, error) {
	w := walker{packet: packet, header: Header{packet: packet}}
	err := w.root()
	return w.header, err
}

// walker is the state of Check: the packet and a position in it.
type walker struct {
	packet []byte
	at     int
	header Header
}

func (w *walker) root() error {
	switch {
	case len(w.packet) == 0:
		return w.fault(0, "empty packet")
	case len(w.packet) > MaxPacket:
		return w.fault(MaxPacket, "%d bytes, more than %d", len(w.packet), MaxPacket)
	}
	code := w.packet[0]
	if kindOf(code) != kindMap {
		return w.fault(0, "expected a map, found %s", kindOf(code))
	}
	w.at = 1
	n, err := w.length(code)
	if err != nil {
		return err
	}
	if err := w.entries(n, 1); err != nil {
		return err
	}
	if w.at != len(w.packet) {
		return w.fault(w.at, "%d bytes after the map", len(w.packet)-w.at)
	}
	return nil
}

// value walks one value at the given depth of maps and arrays.
func (w *walker) value(depth int) error {
	start := w.at
	if start >= len(w.packet) {
		return w.fault(start, "ends where a value should be")
	}
	code := w.packet[start]
	w.at++
	kind := kindOf(code)
	switch kind {
	case kindUnsigned, kindSigned, kindFloat, kindBool, kindNil:
		return w.skip(int(codes[code].size))
	case kindExtension, kindReserved:
		return w.fault(start, "%s", kind)
	default: // types with a length
	}
	n, err := w.length(code)
	if err != nil {
		return err
	}
	switch kind {
	case kindString:
		_, err = w.text(n)
		return err
	case kindBinary:
		if n > MaxBinary {
			return w.fault(start, "binary of %d bytes, more than %d", n, MaxBinary)
		}
		return w.skip(n)
	default: // a map or an array
	}
	if depth++; depth > MaxDepth {
		return w.fault(start, "nested deeper than %d", MaxDepth)
	}
	if kind == kindMap {
		return w.entries(n, depth)
	}
	return w.elements(n, depth)
}

// elements walks the n elements of an array at the given depth.
func (w *walker) elements(n, depth int) error {
	if n > MaxElements {
		return w.fault(w.at, "array of %d elements, more than %d", n, MaxElements)
	}
	for range n {
		if err := w.value(depth); err != nil {
			return err
		}
	}
	return nil
}

// span is the position of a key in the packet.
type span struct{ from, to int32 }

// entries walks the n entries of a map at the given depth.
func (w *walker) entries(n, depth int) error {
	if n > MaxEntries {
		return w.fault(w.at, "map of %d entries, more than %d", n, MaxEntries)
	}
	var seen [MaxEntries]span
	for i := range n {
		start := w.at
		if start >= len(w.packet) {
			return w.fault(start, "ends where a key should be")
		}
		code := w.packet[start]
		if kindOf(code) != kindString {
			return w.fault(start, "expected a string as key, found %s", kindOf(code))
		}
		w.at++
		size, err := w.length(code)
		if err != nil {
			return err
		}
		key, err := w.text(size)
		if err != nil {
			return err
		}
		for _, s := range seen[:i] {
			if int(s.to-s.from) == len(key) && bytes.Equal(w.packet[s.from:s.to], key) {
				return w.fault(start, "duplicate key %q", clip(key))
			}
		}
		seen[i] = span{int32(w.at - size), int32(w.at)}
		from := w.at
		if err := w.value(depth); err != nil {
			return err
		}
		if depth == 1 && len(key) == 1 {
			if err := w.header.note(key[0], from, w.packet[from:w.at]); err != nil {
				return err
			}
		}
	}
	return nil
}

// length reads the length that follows the first byte code.
func (w *walker) length(code byte) (int, error) {
	width := int(codes[code].width)
	if width == 0 {
		return int(codes[code].size), nil
	}
	if len(w.packet)-w.at < width {
		return 0, w.fault(len(w.packet), "ends inside a length")
	}
	b := w.packet[w.at:]
	w.at += width
	switch width {
	case 1:
		return int(b[0]), nil
	case 2:
		return int(binary.BigEndian.Uint16(b)), nil
	}
	return int(binary.BigEndian.Uint32(b)), nil
}

// text walks the n bytes of a string.
func (w *walker) text(n int) ([]byte, error) {
	from := w.at
	if n > MaxString {
		return nil, w.fault(from, "string of %d bytes, more than %d", n, MaxString)
	}
	if err := w.skip(n); err != nil {
		return nil, err
	}
	s := w.packet[from:w.at]
	if !utf8.Valid(s) {
		return nil, w.fault(from, "string is not UTF-8")
	}
	return s, nil
}

// skip skips n bytes.
func (w *walker) skip(n int) error {
	if n > len(w.packet)-w.at {
		return w.fault(len(w.packet), "ends inside a value: %d bytes are missing", n-(len(w.packet)-w.at))
	}
	w.at += n
	return nil
}

func (w *walker) fault(at int, format string, args ...any) error {
	return &PacketError{Offset: at, Reason: fmt.Sprintf(format, args...)}
}

// clip shortens a text of the peer for an error message.
func clip(s []byte) []byte { return s[:min(len(s), 64)] }
