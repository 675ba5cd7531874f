package wire

// kind is the type of an encoded value. An integer in a signed format is kindSigned, even if the integer is positive.
type kind uint8

const (
	kindReserved kind = iota
	kindNil
	kindBool
	kindUnsigned
	kindSigned
	kindFloat
	kindString
	kindBinary
	kindArray
	kindMap
	kindExtension
)

var kindNames = [...]string{
	kindReserved: "the reserved code c1", kindNil: "nil", kindBool: "boolean", kindUnsigned: "unsigned integer",
	kindSigned: "signed integer", kindFloat: "float", kindString: "string", kindBinary: "binary", kindArray: "array",
	kindMap: "map", kindExtension: "extension type",
}

func (k kind) String() string { return kindNames[k] }

func kindOf(code byte) kind { return codes[code].kind }

// shape is what the first byte of an encoded value says about the value.
type shape struct {
	kind  kind
	width uint8 // for strings, binaries, arrays and maps: bytes of the length that follows the first byte
	size  uint8 // if no length follows: payload bytes of a scalar or short string, elements of a short array or map
}

// codes has the shape of an encoded value for each possible first byte of the value. For extension types, codes has only the kind, because
// Check refuses these types.
var codes = func() (t [256]shape) {
	for c := range t {
		switch {
		case c <= 0x7f:
			t[c] = shape{kind: kindUnsigned}
		case c <= 0x8f:
			t[c] = shape{kind: kindMap, size: uint8(c & 0x0f)}
		case c <= 0x9f:
			t[c] = shape{kind: kindArray, size: uint8(c & 0x0f)}
		case c <= 0xbf:
			t[c] = shape{kind: kindString, size: uint8(c & 0x1f)}
		case c >= 0xe0:
			t[c] = shape{kind: kindSigned}
		case c >= 0xc7 && c <= 0xc9, c >= 0xd4 && c <= 0xd8:
			t[c] = shape{kind: kindExtension}
		}
	}
	t[0xc0] = shape{kind: kindNil}
	t[0xc2], t[0xc3] = shape{kind: kindBool}, shape{kind: kindBool}
	t[0xca], t[0xcb] = shape{kind: kindFloat, size: 4}, shape{kind: kindFloat, size: 8}
	for i := range uint8(4) {
		t[0xcc+i] = shape{kind: kindUnsigned, size: 1 << i}
		t[0xd0+i] = shape{kind: kindSigned, size: 1 << i}
	}
	for i := range uint8(3) {
		t[0xc4+i] = shape{kind: kindBinary, width: 1 << i}
		t[0xd9+i] = shape{kind: kindString, width: 1 << i}
	}
	for i := range uint8(2) {
		t[0xdc+i] = shape{kind: kindArray, width: 2 << i}
		t[0xde+i] = shape{kind: kindMap, width: 2 << i}
	}
	return t
}()
