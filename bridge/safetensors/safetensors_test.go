package safetensors

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
	"github.com/poolbridge/poolbridge/tests/harness"
)

// described returns a file with a header.
func described(header string, data []byte) []byte {
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(file, header...), data...)
}

// model returns a file with the named tensors, whose bytes are random, and these bytes.
func model(t testing.TB, sizes map[string][]uint64) (file []byte, content map[string][]byte) {
	t.Helper()
	content = map[string][]byte{}
	header := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	var data []byte
	for name, shape := range sizes {
		n := mempool.Tensor{DType: mempool.Float32, Shape: shape}
		size, err := n.Extent()
		require.NoError(t, err)
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(rand.Uint32())
		}
		header[name] = map[string]any{"dtype": "F32", "shape": shape, "data_offsets": []int{len(data), len(data) + len(b)}}
		data, content[name] = append(data, b...), b
	}
	text, err := json.Marshal(header)
	require.NoError(t, err)
	return described(string(text)+"   ", data), content
}

func write(t testing.TB, folder, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(folder, name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

// dial returns a client of a new service.
func dial(t *testing.T) *bridge.Client {
	t.Helper()
	svc := service.New(service.Config{})
	socket := harness.SocketPath(t)
	srv, err := server.Listen(socket, svc, server.Config{})
	require.NoError(t, err)
	client, err := bridge.Dial(t.Context(), socket)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, client.Close())
		_ = srv.Close()
		svc.Close()
	})
	return client
}

// pools returns a pool of each kind of memory that this machine has.
func pools(t *testing.T) map[mempool.Kind]*bridge.Pool { return poolsOf(t, dial(t)) }

func poolsOf(t *testing.T, client *bridge.Client) map[mempool.Kind]*bridge.Pool {
	t.Helper()
	all := map[mempool.Kind]*bridge.Pool{}
	for _, kind := range mempool.Kinds() {
		if kind.Probe("") == nil && kind != mempool.Legacy { // a process cannot open its own legacy handles
			pool, err := client.CreatePool(t.Context(), mempool.PoolSpec{Name: string(kind), Kind: kind, MaxBytes: 256 << 20})
			require.NoError(t, err)
			all[kind] = pool
		}
	}
	return all
}

func load(t *testing.T, pool *bridge.Pool, path string) *bridge.Lease {
	t.Helper()
	f, err := Open(path)
	require.NoError(t, err)
	defer func() { assert.NoError(t, f.Close()) }()
	l, err := pool.TryAllocate(t.Context(), f.Tensor)
	require.NoError(t, err)
	var done atomic.Uint64
	require.NoError(t, f.Load(t.Context(), l, &done))
	assert.Equal(t, f.Bytes, done.Load())
	return l
}

// compare compares the arrays of a buffer with their content.
func compare(t *testing.T, l *bridge.Lease, content map[string][]byte) {
	t.Helper()
	arrays := l.Tensor().Arrays
	require.Len(t, arrays, len(content))
	for _, a := range arrays {
		seen := make([]byte, len(content[a.Name]))
		require.NoError(t, l.CopyTo(t.Context(), seen, a.Tensor.ByteOffset))
		assert.True(t, bytes.Equal(content[a.Name], seen), "tensor %q differs", a.Name)
	}
}

func TestAModelIsLoadedIntoEveryKindOfMemory(t *testing.T) {
	sizes := map[string][]uint64{"large": {5 << 20}, "scalar": {}, "nothing": {0, 3}}
	for n := range 3000 {
		sizes[fmt.Sprintf("layers.%d.weight", n)] = []uint64{uint64(n % 7), 5}
	}
	file, content := model(t, sizes)
	path := write(t, t.TempDir(), "m.safetensors", file)
	for kind, pool := range pools(t) {
		for _, chunk := range []uint64{chunkBytes, 10_000} { // larger and smaller than many tensors together
			t.Run(fmt.Sprintf("%s, %d", kind, chunk), func(t *testing.T) {
				divided(t, chunk, 3)
				l := load(t, pool, path)
				compare(t, l, content)
				require.NoError(t, l.Release(false))
			})
		}
	}
}

// divided sets the size and the number of the pieces until the test ends.
func divided(t *testing.T, size uint64, number int) {
	t.Helper()
	sizeBefore, numberBefore := chunkBytes, pieces
	chunkBytes, pieces = size, number
	t.Cleanup(func() { chunkBytes, pieces = sizeBefore, numberBefore })
}

func TestTheFilesOfAModelAreOneBuffer(t *testing.T) {
	folder, all := filepath.Join(t.TempDir(), `[a]*\b`), map[string][]byte{}
	require.NoError(t, os.Mkdir(folder, 0o700))
	for i, names := range [][]string{{"a", "b"}, {"c"}, {"elsewhere"}} {
		sizes := map[string][]uint64{}
		for _, name := range names {
			sizes[name] = []uint64{uint64(100 + i)}
		}
		file, content := model(t, sizes)
		write(t, folder, fmt.Sprintf("model-%d.safetensors", i), file)
		for name, b := range content {
			all[name] = b
		}
	}
	pool := pools(t)[mempool.Host]
	l := load(t, pool, folder)
	compare(t, l, all)
	require.NoError(t, l.Release(false))

	index := write(t, folder, "model.safetensors.index.json", []byte(`{"weight_map": {"a": "model-0.safetensors", "b": "model-0.safetensors", "c": "model-1.safetensors"}}`))
	delete(all, "elsewhere")
	for _, path := range []string{folder, index} {
		l := load(t, pool, path)
		compare(t, l, all)
		require.NoError(t, l.Release(false))
	}
	for _, wrong := range []string{`{}`, `[]`, `{"weight_map": {"a": "../model-0.safetensors"}}`, `{"weight_map": {"a": "/etc/passwd"}}`} {
		_, err := Open(write(t, folder, "wrong.index.json", []byte(wrong)))
		require.ErrorIs(t, err, bridge.ErrInvalid)
		require.ErrorContains(t, err, "wrong.index.json")
	}
	write(t, folder, "twice.index.json", []byte(`{"weight_map": {"a": "model-0.safetensors", "d": "model-3.safetensors"}}`))
	file, _ := model(t, map[string][]uint64{"a": {1}, "d": {1}})
	write(t, folder, "model-3.safetensors", file)
	_, err := Open(filepath.Join(folder, "twice.index.json"))
	require.ErrorIs(t, err, bridge.ErrInvalid)
	require.ErrorContains(t, err, `"a"`)
	_, err = Open(write(t, folder, "lying.index.json", []byte(`{"weight_map": {"a": "model-0.safetensors", "b": "model-1.safetensors", "zz": "model-0.safetensors"}}`)))
	require.ErrorIs(t, err, bridge.ErrInvalid)
	require.ErrorContains(t, err, `lying.index.json: the index names 2 tensors that are not in their files, such as ["b" "zz"] (the first in "model-1.safetensors")`)
	partial := load(t, pool, write(t, folder, "partial.index.json", []byte(`{"weight_map": {"a": "model-0.safetensors"}}`)))
	require.Len(t, partial.Tensor().Arrays, 2, "a tensor that only the index lacks is loaded, as by the libraries of Hugging Face")
	require.NoError(t, partial.Release(false))
	_, err = Open(t.TempDir())
	require.ErrorIs(t, err, bridge.ErrNotFound)
	_, err = Open(filepath.Join(folder, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// malformed returns files that are refused, and what the error says.
func malformed() map[string][]byte {
	tensor := func(fields string) string { return `{"a":{` + fields + `}}` }
	const good = `"dtype":"U8","shape":[4],"data_offsets":[0,4]`
	files := map[string][]byte{
		"no room for a header":   {1, 2, 3},
		"a long header":          append(binary.LittleEndian.AppendUint64(nil, 100_000_001), make([]byte, 100)...),
		"a header beyond":        append(binary.LittleEndian.AppendUint64(nil, 1<<63), make([]byte, 100)...),
		"empty header":           described("", nil),
		"no object":              described("[]", nil),
		"a space first":          described(" {}", nil),
		"not UTF-8":              described("{\"\xff\":1}", nil),
		"cut":                    described(`{"a":`, nil),
		"two objects":            described(tensor(good)+"{}", make([]byte, 4)),
		"a name twice":           described(`{"a":{`+good+`},"a":{`+good+`}}`, make([]byte, 4)),
		"a field twice":          described(tensor(good+`,"shape":[4]`), make([]byte, 4)),
		"metadata of numbers":    described(`{"__metadata__":{"a":1}}`, nil),
		"metadata of null":       described(`{"__metadata__":{"a":null},"a":{`+good+`}}`, make([]byte, 4)),
		"null as an extent":      described(tensor(`"dtype":"U8","shape":[null],"data_offsets":[0,0]`), nil),
		"null as an offset":      described(tensor(`"dtype":"U8","shape":[4],"data_offsets":[null,4]`), make([]byte, 4)),
		"null as a shape":        described(tensor(`"dtype":"U8","shape":null,"data_offsets":[0,1]`), make([]byte, 1)),
		"null as a tensor":       described(`{"a":null}`, nil),
		"half a pair":            described(`{"\\\ud83d":{`+good+`}}`, make([]byte, 4)),
		"the second half":        described(`{"\uDE00":{`+good+`}}`, make([]byte, 4)),
		"two first halves":       described(`{"\ud83d\ud83d":{`+good+`}}`, make([]byte, 4)),
		"half a pair of a text":  described(`{"__metadata__":{"a":"\ud83dA"},"a":{`+good+`}}`, make([]byte, 4)),
		"a gap at the end":       described(tensor(good), make([]byte, 5)),
		"data missing":           described(tensor(good), make([]byte, 3)),
		"a gap":                  described(tensor(`"dtype":"U8","shape":[3],"data_offsets":[1,4]`), make([]byte, 4)),
		"an overlap":             described(`{"a":{`+good+`},"b":{`+good+`}}`, make([]byte, 4)),
		"backwards":              described(tensor(`"dtype":"U8","shape":[4],"data_offsets":[4,0]`), make([]byte, 4)),
		"another size":           described(tensor(`"dtype":"U16","shape":[4],"data_offsets":[0,4]`), make([]byte, 4)),
		"a product that wraps":   described(tensor(`"dtype":"U8","shape":[4294967296,4294967296,4],"data_offsets":[0,4]`), make([]byte, 4)),
		"a negative extent":      described(tensor(`"dtype":"U8","shape":[-4],"data_offsets":[0,4]`), make([]byte, 4)),
		"a fraction":             described(tensor(`"dtype":"U8","shape":[4.5],"data_offsets":[0,4]`), make([]byte, 4)),
		"three offsets":          described(tensor(`"dtype":"U8","shape":[4],"data_offsets":[0,4,4]`), make([]byte, 4)),
		"no shape":               described(tensor(`"dtype":"U8","data_offsets":[0,4]`), make([]byte, 4)),
		"no type":                described(tensor(`"shape":[4],"data_offsets":[0,4]`), make([]byte, 4)),
		"a type that none has":   described(tensor(`"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]`), make([]byte, 3)),
		"half a byte in a row":   described(tensor(`"dtype":"F4","shape":[2,3],"data_offsets":[0,3]`), make([]byte, 3)),
		"a scalar of half":       described(tensor(`"dtype":"F4","shape":[],"data_offsets":[0,1]`), make([]byte, 1)),
		"a byte for each half":   described(tensor(`"dtype":"F4","shape":[4],"data_offsets":[0,4]`), make([]byte, 4)),
		"a name without letters": described(`{"":{`+good+`}}`, make([]byte, 4)),
		"a control character":    described(`{"a\u0007":{`+good+`}}`, make([]byte, 4)),
		"a tensor that is text":  described(`{"a":"b"}`, nil),
		"many dimensions":        described(tensor(`"dtype":"U8","shape":[`+strings.Repeat("1,", 32)+`4],"data_offsets":[0,4]`), make([]byte, 4)),
		"no tensor":              described("{}", nil),
	}
	return files
}

func TestWhatTheFormatsLibraryReadsIsRead(t *testing.T) {
	const good = `{"dtype":"U8","shape":[4],"data_offsets":[0,4]}`
	for name, header := range map[string]string{
		"null as metadata":     `{"a":` + good + `,"__metadata__":null}`,
		"another field":        `{"a":` + good[:len(good)-1] + `,"x":{"y":[null]}}}`,
		"a pair of surrogates": `{"\ud83d\uDE00":` + good + `}`,
		"no surrogate":         `{"\\ud83d \" \ufffd":` + good + `}`,
		"blanks":               "{ \"a\" :\n" + good + "\t}\r ",
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Open(write(t, t.TempDir(), "m.safetensors", described(header, make([]byte, 4))))
			require.NoError(t, err)
			assert.NoError(t, f.Close())
		})
	}
}

func TestOfAKeyInTheMetadataOfSeveralFilesTheFirstValueCounts(t *testing.T) {
	folder := t.TempDir()
	for i, metadata := range []string{`{"k":"1st","only\u0000 1":"<\u20ac>"}`, `{"k":"2nd","only 2":""}`} {
		header := fmt.Sprintf(`{"t%d":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"__metadata__":%s}`, i, metadata)
		write(t, folder, fmt.Sprintf("%d.safetensors", i), described(header, []byte{1}))
	}
	write(t, folder, "2.safetensors", described(`{"t2":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, []byte{1}))
	pool := pools(t)[mempool.Host]
	l := load(t, pool, folder)
	want := map[string]string{"k": "1st", "only\x00 1": "<€>", "only 2": ""}
	assert.Equal(t, want, l.Tensor().Metadata)
	saved := filepath.Join(folder, "saved")
	require.NoError(t, Save(t.Context(), l, saved))
	again := load(t, pool, saved)
	assert.Equal(t, want, again.Tensor().Metadata)
	require.NoError(t, errors.Join(l.Release(false), again.Release(false)))
}

func TestFloatsOf4BitsBecomePairsWithHalfTheLastExtent(t *testing.T) {
	header := `{"a":{"dtype":"F4","shape":[3,8],"data_offsets":[0,12]},"none":{"dtype":"F4","shape":[2,0],"data_offsets":[12,12]}}`
	f, err := Open(write(t, t.TempDir(), "m.safetensors", described(header, make([]byte, 12))))
	require.NoError(t, err)
	defer func() { assert.NoError(t, f.Close()) }()
	for name, shape := range map[string][]uint64{"a": {3, 4}, "none": {2, 0}} {
		found, ok := f.Tensor.Array(name)
		require.True(t, ok)
		assert.Equal(t, mempool.Float4E2M1FNx2, found.DType)
		assert.Equal(t, shape, found.Shape)
	}
}

func TestAMalformedFileIsRefusedByItsName(t *testing.T) {
	for name, file := range malformed() {
		t.Run(name, func(t *testing.T) {
			fds := harness.OpenFDs(t)
			_, err := Open(write(t, t.TempDir(), "m.safetensors", file))
			require.ErrorIs(t, err, bridge.ErrInvalid)
			require.ErrorContains(t, err, "m.safetensors")
			assert.Equal(t, fds, harness.OpenFDs(t))
		})
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for _, path := range []string{"/dev/null", fifo} {
		_, err := Open(path)
		require.ErrorIs(t, err, bridge.ErrInvalid)
	}
}

func TestTheErrorOfAFileIsShort(t *testing.T) {
	const long = 100_000
	text, extents := strings.Repeat("x", long), strings.Repeat("1,", long)
	for name, file := range map[string]string{
		"a key":       `{"` + text + `":0,"` + text + `":0}`,
		"a key twice": `{"a":{"` + text + `":0,"` + text + `":0}}`,
		"a type":      `{"a":{"dtype":"` + text + `","shape":[],"data_offsets":[0,1]}}`,
		"no object":   `{"a":"` + text + `"}`,
		"a number":    `{"a":{"dtype":1` + strings.Repeat("0", long) + `}}`,
		"an extent":   `{"a":{"shape":[1` + strings.Repeat("0", long) + `]}}`,
		"dimensions":  `{"a":{"dtype":"U8","shape":[` + extents + `1],"data_offsets":[0,1]}}`,
		"metadata":    `{"__metadata__":{"` + text + `":0}}`,
	} {
		_, err := Open(write(t, t.TempDir(), "m.safetensors", described(file, []byte{0})))
		require.ErrorIs(t, err, bridge.ErrInvalid, name)
		assert.Less(t, len(err.Error()), 1000, name)
		if name == "dimensions" {
			require.ErrorContains(t, err, "at most 32")
		}
	}
	for _, index := range []string{`{"weight_map": {"a": "../` + text + `"}}`, `{"weight_map": {"a": "` + text + `"}}`, `{"weight_map": {"a": 1` + strings.Repeat("0", long) + `}}`} {
		_, err := Open(write(t, t.TempDir(), "m.index.json", []byte(index)))
		require.ErrorIs(t, err, bridge.ErrInvalid)
		assert.Less(t, len(err.Error()), 1000)
	}
	folder := t.TempDir()
	file, _ := model(t, map[string][]uint64{"a": {1}})
	write(t, folder, "m", file)
	_, err := Open(write(t, folder, "m.index.json", []byte(`{"weight_map": {"`+text+`": "m"}}`)))
	require.ErrorIs(t, err, bridge.ErrInvalid)
	assert.Less(t, len(err.Error()), 1000)
}

func TestWhatNoBufferCanDescribeIsRefusedBeforeAllIsRead(t *testing.T) {
	defer func() { maxLayout = mempool.MaxLayoutBytes }()
	maxLayout = 1000
	const tensor = `:{"dtype":"U8","shape":[0],"data_offsets":[0,0]},`
	for _, header := range []string{ // they end too early
		`{"__metadata__":{"a":"` + strings.Repeat("x", 1000) + `",`,
		`{"__metadata__":{"` + strings.Repeat("x", 1000) + `":"",`,
		`{"` + strings.Repeat("a", 240) + `"` + tensor + `"` + strings.Repeat("b", 240) + `"` + tensor + `"__metadata__":{"c":"` + strings.Repeat("x", 500) + `",`,
	} {
		_, err := Open(write(t, t.TempDir(), "m.safetensors", described(header, nil)))
		require.ErrorIs(t, err, bridge.ErrInvalid)
		require.ErrorContains(t, err, "m.safetensors")
		require.ErrorContains(t, err, "would need more than 1000 bytes in a buffer")
	}
	metadata, arrays := map[string]string{}, make([]wire.NamedTensor, 640)
	for i := range arrays {
		metadata[fmt.Sprintf("%03d", i)] = ""
		arrays[i] = wire.NamedTensor{Name: "a", Tensor: convert.WireTensor(mempool.Tensor{DType: mempool.Int8})}
	}
	layout, err := wire.AppendBufferLayout(nil, metadata, nil)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, len(layout), len(metadata)*(3+metadataBytes))
	layout, err = wire.AppendBufferLayout(nil, nil, arrays)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, len(layout), len(arrays)*(1+tensorBytes))
}

func TestAFileThatChangesWhileItIsReadIsAnError(t *testing.T) {
	content, _ := model(t, map[string][]uint64{"a": {10 << 20}})
	pool := pools(t)[mempool.Host]
	for name, change := range map[string]func(path string) error{
		"cut":       func(path string) error { return os.Truncate(path, 1<<20) },
		"longer":    func(path string) error { return os.Truncate(path, 100<<20) },
		"rewritten": func(path string) error { return os.Chtimes(path, time.Time{}, time.Unix(1, 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, t.TempDir(), "m.safetensors", content)
			f, err := Open(path)
			require.NoError(t, err)
			defer func() { assert.NoError(t, f.Close()) }()
			l, err := pool.TryAllocate(t.Context(), f.Tensor)
			require.NoError(t, err)
			require.NoError(t, change(path))
			require.ErrorIs(t, f.Load(t.Context(), l, nil), bridge.ErrInvalid)
			require.NoError(t, l.Release(true))
		})
	}
}

func TestAByteThatDiffersFromTheFileIsFound(t *testing.T) {
	file, _ := model(t, map[string][]uint64{"a": {1000}, "b": {}, "c": {3000}})
	path := write(t, t.TempDir(), "m.safetensors", file)
	for kind, pool := range pools(t) {
		t.Run(string(kind), func(t *testing.T) {
			divided(t, 4096, 3)
			f, err := Open(path)
			require.NoError(t, err)
			defer func() { assert.NoError(t, f.Close()) }()
			l := load(t, pool, path)
			require.NoError(t, f.Verify(t.Context(), l))
			large, _ := l.Tensor().Array("c")
			at := large.ByteOffset + 2000
			seen := make([]byte, 1)
			require.NoError(t, l.CopyTo(t.Context(), seen, at))
			require.NoError(t, l.CopyFrom(t.Context(), at, []byte{^seen[0]}))
			require.ErrorIs(t, f.Verify(t.Context(), l), bridge.ErrContentFailed)
			require.NoError(t, l.Release(false))
		})
	}
}

func TestALeaseIsVerifiedByTheDigestsOfTheFiles(t *testing.T) {
	file, content := model(t, map[string][]uint64{"a": {1000}, "b": {}, "c": {3 << 18}, "none": {0}})
	path := write(t, t.TempDir(), "m.safetensors", file)
	for kind, pool := range pools(t) {
		t.Run(string(kind), func(t *testing.T) {
			divided(t, 100_000, 3)
			f, err := Open(path)
			require.NoError(t, err)
			defer func() { assert.NoError(t, f.Close()) }()
			require.NoError(t, f.Digest(t.Context()))
			l, err := pool.TryAllocate(t.Context(), f.Tensor)
			require.NoError(t, err)
			require.NoError(t, f.Load(t.Context(), l, nil))
			require.NoError(t, l.Verify(t.Context()))
			cancelled, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, l.Verify(cancelled), context.Canceled)
			assert.Equal(t, "pt", l.Tensor().Metadata["format"])
			for name, b := range content {
				assert.Equal(t, fmt.Sprintf("%x", sha256.Sum256(b)), l.Tensor().Metadata[bridge.DigestPrefix+name])
			}
			c, _ := l.Tensor().Array("c")
			require.NoError(t, l.Fill(t.Context(), c.ByteOffset+(3<<20)-1, 1, ^content["c"][(3<<20)-1]))
			err = l.Verify(t.Context())
			require.ErrorIs(t, err, bridge.ErrContentFailed)
			require.ErrorContains(t, err, `array "c" has the SHA-256 digest `)
			require.NoError(t, l.Release(false))
			require.ErrorIs(t, l.Verify(t.Context()), bridge.ErrReleased)
		})
	}
	l := load(t, pools(t)[mempool.Host], path)
	require.ErrorIs(t, l.Verify(t.Context()), bridge.ErrInvalid, "it has no digests")
	require.NoError(t, l.Release(false))
	f, err := Open(path)
	require.NoError(t, err)
	defer func() { assert.NoError(t, f.Close()) }()
	require.NoError(t, os.Truncate(path, int64(len(file)-1)))
	require.ErrorIs(t, f.Digest(t.Context()), bridge.ErrInvalid)
}

func TestWhatWasSavedIsLoadedAgain(t *testing.T) {
	sizes := map[string][]uint64{"large": {5 << 18}, "scalar": {}, "nothing": {0, 3}, "<odd> \"name\"": {7}}
	file, content := model(t, sizes)
	path := write(t, t.TempDir(), "m.safetensors", file)
	for kind, pool := range pools(t) {
		t.Run(string(kind), func(t *testing.T) {
			saved := filepath.Join(t.TempDir(), "saved.safetensors")
			require.NoError(t, os.WriteFile(saved, []byte("another file"), 0o600))
			l := load(t, pool, path)
			require.NoError(t, Save(t.Context(), l, saved))
			again := load(t, pool, saved)
			compare(t, again, content)
			assert.Equal(t, map[string]string{"format": "pt"}, again.Tensor().Metadata)
			for _, a := range l.Tensor().Arrays {
				of, ok := again.Tensor().Array(a.Name)
				require.True(t, ok)
				assert.Equal(t, a.Tensor.Shape, of.Shape)
			}
			require.NoError(t, errors.Join(l.Release(false), again.Release(false)))
			entries, err := os.ReadDir(filepath.Dir(saved))
			require.NoError(t, err)
			assert.Len(t, entries, 1)
		})
	}
}

func TestASavedFileHasTheModeOfTheProgramAndACancelledOneIsGone(t *testing.T) {
	file, _ := model(t, map[string][]uint64{"a": {3}})
	folder := t.TempDir()
	l := load(t, pools(t)[mempool.Host], write(t, t.TempDir(), "m.safetensors", file))
	for _, mask := range []int{0o077, 0o022} {
		before := unix.Umask(mask)
		err := Save(t.Context(), l, filepath.Join(folder, "saved"))
		unix.Umask(before)
		require.NoError(t, err)
		info, err := os.Stat(filepath.Join(folder, "saved"))
		require.NoError(t, err)
		assert.EqualValues(t, 0o666&^mask, info.Mode())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Save(ctx, l, filepath.Join(folder, "cancelled")), context.Canceled)
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	require.NoError(t, l.Release(false))
}

func TestOnlyARegularFileIsReplaced(t *testing.T) {
	file, content := model(t, map[string][]uint64{"a": {3}})
	pool, folder := pools(t)[mempool.Host], t.TempDir()
	l := load(t, pool, write(t, t.TempDir(), "m.safetensors", file))
	at := func(name string) string { return filepath.Join(folder, name) }
	require.NoError(t, os.Mkdir(at("folder"), 0o700))
	require.NoError(t, unix.Mkfifo(at("fifo"), 0o600))
	require.NoError(t, os.Symlink("/dev/null", at("device")))
	require.NoError(t, os.Symlink("none", at("dangling")))
	out, err := os.Create(at("out"))
	require.NoError(t, err)
	before := os.Stdout
	os.Stdout = out
	defer func() { os.Stdout = before }()
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, path := range []string{at("folder"), at("fifo"), at("device"), at("dangling"), at("out"), "/dev/null", fmt.Sprintf("/proc/self/fd/%d", out.Fd())} {
		err := Save(t.Context(), l, path)
		require.ErrorIs(t, err, bridge.ErrInvalid, path)
		require.ErrorContains(t, err, path)
	}
	after, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(entries), fmt.Sprint(after), "each is what it was")

	write(t, at("folder"), "target", []byte("another file"))
	require.NoError(t, os.Symlink("folder/target", at("link")))
	require.NoError(t, Save(t.Context(), l, at("link")))
	to, err := os.Readlink(at("link"))
	require.NoError(t, err)
	assert.Equal(t, "folder/target", to)
	again := load(t, pool, at("folder/target"))
	compare(t, again, content)
	require.NoError(t, errors.Join(l.Release(false), again.Release(false), out.Close()))
}

func TestABufferThatNoFileCanHaveIsNotSaved(t *testing.T) {
	pool := pools(t)[mempool.Host]
	path := filepath.Join(t.TempDir(), "m.safetensors")
	wide, err := mempool.Pack(mempool.NamedTensor{Name: "a", Tensor: mempool.Tensor{DType: mempool.Complex128, Shape: []uint64{2}}})
	require.NoError(t, err)
	metadata, err := mempool.Pack(mempool.NamedTensor{Name: "__metadata__", Tensor: mempool.Tensor{DType: mempool.Uint8, Shape: []uint64{2}}})
	require.NoError(t, err)
	strided := mempool.Bytes(8)
	strided.Arrays = []mempool.NamedTensor{{Name: "a", Tensor: mempool.Tensor{DType: mempool.Uint8, Shape: []uint64{2}, Strides: []int64{2}}}}
	for _, of := range []mempool.Tensor{mempool.Bytes(8), wide, metadata, strided} {
		l, err := pool.TryAllocate(t.Context(), of)
		require.NoError(t, err)
		require.ErrorIs(t, Save(t.Context(), l, path), bridge.ErrInvalid)
		require.NoError(t, l.Release(false))
	}
	l := load(t, pool, write(t, t.TempDir(), "m.safetensors", func() []byte { file, _ := model(t, map[string][]uint64{"a": {1}}); return file }()))
	require.ErrorIs(t, Save(t.Context(), l, filepath.Join(path, "none", "m")), os.ErrNotExist)
	require.NoError(t, l.Release(false))
	require.NoFileExists(t, path)
}

func TestAReaderOfASharedModelWaitsForItsContent(t *testing.T) {
	file, content := model(t, map[string][]uint64{"a": {10 << 20}})
	client := dial(t)
	for kind, pool := range poolsOf(t, client) {
		for name, change := range map[string]func(path string) error{
			"whole": func(string) error { return nil },
			"cut":   func(path string) error { return os.Truncate(path, 1<<20) },
		} {
			t.Run(fmt.Sprintf("%s, %s", kind, name), func(t *testing.T) {
				path := write(t, t.TempDir(), "m.safetensors", file)
				f, err := Open(path)
				require.NoError(t, err)
				defer func() { assert.NoError(t, f.Close()) }()
				l, err := pool.TryAllocate(t.Context(), f.Tensor)
				require.NoError(t, err)
				var reader *bridge.Lease
				published := func() {
					var err error
					reader, err = client.TryGet(t.Context(), name, bridge.LeaseOptions{})
					require.NoError(t, err)
					soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					defer cancel()
					if kind == mempool.Host { // on a GPU, a stream of this process would wait, and so would this goroutine
						require.ErrorIs(t, reader.CopyTo(soon, make([]byte, 1), 0), context.DeadlineExceeded, "the content is not there yet")
					}
					require.NoError(t, change(path))
				}
				err = f.Share(t.Context(), client, l, mempool.Publication{Name: name, WhileUsed: true}, published, nil)
				if name == "whole" {
					require.NoError(t, err)
					compare(t, reader, content)
				} else {
					require.ErrorIs(t, err, bridge.ErrInvalid)
					read := reader.CopyTo(t.Context(), make([]byte, 1), 0)
					require.ErrorIs(t, read, bridge.ErrContentFailed)
					require.ErrorContains(t, read, "has changed")
				}
				require.NoError(t, errors.Join(l.Release(false), reader.Release(false)))
				_, err = client.TryGet(t.Context(), name, bridge.LeaseOptions{})
				require.ErrorIs(t, err, bridge.ErrNotFound, "nobody uses it")
			})
		}
	}
}

// releasing is a context that ends a lease when Load begins to read, when it derives a context from this one.
type releasing struct {
	context.Context
	release func()
}

func (r releasing) Done() <-chan struct{} {
	r.release()
	return r.Context.Done()
}

func TestALeaseThatEndsWhileAModelIsLoadedIsAnError(t *testing.T) {
	content, _ := model(t, map[string][]uint64{"a": {3}})
	f, err := Open(write(t, t.TempDir(), "m.safetensors", content))
	require.NoError(t, err)
	defer func() { assert.NoError(t, f.Close()) }()
	l, err := pools(t)[mempool.Host].TryAllocate(t.Context(), f.Tensor)
	require.NoError(t, err)
	ctx := releasing{t.Context(), func() { assert.NoError(t, l.Release(false)) }}
	require.ErrorIs(t, f.Load(ctx, l, nil), bridge.ErrReleased)
}

func TestAModelIsLoadedOnlyIntoABufferForIt(t *testing.T) {
	content, _ := model(t, map[string][]uint64{"a": {3}})
	f, err := Open(write(t, t.TempDir(), "m.safetensors", content))
	require.NoError(t, err)
	defer func() { assert.NoError(t, f.Close()) }()
	pool := pools(t)[mempool.Host]
	l, err := pool.TryAllocate(t.Context(), mempool.Bytes(1000))
	require.NoError(t, err)
	require.ErrorIs(t, f.Load(t.Context(), l, nil), bridge.ErrInvalid)
	require.NoError(t, l.Release(false))

	l = load(t, pool, f.files[0].Name())
	require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: "published"}))
	require.ErrorIs(t, f.Load(t.Context(), l, nil), bridge.ErrInvalid, "others read it")
	require.NoError(t, l.Release(false))
}

// FuzzHeader checks that whatever is in a file, the tensors of a file that is accepted cover its data exactly, and have the sizes of their shapes.
func FuzzHeader(f *testing.F) {
	good, _ := model(f, map[string][]uint64{"a": {2, 3}, "b": {}, "c": {0}})
	f.Add(good)
	for _, file := range malformed() {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		_, entries, err := readHeader(bytes.NewReader(file), uint64(len(file)))
		if err != nil {
			require.ErrorIs(t, err, bridge.ErrInvalid)
			return
		}
		at, seen := 8+binary.LittleEndian.Uint64(file), map[string]bool{}
		for _, e := range entries {
			require.False(t, seen[e.name])
			seen[e.name] = true
			n, err := e.tensor.Extent()
			require.NoError(t, err)
			require.Equal(t, at, e.begin)
			at += n
			require.Equal(t, at, e.end)
		}
		require.Equal(t, uint64(len(file)), at)
	})
}
