// Package safetensors loads models from files of the format safetensors into buffers of several arrays, and saves such buffers.
package safetensors

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/internal/digest"
	"github.com/poolbridge/poolbridge/mempool"
)

// One goroutine reads at most chunkBytes at once. Bytes for memory that the CPU does not reach go through at most `pieces` pieces of page-locked
// memory of this size. Tests change them.
var (
	chunkBytes uint64 = 2 << 20
	pieces            = 20
)

// Files are the open files of one model.
type Files struct {
	// Tensor describes one buffer that holds all tensors of the model, each of which is one of its arrays, for [bridge.Pool.Allocate]. It has the
	// metadata of all files; of a key that several files have, the value of the first file. A program may add metadata.
	Tensor mempool.Tensor
	// Bytes is the number of bytes of all tensors.
	Bytes uint64

	files  []file
	places []place // in the order of the tensors in the buffer
}

type file struct {
	*os.File
	size     int64
	modified time.Time
}

// place says where the bytes of a tensor are in a file, and where they go in the buffer.
type place struct {
	file     *os.File
	from, to uint64
	n        uint64
}

// Open opens a model and reads the headers of its files.
//
// A path names a file, the index of a model of several files (*.index.json), or a folder that has an index or *.safetensors.
//
// Errors: [bridge.ErrInvalid] for a file that is no safetensors file, an element type that cannot be shared, two tensors of one name, and an index
// that names a tensor which is not in its file; the errors of package os. An error names the file. Tensors of a file that the index does not name are
// loaded, as by the libraries of Hugging Face.
func Open(path string) (*Files, error) {
	paths, index, err := filesOf(path)
	if err != nil {
		return nil, err
	}
	f := new(Files)
	if err := f.openAll(path, paths, index); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// openAll opens the files of the model `path`. The index says in which of them each tensor is.
func (f *Files) openAll(path string, paths []string, index map[string]string) (err error) {
	var arrays []mempool.NamedTensor
	metadata := map[string]string{}
	for _, one := range paths {
		texts, entries, err := f.open(one)
		if err != nil {
			return err
		}
		maps.Copy(texts, metadata)
		metadata = texts
		for _, e := range entries {
			arrays = append(arrays, mempool.NamedTensor{Name: e.name, Tensor: e.tensor})
			f.places = append(f.places, place{file: f.files[len(f.files)-1].File, from: e.begin, n: e.end - e.begin})
			f.Bytes += e.end - e.begin
			if index[e.name] == one {
				delete(index, e.name)
			}
		}
	}
	if len(index) > 0 {
		missing := slices.Sorted(maps.Keys(index))
		return invalid("%s: the index names %d tensors that are not in their files, such as %.100q (the first in %.100q): get the files again, or their index",
			path, len(missing), missing[:min(3, len(missing))], filepath.Base(index[missing[0]]))
	}
	if len(arrays) == 0 {
		return invalid("%s has no tensor, and a buffer needs one", path)
	}
	if f.Tensor, err = mempool.Pack(arrays...); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	f.Tensor.Metadata = metadata
	for i, a := range f.Tensor.Arrays {
		f.places[i].to = a.Tensor.ByteOffset
	}
	return nil
}

// filesOf returns the files of a model and, if an index names them, the file of each tensor.
func filesOf(path string) ([]string, map[string]string, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		if strings.HasSuffix(path, ".index.json") && err == nil {
			return indexed(path)
		}
		return []string{path}, nil, err
	}
	if index := filepath.Join(path, "model.safetensors.index.json"); exists(index) {
		return indexed(index)
	}
	inside, err := os.ReadDir(path)
	var found []string
	for _, one := range inside {
		if strings.HasSuffix(one.Name(), ".safetensors") {
			found = append(found, filepath.Join(path, one.Name()))
		}
	}
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%w: there is no *.safetensors in %s", bridge.ErrNotFound, path)
	}
	return found, nil, err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// indexed returns the files that an index names, and the file of each tensor. They are in its folder.
func indexed(path string) ([]string, map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	var index struct {
		Files map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &index); err != nil || len(index.Files) == 0 {
		return nil, nil, invalid("%s has no weight_map, which names the files: %.200v", path, err)
	}
	for tensor, name := range index.Files {
		if !filepath.IsLocal(name) || len(name) >= unix.PathMax {
			return nil, nil, invalid("%s names the file %.200q, which is not in its folder", path, name)
		}
		index.Files[tensor] = filepath.Join(filepath.Dir(path), name)
	}
	return slices.Compact(slices.Sorted(maps.Values(index.Files))), index.Files, nil
}

func (f *Files) open(path string) (map[string]string, []entry, error) {
	opened, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // the open of a FIFO would wait for its writer
	if err != nil {
		return nil, nil, err
	}
	info, err := opened.Stat()
	f.files = append(f.files, file{File: opened})
	if err == nil && !info.Mode().IsRegular() {
		err = invalid("%s is no regular file", path)
	}
	if err != nil {
		return nil, nil, err
	}
	one := &f.files[len(f.files)-1]
	one.size, one.modified = info.Size(), info.ModTime()
	metadata, entries, err := readHeader(opened, uint64(one.size))
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return metadata, entries, err
}

// Close closes the files.
func (f *Files) Close() (err error) {
	for _, one := range f.files {
		err = errors.Join(err, one.Close())
	}
	return err
}

// Load reads all tensors into a buffer that was allocated for f.Tensor. Several goroutines read at the same time. If `done` is not nil, Load
// adds to it the bytes that are in the buffer; another goroutine can show them meanwhile. When Load returns, also with an error, it does not use the
// memory any more. The lease must not end before.
//
// Errors: [bridge.ErrReleased] if the lease has ended meanwhile; [bridge.ErrInvalid] if the buffer has other arrays, the lease is a read lease, or a file
// has changed since Open; those of [bridge.Lease.Bytes], [bridge.Lease.Upload] and of the files; the context's error.
func (f *Files) Load(ctx context.Context, l *bridge.Lease, done *atomic.Uint64) (err error) {
	to, err := f.target(ctx, l)
	if err != nil {
		return err
	}
	return errors.Join(f.fill(ctx, to, done), l.Check(ctx))
}

// Share publishes the buffer as p says, and then reads all tensors into it, as Load does. A reader that gets the buffer meanwhile waits for the
// content. If Share fails after it has called `published`, the content has failed for readers, too.
//
// Errors: those of [bridge.Client.Clock], [bridge.Lease.Publish] and Load.
func (f *Files) Share(ctx context.Context, c *bridge.Client, l *bridge.Lease, p mempool.Publication, published func(), done *atomic.Uint64) (err error) {
	clock, err := c.Clock(ctx)
	if err != nil {
		return err
	}
	word, err := clock.Word(ctx)
	if err != nil {
		return err
	}
	ready := clock.Next(word)
	p.Ready = &ready
	defer func() {
		if err != nil {
			err = errors.Join(err, clock.Fail(ready, err.Error()))
		} else {
			err = clock.Reach(ready)
		}
		err = errors.Join(err, clock.Free(word))
	}()
	to, err := f.target(ctx, l)
	if err != nil {
		return err
	}
	if err := l.Publish(ctx, p); err != nil {
		return errors.Join(err, to.close())
	}
	published()
	return errors.Join(f.fill(ctx, to, done), l.Check(ctx))
}

// Verify reads all tensors again, and compares them with the buffer. The files' bytes come from the page cache, if they are there.
//
// Errors: [bridge.ErrContentFailed] if a byte differs; [bridge.ErrInvalid] if a file has changed since Open; those of [bridge.Lease.CopyTo] and of the files.
func (f *Files) Verify(ctx context.Context, l *bridge.Lease) error {
	return f.each(ctx, func(ctx context.Context, c chunk) error {
		loaded, read := make([]byte, c.n), make([]byte, c.n)
		if err := errors.Join(l.CopyTo(ctx, loaded, c.to), c.read(read)); err != nil {
			return err
		}
		for _, p := range c.parts {
			if at := p.to - c.to; !bytes.Equal(loaded[at:][:p.n], read[at:][:p.n]) {
				return fmt.Errorf("%w: the bytes %d to %d of %s differ from those in the buffer: load it again", bridge.ErrContentFailed, p.from, p.from+p.n, p.file.Name())
			}
		}
		return nil
	})
}

// Digest reads all tensors, and adds the digest of each to the metadata of f.Tensor, for [bridge.Lease.Verify]. Call it before f.Tensor is used.
// After it, the files' bytes are in the page cache, if they fit.
//
// Errors: [bridge.ErrInvalid] if a file has changed since Open; those of the files; the context's error.
func (f *Files) Digest(ctx context.Context) error {
	digests, err := digest.Of(ctx, f.Tensor.Arrays, func(i int, piece []byte, at uint64) error {
		n := uint64(len(piece))
		return chunk{n: n, parts: []place{{file: f.places[i].file, from: f.places[i].from + at, n: n}}}.read(piece)
	})
	if err := errors.Join(err, f.unchanged()); err != nil {
		return err
	}
	metadata := maps.Clone(f.Tensor.Metadata)
	for i, a := range f.Tensor.Arrays {
		metadata[bridge.DigestPrefix+a.Name] = digests[i]
	}
	f.Tensor.Metadata = metadata
	return nil
}

// target is the memory of a buffer: `memory`, or what `upload` fills if the CPU does not reach the memory.
type target struct {
	memory []byte
	upload *bridge.Upload
}

// close ends the use of the memory.
func (t target) close() error {
	if t.upload == nil {
		return nil
	}
	return t.upload.Close()
}

// target returns the memory of a write lease for the tensors.
func (f *Files) target(ctx context.Context, l *bridge.Lease) (t target, err error) {
	into := l.Grant()
	if !into.Write || !(mempool.Tensor{Arrays: into.Tensor.Arrays}).Equal(mempool.Tensor{Arrays: f.Tensor.Arrays}) {
		return t, invalid("the lease is no write lease of a buffer that was allocated for Files.Tensor")
	}
	if t.memory, err = l.Bytes(ctx); err == nil && t.memory == nil && into.Bytes > 0 {
		t.upload, err = l.Upload(ctx, min(chunkBytes, into.Bytes), pieces)
	}
	return t, err
}

// fill reads all tensors, and closes the target.
func (f *Files) fill(ctx context.Context, to target, done *atomic.Uint64) (err error) {
	defer func() { err = errors.Join(err, to.close()) }()
	if done == nil {
		done = new(atomic.Uint64)
	}
	return f.each(ctx, func(ctx context.Context, c chunk) error {
		count := func() { done.Add(c.bytes()) }
		if to.upload != nil {
			return to.upload.Copy(ctx, c.to, c.n, c.read, count)
		}
		if err := c.read(to.memory[c.to:][:c.n]); err != nil {
			return err
		}
		count()
		return nil
	})
}

// each calls `work` with each chunk, several times at once, and then checks that the files are those that Open has opened.
func (f *Files) each(ctx context.Context, work func(context.Context, chunk) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(max(runtime.NumCPU(), 2), 16))
	for _, c := range f.chunks() {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return work(ctx, c)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return f.unchanged()
}

// unchanged checks that the files are those that Open has opened.
func (f *Files) unchanged() error {
	for _, one := range f.files {
		if info, err := one.Stat(); err != nil || info.Size() != one.size || !info.ModTime().Equal(one.modified) {
			return errors.Join(invalid("%s has changed while it was read: load it again", one.Name()), err)
		}
	}
	return nil
}

// chunk is a part of the buffer: n bytes from the byte `to` on.
type chunk struct {
	to, n uint64
	parts []place
}

// chunks divides the buffer. A chunk has a part of a large tensor, or many small tensors.
func (f *Files) chunks() (all []chunk) {
	var c chunk
	for _, p := range f.places {
		for p.n > 0 {
			if len(c.parts) > 0 && p.to-c.to >= chunkBytes {
				all, c = append(all, c), chunk{}
			}
			if len(c.parts) == 0 {
				c.to = p.to
			}
			part := p
			part.n = min(p.n, chunkBytes-(p.to-c.to))
			c.parts = append(c.parts, part)
			c.n = part.to + part.n - c.to
			p.from, p.to, p.n = p.from+part.n, p.to+part.n, p.n-part.n
		}
	}
	if len(c.parts) > 0 {
		all = append(all, c)
	}
	return all
}

// bytes returns the number of bytes of the chunk's tensors.
func (c chunk) bytes() (n uint64) {
	for _, p := range c.parts {
		n += p.n
	}
	return n
}

// read reads the chunk from the files into memory for it.
func (c chunk) read(to []byte) error {
	for _, p := range c.parts {
		if _, err := p.file.ReadAt(to[p.to-c.to:][:p.n], int64(p.from)); err != nil {
			return fmt.Errorf("%s: %w", p.file.Name(), cut(err, "it has changed since its header was read"))
		}
	}
	return nil
}
