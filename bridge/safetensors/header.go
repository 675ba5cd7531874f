package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// maxHeader is the most bytes of a header. The format's own library refuses more, too.
const maxHeader = 100_000_000

// metadataKey is the key of the metadata in a header.
const metadataKey = "__metadata__"

// maxLayout is the most bytes of a buffer's layout. In it, a text of the metadata and a tensor need at least so many bytes beside their texts.
// Tests change maxLayout.
var maxLayout = mempool.MaxLayoutBytes

const metadataBytes, tensorBytes = 7, 16

var dtypes = map[string]mempool.DType{
	"BOOL": mempool.Bool, "I8": mempool.Int8, "I16": mempool.Int16, "I32": mempool.Int32, "I64": mempool.Int64,
	"U8": mempool.Uint8, "U16": mempool.Uint16, "U32": mempool.Uint32, "U64": mempool.Uint64,
	"F16": mempool.Float16, "BF16": mempool.BFloat16, "F32": mempool.Float32, "F64": mempool.Float64, "C64": mempool.Complex64,
	"F8_E4M3": mempool.Float8E4M3FN, "F8_E5M2": mempool.Float8E5M2, "F8_E8M0": mempool.Float8E8M0FNU,
	"F8_E4M3FNUZ": mempool.Float8E4M3FNUZ, "F8_E5M2FNUZ": mempool.Float8E5M2FNUZ, "F4": mempool.Float4E2M1FNx2,
}

// entry is a tensor of a file.
type entry struct {
	name       string
	tensor     mempool.Tensor
	begin, end uint64 // of its bytes in the file
}

// readHeader reads the metadata and the tensors of a file of `size` bytes, in the order of their bytes. It refuses what the format's own library
// refuses, except a shape without elements whose other extents have too large a product.
func readHeader(file io.ReaderAt, size uint64) (map[string]string, []entry, error) {
	var prefix [8]byte
	if _, err := file.ReadAt(prefix[:], 0); err != nil {
		return nil, nil, cut(err, "the file has %d bytes, too few for a header", size)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > maxHeader || n > size-8 {
		return nil, nil, invalid("the header would have %d bytes: at most %d are possible, and the file has %d", n, maxHeader, size)
	}
	header := make([]byte, n)
	if _, err := file.ReadAt(header, 8); err != nil {
		return nil, nil, cut(err, "the header has %d bytes", n)
	}
	metadata, entries, err := parse(header)
	if err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end)) })
	at, data := uint64(0), size-8-n
	for i := range entries {
		e := &entries[i]
		if e.begin != at {
			return nil, nil, invalid("tensor %q begins at byte %d of the data, and the tensor before it ends at %d", e.name, e.begin, at)
		}
		if extent, err := e.tensor.Extent(); err != nil || e.end < e.begin || e.end-e.begin != extent {
			return nil, nil, invalid("tensor %q has the bytes %d to %d, which is not the size of %s%v", e.name, e.begin, e.end, e.tensor.DType, e.tensor.Shape)
		}
		at = e.end
		e.begin, e.end = e.begin+8+n, e.end+8+n
	}
	if at != data {
		return nil, nil, invalid("the tensors have %d bytes, and the file has %d behind its header", at, data)
	}
	return metadata, entries, nil
}

// parse reads the metadata and the tensors of a header.
func parse(header []byte) (_ map[string]string, entries []entry, err error) {
	switch {
	case len(header) == 0 || header[0] != '{' || !utf8.Valid(header):
		return nil, nil, invalid("the header is no JSON object")
	case hasLoneSurrogate(header):
		return nil, nil, invalid(`a text of the header has half of a pair of surrogates, as in "\ud800", which is no character`)
	}
	d, metadata := json.NewDecoder(bytes.NewReader(header)), map[string]string{}
	layout := 0
	grow := func(n int) error {
		if layout += n; layout > maxLayout {
			return fmt.Errorf("the names, shapes and metadata would need more than %d bytes in a buffer: shorten the metadata, or divide the file", maxLayout)
		}
		return nil
	}
	err = object(d, func(name string) error {
		if name == metadataKey {
			return object(d, func(key string) error {
				t, err := d.Token()
				value, ok := t.(string)
				if err == nil && !ok {
					err = fmt.Errorf("the metadata %.100q is no text", key)
				}
				metadata[key] = value
				return errors.Join(err, grow(len(key)+len(value)+metadataBytes))
			})
		}
		if err := mempool.ValidateName("tensor", name); err != nil {
			return err
		}
		var dtype string
		var shape, offsets numbers
		err := object(d, func(key string) error {
			switch key {
			case "dtype":
				return d.Decode(&dtype)
			case "shape":
				return d.Decode(&shape)
			case "data_offsets":
				return d.Decode(&offsets)
			}
			return d.Decode(new(json.RawMessage)) // the format's library skips it, too
		})
		e := entry{name: name, tensor: mempool.Tensor{DType: dtypes[dtype], Shape: shape}}
		switch {
		case err != nil:
			return fmt.Errorf("tensor %q: %w", name, err)
		case dtype == "" || shape == nil || len(offsets) != 2:
			return fmt.Errorf("tensor %q lacks its dtype, its shape or its two data_offsets", name)
		case e.tensor.DType == "":
			return fmt.Errorf("tensor %q has elements of type %.100q, which cannot be shared: save its bytes as U8", name, dtype)
		}
		if e.tensor.DType == mempool.Float4E2M1FNx2 { // the file's shape counts floats
			last := len(shape) - 1
			if last < 0 || shape[last]%2 != 0 {
				return fmt.Errorf("tensor %q has the shape %v of F4: its last extent must be even, because two floats share a byte", name, shape)
			}
			shape[last] /= 2
		}
		e.begin, e.end = offsets[0], offsets[1]
		entries = append(entries, e)
		return grow(len(name) + tensorBytes)
	})
	if _, after := d.Token(); err == nil && !errors.Is(after, io.EOF) {
		err = errors.New("something follows the object")
	}
	if err != nil {
		return nil, nil, invalid("the header cannot be read: %.600v", err)
	}
	return metadata, entries, nil
}

// numbers are an array of JSON. Package json alone would read null as 0.
type numbers []uint64

func (n *numbers) UnmarshalJSON(text []byte) error {
	if found := bytes.Count(text, []byte(",")) + 1; found > mempool.MaxDims {
		return fmt.Errorf("found %d dimensions: at most %d are possible", found, mempool.MaxDims)
	}
	if bytes.Contains(text, []byte("null")) || json.Unmarshal(text, (*[]uint64)(n)) != nil {
		return fmt.Errorf("expected an array of whole numbers, found %.100s", text)
	}
	return nil
}

// hasLoneSurrogate reports whether JSON has half of a pair of surrogates, as in "\ud800", which is no text. Package json would read U+FFFD.
func hasLoneSurrogate(text []byte) bool {
	for {
		at := bytes.IndexByte(text, '\\')
		if at < 0 {
			return false
		}
		text = text[at:]
		n := 2
		if first := escaped(text); utf16.IsSurrogate(first) {
			if n = 12; utf16.DecodeRune(first, escaped(text[6:])) == utf8.RuneError {
				return true
			}
		}
		text = text[min(n, len(text)):]
	}
}

// escaped returns the character of an escape such as \u20ac at the beginning of a text; -1 if there is none.
func escaped(text []byte) rune {
	if len(text) >= 6 && text[0] == '\\' && text[1] == 'u' {
		if n, err := strconv.ParseUint(string(text[2:6]), 16, 16); err == nil {
			return rune(n)
		}
	}
	return -1
}

// object reads an object, and calls f for each key, which reads the value. Unlike package json, object refuses an object that has a key twice.
// For null, it does nothing.
func object(d *json.Decoder, f func(key string) error) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		if t != nil {
			err = fmt.Errorf("expected an object, found %.100v", t)
		}
		return err
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := t.(string) // package json makes sure of that
		if seen[key] {
			return fmt.Errorf("the key %.100q is there twice", key)
		}
		seen[key] = true
		if err := f(key); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func invalid(format string, args ...any) error {
	return typed.Errorf(mempool.ErrInvalid, format, args...)
}

// cut returns the error of a read: a file that ended too early is no valid file.
func cut(err error, format string, args ...any) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("the file ends too early: "+format, args...)
	}
	return err
}
