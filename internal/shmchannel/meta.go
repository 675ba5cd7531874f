package shmchannel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"unicode/utf8"
)

// These are the bytes with which a value of MessagePack begins. docs/streams.md says which values the meta of a frame may have.
const (
	packFixmap, packFixarray, packFixstr = 0x80, 0x90, 0xa0
	packNil, packFalse, packTrue         = 0xc0, 0xc2, 0xc3
	packBin8, packBin16                  = 0xc4, 0xc5
	packFloat32, packFloat64             = 0xca, 0xcb
	packUint8, packUint64                = 0xcc, 0xcf
	packInt8, packInt64                  = 0xd0, 0xd3
	packStr8, packStr16                  = 0xd9, 0xda
	packArray16, packMap16               = 0xdc, 0xde
	packNegative                         = 0xe0
)

// AppendMeta appends a frame's map to the slice `to`, in the encoding of [Record.Meta]. The values are nil, booleans, numbers, strings, bytes,
// and slices and maps of these; keys are strings. Types whose kind is one of these are sent alike.
//
// Errors: [ErrInvalid] if the map exceeds a limit, or has a value of another type or a text that is not UTF-8.
func AppendMeta(to []byte, meta map[string]any) ([]byte, error) {
	if len(meta) == 0 {
		return to, nil
	}
	e := metaEncoder{to, len(to)}
	if path, why := e.mapping(meta, 1); why != "" {
		return to, invalid("meta%s %s", path, why)
	}
	if n := len(e.to) - e.begin; n > MaxMetaBytes {
		return to, invalid("meta has %d bytes as MessagePack, and a frame's meta has at most %d: send more as the frame's array", n, MaxMetaBytes)
	}
	return e.to, nil
}

type metaEncoder struct {
	to    []byte
	begin int
}

// mapping appends a map. If it cannot, it says where, as in ["key"][2], and why.
func (e *metaEncoder) mapping(m map[string]any, depth int) (path, why string) {
	e.head(len(m), packFixmap, 16, packMap16)
	var few [16]string
	keys := slices.AppendSeq(few[:0], maps.Keys(m))
	slices.Sort(keys)
	for _, key := range keys {
		if why = e.text(key); why == "" {
			path, why = e.value(m[key], depth)
		}
		if why != "" {
			return fmt.Sprintf("[%.64q]%s", key, path), why
		}
	}
	return "", ""
}

func (e *metaEncoder) list(n int, at func(int) any, depth int) (path, why string) {
	e.head(n, packFixarray, 16, packArray16)
	for i := range n {
		if path, why = e.value(at(i), depth); why != "" {
			return fmt.Sprintf("[%d]%s", i, path), why
		}
	}
	return "", ""
}

// value appends a value of a map or list that is `depth` deep.
func (e *metaEncoder) value(v any, depth int) (path, why string) {
	if len(e.to)-e.begin > MaxMetaBytes {
		return "", fmt.Sprintf("is behind the first %d bytes, more than a frame's meta may have: send them as the frame's array", MaxMetaBytes)
	}
	switch v := v.(type) {
	case nil:
		e.to = append(e.to, packNil)
	case bool:
		e.to = append(e.to, packFalse+b2i(v))
	case string:
		return "", e.text(v)
	case int64:
		e.int(v)
	case uint64:
		e.uint(v)
	case float64:
		e.to = binary.BigEndian.AppendUint64(append(e.to, packFloat64), math.Float64bits(v))
	case []byte:
		return "", e.binary(v)
	case map[string]any:
		if depth == MaxMetaDepth {
			return "", tooDeep
		}
		return e.mapping(v, depth+1)
	case []any:
		if depth == MaxMetaDepth {
			return "", tooDeep
		}
		return e.list(len(v), func(i int) any { return v[i] }, depth+1)
	default:
		return e.other(reflect.ValueOf(v), depth)
	}
	return "", ""
}

// other appends a value by its kind.
func (e *metaEncoder) other(v reflect.Value, depth int) (path, why string) {
	switch kind := v.Kind(); {
	case kind == reflect.Bool:
		return e.value(v.Bool(), depth)
	case v.CanInt():
		e.int(v.Int())
	case v.CanUint() && kind != reflect.Uintptr:
		e.uint(v.Uint())
	case v.CanFloat():
		return e.value(v.Float(), depth)
	case kind == reflect.String:
		return "", e.text(v.String())
	case kind == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		return "", e.binary(v.Bytes())
	case kind == reflect.Slice || kind == reflect.Array:
		if depth == MaxMetaDepth {
			return "", tooDeep
		}
		return e.list(v.Len(), func(i int) any { return v.Index(i).Interface() }, depth+1)
	case kind == reflect.Map && v.Type().Key().Kind() == reflect.String:
		if depth == MaxMetaDepth {
			return "", tooDeep
		}
		m := make(map[string]any, v.Len())
		for key, value := range v.Seq2() {
			m[key.String()] = value.Interface()
		}
		return e.mapping(m, depth+1)
	default:
		return "", fmt.Sprintf("is a %v: expected nil, a bool, a number, a string, []byte, or a slice or a map with string keys of these; convert it", v.Type())
	}
	return "", ""
}

var tooDeep = fmt.Sprintf("is deeper than %d: send a flatter map", MaxMetaDepth)

func b2i(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// head appends the begin of a map, a list or a text with n parts. `short` is for less than `most` parts, `long` is for 16 bits, and the next
// byte is for 32 bits.
func (e *metaEncoder) head(n int, short byte, most int, long byte) {
	switch {
	case n < most:
		e.to = append(e.to, short|byte(n))
	case n <= math.MaxUint16:
		e.to = binary.BigEndian.AppendUint16(append(e.to, long), uint16(n))
	default:
		e.to = binary.BigEndian.AppendUint32(append(e.to, long+1), uint32(min(n, math.MaxUint32))) // too large for meta in any case
	}
}

func (e *metaEncoder) text(s string) (why string) {
	switch {
	case len(s) > MaxMetaBytes:
		return fmt.Sprintf("is a text of %d bytes, and a frame's meta has at most %d: send it as the frame's array", len(s), MaxMetaBytes)
	case !utf8.ValidString(s):
		return fmt.Sprintf("is not UTF-8: %.64q; send other bytes as []byte", s)
	case len(s) >= 32 && len(s) <= math.MaxUint8:
		e.to = append(e.to, packStr8, byte(len(s)))
	default:
		e.head(len(s), packFixstr, 32, packStr16)
	}
	e.to = append(e.to, s...)
	return ""
}

func (e *metaEncoder) binary(b []byte) (why string) {
	if len(b) > MaxMetaBytes {
		return fmt.Sprintf("has %d bytes, and a frame's meta has at most %d: send them as the frame's array", len(b), MaxMetaBytes)
	}
	if len(b) <= math.MaxUint8 {
		e.to = append(e.to, packBin8, byte(len(b)))
	} else {
		e.head(len(b), 0, 0, packBin16)
	}
	e.to = append(e.to, b...)
	return ""
}

func (e *metaEncoder) uint(v uint64) {
	if v <= math.MaxInt8 {
		e.to = append(e.to, byte(v))
		return
	}
	e.number(v, packUint8, v > math.MaxUint8, v > math.MaxUint16, v > math.MaxUint32)
}

func (e *metaEncoder) int(v int64) {
	switch {
	case v >= 0:
		e.uint(uint64(v))
	case v >= -32:
		e.to = append(e.to, byte(v))
	default:
		e.number(uint64(v), packInt8, v < math.MinInt8, v < math.MinInt16, v < math.MinInt32)
	}
}

// number appends the low 8, 16, 32 or 64 bits of v. `first` begins numbers of 8 bits.
func (e *metaEncoder) number(v uint64, first byte, over8, over16, over32 bool) {
	size := b2i(over8) + b2i(over16) + b2i(over32)
	e.to = append(e.to, first+size)
	for shift := 8<<size - 8; shift >= 0; shift -= 8 {
		e.to = append(e.to, byte(v>>shift))
	}
}

// CheckMeta returns an error if the bytes are not a valid encoding of a frame's map (see [AppendMeta]).
//
// Errors: [ErrInvalid].
func CheckMeta(meta []byte) error {
	if len(meta) == 0 {
		return nil
	}
	p := metaParser{rest: meta}
	switch kind, _, ok := p.peek(); {
	case len(meta) > MaxMetaBytes:
		return invalid("the meta of a frame has %d bytes, more than %d", len(meta), MaxMetaBytes)
	case !ok || kind != metaMap:
		return invalid("the meta of a frame is no map: it begins with %#x", meta[0])
	}
	if _, why := p.value(0, nil); why != "" {
		return invalid("the meta of a frame is wrong at byte %d: %s", len(meta)-len(p.rest), why)
	}
	if len(p.rest) > 0 {
		return invalid("the meta of a frame has %d bytes behind its map", len(p.rest))
	}
	return nil
}

// DecodeMeta returns the map that [CheckMeta] has accepted: nil, bool, int64, uint64 above the greatest int64, float64, string, []byte, []any and
// map[string]any.
func DecodeMeta(meta []byte) map[string]any {
	if len(meta) == 0 {
		return nil
	}
	p := metaParser{rest: meta, makes: true}
	v, _ := p.value(0, nil)
	m, _ := v.(map[string]any)
	return m
}

// metaKind is what a value is.
type metaKind int

const (
	metaWrong metaKind = iota
	metaPlain          // nil, a boolean or a number
	metaText
	metaBytes
	metaList
	metaMap
)

// metaParser goes through an encoded map, and makes the values if `makes` is true.
type metaParser struct {
	rest  []byte
	makes bool
}

// peek returns what the next value is, and how many bytes it begins with. ok is false if there is no value.
func (p *metaParser) peek() (kind metaKind, head int, ok bool) {
	if len(p.rest) == 0 {
		return 0, 0, false
	}
	switch b := p.rest[0]; {
	case b < packFixmap || b >= packNegative || b == packNil || b == packFalse || b == packTrue:
		kind, head = metaPlain, 1
	case b < packFixarray:
		kind, head = metaMap, 1
	case b < packFixstr:
		kind, head = metaList, 1
	case b < packNil:
		kind, head = metaText, 1
	case b >= packBin8 && b <= packBin8+2:
		kind, head = metaBytes, 1+1<<(b-packBin8)
	case b == packFloat32 || b == packFloat64:
		kind, head = metaPlain, 1+4<<(b-packFloat32)
	case b >= packUint8 && b <= packUint64:
		kind, head = metaPlain, 1+1<<(b-packUint8)
	case b >= packInt8 && b <= packInt64:
		kind, head = metaPlain, 1+1<<(b-packInt8)
	case b >= packStr8 && b <= packStr8+2:
		kind, head = metaText, 1+1<<(b-packStr8)
	case b == packArray16 || b == packArray16+1:
		kind, head = metaList, 1+2<<(b-packArray16)
	case b == packMap16 || b == packMap16+1:
		kind, head = metaMap, 1+2<<(b-packMap16)
	}
	return kind, head, true
}

// value goes behind the next value, which is in maps and lists that are `depth` deep. `key` is not nil if the value must be the key of a map:
// then it is the key before, and value stores the key there.
func (p *metaParser) value(depth int, key *[]byte) (v any, why string) {
	kind, head, ok := p.peek()
	switch {
	case !ok || len(p.rest) < head:
		return nil, "it ends too early"
	case kind == metaWrong:
		return nil, fmt.Sprintf("%#x begins no value that meta may have", p.rest[0])
	case key != nil && kind != metaText:
		return nil, "a key is no text"
	}
	first, n := p.rest[0], uint64(0)
	for _, b := range p.rest[1:head] {
		n = n<<8 | uint64(b)
	}
	if head == 1 { // the byte has the number
		switch kind {
		case metaText:
			n = uint64(first & 31)
		case metaList, metaMap:
			n = uint64(first & 15)
		}
	}
	p.rest = p.rest[head:]
	if kind == metaPlain {
		if p.makes {
			v = plain(first, n)
		}
		return v, ""
	}
	if n > uint64(len(p.rest)) { // every element has at least one byte
		return nil, fmt.Sprintf("it says that %d bytes or elements follow, and %d bytes are left", n, len(p.rest))
	}
	switch kind {
	case metaText, metaBytes:
		b := p.rest[:n]
		p.rest = p.rest[n:]
		switch {
		case kind == metaText && !utf8.Valid(b):
			return nil, fmt.Sprintf("a text is not UTF-8: %.64q", b)
		case key != nil:
			*key = b
		case p.makes && kind == metaText:
			return string(b), ""
		case p.makes:
			return bytes.Clone(b), ""
		}
		return nil, ""
	}
	if depth == MaxMetaDepth {
		return nil, fmt.Sprintf("it is deeper than %d", MaxMetaDepth)
	}
	if kind == metaList {
		return p.list(int(n), depth+1)
	}
	return p.mapping(int(n), depth+1)
}

func (p *metaParser) list(n, depth int) (any, string) {
	var list []any
	if p.makes {
		list = make([]any, 0, n)
	}
	for range n {
		v, why := p.value(depth, nil)
		if why != "" {
			return nil, why
		}
		if p.makes {
			list = append(list, v)
		}
	}
	return list, ""
}

func (p *metaParser) mapping(n, depth int) (any, string) {
	var m map[string]any
	if p.makes {
		m = make(map[string]any, n)
	}
	var key, last []byte
	for i := range n {
		if _, why := p.value(depth, &key); why != "" {
			return nil, why
		}
		if i > 0 && bytes.Compare(key, last) <= 0 {
			return nil, fmt.Sprintf("keys are not in order: %.64q after %.64q", key, last)
		}
		v, why := p.value(depth, nil)
		if why != "" {
			return nil, why
		}
		if p.makes {
			m[string(key)] = v
		}
		last = key
	}
	return m, ""
}

// plain returns the value that begins with the byte `first` and has the number n.
func plain(first byte, n uint64) any {
	switch {
	case first < packFixmap:
		return int64(first)
	case first >= packNegative:
		return int64(int8(first))
	case first == packNil:
		return nil
	case first == packFalse || first == packTrue:
		return first == packTrue
	case first == packFloat32:
		return float64(math.Float32frombits(uint32(n)))
	case first == packFloat64:
		return math.Float64frombits(n)
	case first >= packInt8:
		shift := 64 - 8<<(first-packInt8)
		return int64(n<<shift) >> shift
	case n > math.MaxInt64:
		return n
	}
	return int64(n)
}
