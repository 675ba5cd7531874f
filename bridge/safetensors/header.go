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
	"unicode/utf8"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// maxHeader is the most bytes of a header. The format's own library refuses more, too.
const maxHeader = 100_000_000

// metadataKey is the key of the metadata in a header.
const metadataKey = "__metadata__"

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
// refuses.
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
	if len(header) == 0 || header[0] != '{' || !utf8.Valid(header) {
		return nil, nil, invalid("the header is no JSON object")
	}
	d, metadata := json.NewDecoder(bytes.NewReader(header)), map[string]string{}
	err = object(d, func(name string) error {
		if name == metadataKey {
			return object(d, func(key string) error {
				var value string
				err := d.Decode(&value)
				metadata[key] = value
				return err
			})
		}
		e := entry{name: name}
		var dtype string
		var offsets []uint64
		err := object(d, func(key string) error {
			switch key {
			case "dtype":
				return d.Decode(&dtype)
			case "shape":
				return d.Decode(&e.tensor.Shape)
			case "data_offsets":
				return d.Decode(&offsets)
			}
			return fmt.Errorf("%q is not known: expected dtype, shape and data_offsets", key)
		})
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		if err := mempool.ValidateName("tensor", name); err != nil {
			return err
		}
		e.tensor.DType = dtypes[dtype]
		switch {
		case e.tensor.DType == "":
			return fmt.Errorf("tensor %q has elements of type %q, which cannot be shared: save its bytes as U8", name, dtype)
		case e.tensor.Shape == nil || len(offsets) != 2:
			return fmt.Errorf("tensor %q lacks its shape or its two data_offsets", name)
		}
		if e.tensor.DType == mempool.Float4E2M1FNx2 { // the file's shape counts floats
			last := len(e.tensor.Shape) - 1
			if last < 0 || e.tensor.Shape[last]%2 != 0 {
				return fmt.Errorf("tensor %q has the shape %v of F4: its last extent must be even, because two floats share a byte", name, e.tensor.Shape)
			}
			e.tensor.Shape[last] /= 2
		}
		e.begin, e.end = offsets[0], offsets[1]
		entries = append(entries, e)
		return nil
	})
	if _, after := d.Token(); err == nil && !errors.Is(after, io.EOF) {
		err = errors.New("something follows the object")
	}
	if err != nil {
		return nil, nil, invalid("the header is malformed: %v", err)
	}
	return metadata, entries, nil
}

// object reads an object, and calls f for each key, which reads the value. Unlike package json, object refuses an object that has a key twice.
func object(d *json.Decoder, f func(key string) error) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("expected an object, found %v: %w", t, errors.Join(err, bridge.ErrInvalid))
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			return fmt.Errorf("expected a key, found %v: %w", t, errors.Join(err, bridge.ErrInvalid))
		}
		if seen[key] {
			return fmt.Errorf("the key %q is there twice", key)
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
