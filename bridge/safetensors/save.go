package safetensors

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// Save waits until the content of a buffer of several arrays is complete, and writes it as a safetensors file. A file that is there already stays
// as it is until the new one is complete, and then is replaced. A symbolic link stays: the file that it names is replaced.
//
// Errors: [bridge.ErrInvalid] if the path names the standard output, or what is no regular file; those of [Write] and of the files.
func Save(ctx context.Context, l *bridge.Lease, path string) (err error) {
	if path, err = replaceable(path); err != nil {
		return err
	}
	next := filepath.Join(filepath.Dir(path), fmt.Sprintf(".saved-%x", rand.Uint64()))
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666) // os.CreateTemp's have another mode
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err == nil {
			err = os.Rename(next, path)
		}
		if err != nil {
			err = errors.Join(err, os.Remove(next))
		}
	}()
	if err := Write(ctx, l, file); err != nil {
		return err
	}
	return file.Sync()
}

// Write waits until the content of a buffer of several arrays is complete, and writes what a safetensors file of it has. Arrays that share
// memory, such as tied weights, are written once for each name.
//
// Errors: [bridge.ErrInvalid], before anything is written, if the buffer is one array, or the format lacks an element type; those of
// [bridge.Lease.CopyTo] and of w; the context's error.
func Write(ctx context.Context, l *bridge.Lease, w io.Writer) error {
	tensor := l.Tensor()
	header, err := headerOf(tensor.Arrays, tensor.Metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	piece := make([]byte, chunkBytes)
	for _, a := range tensor.Arrays {
		n, err := sizeOf(a.Tensor)
		if err != nil {
			return err
		}
		for at := uint64(0); at < n; at += chunkBytes {
			part := piece[:min(n-at, chunkBytes)]
			if err := errors.Join(ctx.Err(), l.CopyTo(ctx, part, a.Tensor.ByteOffset+at)); err != nil {
				return err
			}
			if _, err := w.Write(part); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaceable returns the path of the file that `path` names, which is new or a regular file.
func replaceable(path string) (string, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return "", invalid("%s is a symbolic link to a file that is not there: remove it, or name that file", path)
		}
		return path, nil
	}
	if err != nil {
		return "", err
	}
	if out, err := os.Stdout.Stat(); !info.Mode().IsRegular() || err == nil && os.SameFile(info, out) {
		return "", invalid("%s is a folder, a device, a pipe or the standard output: name a regular file or a new one", path)
	}
	return filepath.EvalSymlinks(path)
}

// sizeOf returns the number of bytes of an array.
func sizeOf(t mempool.Tensor) (uint64, error) {
	n, err := t.Elements()
	return n * t.DType.ItemSize(), err
}

// headerOf returns what a file of the arrays begins with: the length of its header, and the header, with blanks up to a multiple of 8 bytes.
func headerOf(arrays []mempool.NamedTensor, metadata map[string]string) ([]byte, error) {
	if len(arrays) == 0 {
		return nil, invalid("the buffer is one array, and a file is made of a buffer of several")
	}
	type field struct {
		DType   string    `json:"dtype"`
		Shape   []uint64  `json:"shape"`
		Offsets [2]uint64 `json:"data_offsets"`
	}
	fields, end := make(map[string]any, len(arrays)+1), uint64(0)
	if len(metadata) > 0 {
		fields[metadataKey] = metadata
	}
	for _, a := range arrays {
		n, err := sizeOf(a.Tensor)
		if err != nil {
			return nil, err
		}
		f := field{Shape: slices.Clone(a.Tensor.Shape), Offsets: [2]uint64{end, end + n}}
		for name, dtype := range dtypes {
			if dtype == a.Tensor.DType {
				f.DType = name
			}
		}
		last := len(f.Shape) - 1
		switch {
		case a.Name == metadataKey:
			return nil, invalid("array %q has the name of the metadata: share it under another name", a.Name)
		case a.Tensor.Strides != nil:
			return nil, invalid("array %q has strides, which the format lacks: share a C-contiguous copy", a.Name)
		case f.DType == "", f.DType == "F4" && last < 0:
			return nil, invalid("array %q has elements of type %s, which the format lacks: share them as bytes", a.Name, a.Tensor.DType)
		case last < 0:
			f.Shape = []uint64{}
		case f.DType == "F4": // the file's shape counts floats
			f.Shape[last] *= 2
		}
		fields[a.Name], end = f, end+n
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	text = append(text, strings.Repeat(" ", -len(text)&7)...)
	if len(text) > maxHeader {
		return nil, invalid("the header of %d arrays would have %d bytes, and at most %d are possible", len(arrays), len(text), maxHeader)
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), nil
}
