package bridge

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

func batch(t testing.TB) Tensor {
	t.Helper()
	frame, err := Pack(
		NamedTensor{Name: "image", Tensor: Tensor{DType: Uint8, Shape: []uint64{3, 5}}},
		NamedTensor{Name: "label", Tensor: Tensor{DType: Int64}},
		NamedTensor{Name: "none", Tensor: Tensor{DType: Float32, Shape: []uint64{0, 4}}})
	require.NoError(t, err)
	return frame
}

// fillBatch writes frame n of the arrays of batch.
func fillBatch(t testing.TB, l *Lease, frame Tensor, n byte) {
	t.Helper()
	mem, err := l.Bytes(t.Context())
	require.NoError(t, err)
	for i, a := range frame.Arrays {
		for at := range a.Tensor.Slice(mem) {
			a.Tensor.Slice(mem)[at] = n + byte(i)
		}
	}
}

// checkBatch checks what fillBatch wrote, by its own description.
func checkBatch(t testing.TB, l *Lease, frame Tensor, n byte) {
	t.Helper()
	got := l.Tensor()
	assert.True(t, frame.Equal(got), "sent %v, came %v", frame, got)
	mem, err := l.Bytes(t.Context())
	require.NoError(t, err)
	for i, name := range []string{"image", "label", "none"} {
		a, ok := got.Array(name)
		require.True(t, ok)
		for _, b := range a.Slice(mem) {
			require.Equal(t, n+byte(i), b)
		}
	}
	_, ok := got.Array("images")
	assert.False(t, ok)
}

func TestFramesOfSeveralArraysComeAsTheyWereSent(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 4})
	from, frame := s.follow(t, mempool.SubscribeOptions{}), batch(t)
	p, err := s.from.Publisher(t.Context(), frame)
	require.NoError(t, err)
	for n := range byte(40) {
		if n%3 == 0 {
			l := allocate(t, s.pool, frame.Shape[0])
			fillBatch(t, l, frame, n)
			_, err = s.from.Publish(t.Context(), l, FrameOptions{Tensor: &frame})
		} else {
			l := loan(t, p)
			assert.True(t, l.Tensor().Equal(frame))
			fillBatch(t, l, frame, n)
			_, err = p.Publish(t.Context(), l, FrameOptions{})
		}
		require.NoError(t, err)
		f, err := from.next(t.Context())
		require.NoError(t, err)
		checkBatch(t, f.Lease, frame, n)
		require.NoError(t, f.Release())
	}
}

func TestTheMostArraysOfAFrameArriveAndMoreAreRefused(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 4})
	from := s.follow(t, mempool.SubscribeOptions{})
	var arrays []NamedTensor
	for n := range 1024 {
		arrays = append(arrays, NamedTensor{Name: fmt.Sprint(n), Tensor: Tensor{DType: Int16, Shape: []uint64{1}}})
	}
	frame, err := Pack(arrays...)
	require.NoError(t, err)
	l := allocate(t, s.pool, frame.Shape[0])
	_, err = s.from.Publish(t.Context(), l, FrameOptions{Tensor: &frame})
	require.NoError(t, err)
	f, err := from.next(t.Context())
	require.NoError(t, err)
	assert.True(t, frame.Equal(f.Lease.Tensor()))
	require.NoError(t, f.Release())

	frame, err = Pack(append(arrays, NamedTensor{Name: "one more", Tensor: Tensor{DType: Int16}})...)
	require.NoError(t, err)
	_, err = s.from.Publisher(t.Context(), frame)
	require.ErrorIs(t, err, mempool.ErrInvalid)
	l = allocate(t, s.pool, frame.Shape[0])
	_, err = s.from.Publish(t.Context(), l, FrameOptions{Tensor: &frame})
	require.ErrorIs(t, err, mempool.ErrInvalid)
	require.NoError(t, l.Release(false), "the lease is not lost")
}

func TestABufferOfSeveralArraysIsFoundWithItsArrays(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 4})
	from, packed := s.follow(t, mempool.SubscribeOptions{}), batch(t)
	for n := range byte(3) {
		l, err := s.pool.Allocate(t.Context(), packed)
		require.NoError(t, err)
		described := l.Tensor()
		assert.Equal(t, packed.Arrays, described.Arrays)
		assert.Equal(t, packed.Shape[0]+described.LayoutBytes, described.Shape[0])
		fillBatch(t, l, described, n)
		require.NoError(t, l.Publish(t.Context(), Publication{Name: "batch", Replace: true}))
		require.NoError(t, l.Release(false))

		found, err := s.consumer.TryGet(t.Context(), "batch", LeaseOptions{})
		require.NoError(t, err)
		checkBatch(t, found, described, n)
		again, err := s.consumer.TryLease(t.Context(), found.Grant().Buffer, found.Grant().Generation, LeaseOptions{})
		require.NoError(t, err)
		checkBatch(t, again, described, n)
		require.NoError(t, again.Release(false))
		require.NoError(t, found.Release(false))

		l, err = s.pool.Allocate(t.Context(), described) // the description of a buffer, too
		require.NoError(t, err)
		assert.True(t, described.Equal(l.Tensor()))
		fillBatch(t, l, described, n)
		_, err = s.from.Publish(t.Context(), l, FrameOptions{})
		require.NoError(t, err)
		f, err := from.next(t.Context())
		require.NoError(t, err)
		described.LayoutBytes = 0
		checkBatch(t, f.Lease, described, n)
		require.NoError(t, f.Release())
	}
	l, listed := allocate(t, s.pool, 4096), Tensor{DType: Uint8, Shape: []uint64{4096}, LayoutBytes: 100}
	for _, wrong := range []*Tensor{&packed, &listed} {
		require.ErrorIs(t, l.Publish(t.Context(), Publication{Name: "name", Tensor: wrong}), mempool.ErrInvalid)
	}
	_, err := s.pool.Allocate(t.Context(), listed)
	require.ErrorIs(t, err, mempool.ErrInvalid, "nobody would write the layout")
	require.NoError(t, l.Release(false))
}

func TestMetadataComesWithTheArraysOfABuffer(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 4})
	from, packed := s.follow(t, mempool.SubscribeOptions{}), batch(t)
	for n := range 20 {
		packed.Metadata = map[string]string{"model": "llama", "step": fmt.Sprint(n % 10), "": strings.Repeat("ä", 9000)}
		l, err := s.pool.Allocate(t.Context(), packed)
		require.NoError(t, err)
		said := maps.Clone(packed.Metadata)
		packed.Metadata["step"] = "later"
		assert.Equal(t, said, l.Tensor().Metadata)
		again, err := s.pool.Allocate(t.Context(), l.Tensor()) // the description of a buffer, too
		require.NoError(t, err)
		assert.Equal(t, said, again.Tensor().Metadata)
		require.NoError(t, again.Publish(t.Context(), Publication{Name: "batch", Replace: true}))
		require.NoError(t, again.Release(false))
		found, err := s.consumer.TryGet(t.Context(), "batch", LeaseOptions{})
		require.NoError(t, err)
		assert.Equal(t, said, found.Tensor().Metadata)
		assert.Equal(t, packed.Arrays, found.Tensor().Arrays)
		require.NoError(t, found.Release(false))

		_, err = s.from.Publish(t.Context(), l, FrameOptions{})
		require.NoError(t, err)
		f, err := from.next(t.Context())
		require.NoError(t, err)
		assert.Nil(t, f.Lease.Tensor().Metadata)
		assert.Equal(t, packed.Arrays, f.Lease.Tensor().Arrays)
		require.NoError(t, f.Release())
	}
	one := Bytes(8)
	one.Metadata = map[string]string{"a": "b"}
	long := batch(t)
	long.Metadata = map[string]string{"a": strings.Repeat("b", 33<<20)}
	for _, wrong := range []Tensor{one, long} {
		_, err := s.pool.TryAllocate(t.Context(), wrong)
		require.ErrorIs(t, err, mempool.ErrInvalid)
	}
}

func TestABufferWithOtherMetadataThanExpectedIsAnErrorAndNoLease(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Capacity: 4})
	packed := batch(t)
	packed.Metadata = map[string]string{"model": "llama", "revision": "2"}
	for name, of := range map[string]Tensor{"m": packed, "one": Bytes(8)} {
		l, err := s.pool.Allocate(t.Context(), of)
		require.NoError(t, err)
		require.NoError(t, l.Publish(t.Context(), Publication{Name: name}))
		require.NoError(t, l.Release(false))
	}
	l, err := s.consumer.Get(t.Context(), "m", LeaseOptions{Expect: map[string]string{"revision": "2"}})
	require.NoError(t, err)
	id := l.Grant()
	require.NoError(t, l.Release(false))
	for _, c := range []struct{ name, key, value, text string }{
		{"m", "revision", "1", `expected "revision" to be "1", found "2"`}, {"m", "sharding", "1/2", `expected "sharding" to be "1/2", found none`},
		{"one", "model", "", `expected "model" to be "", found none`},
	} {
		for _, write := range []bool{false, true} {
			o := LeaseOptions{Write: write, Expect: map[string]string{c.key: c.value}}
			_, err := s.consumer.Get(t.Context(), c.name, o)
			require.ErrorIs(t, err, ErrMetadataMismatch)
			require.ErrorContains(t, err, c.text)
			_, err = s.consumer.TryGet(t.Context(), c.name, o)
			require.ErrorIs(t, err, ErrMetadataMismatch)
		}
	}
	o := LeaseOptions{Expect: map[string]string{"model": "mistral"}}
	_, err = s.consumer.TryLease(t.Context(), id.Buffer, id.Generation, o)
	require.ErrorIs(t, err, ErrMetadataMismatch)
	_, err = s.consumer.Lease(t.Context(), id.Buffer, id.Generation, o)
	require.ErrorIs(t, err, ErrMetadataMismatch)
	require.Eventually(t, func() bool {
		st, err := s.consumer.Stats(t.Context())
		return err == nil && st.Leases == 0
	}, time.Minute, time.Millisecond)
}

func TestThousandsOfArraysAreOneBuffer(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Capacity: 4})
	var arrays []NamedTensor
	for n := range 3000 {
		arrays = append(arrays, NamedTensor{Name: fmt.Sprint(n), Tensor: Tensor{DType: Int16, Shape: []uint64{1}}})
	}
	packed, err := Pack(arrays...)
	require.NoError(t, err)
	l, err := s.pool.Allocate(t.Context(), packed)
	require.NoError(t, err)
	require.NoError(t, l.Publish(t.Context(), Publication{Name: "model"}))
	found, err := s.consumer.TryGet(t.Context(), "model", LeaseOptions{})
	require.NoError(t, err)
	assert.Equal(t, packed.Arrays, found.Tensor().Arrays)
	_, err = s.from.Publish(t.Context(), l, FrameOptions{})
	require.ErrorIs(t, err, mempool.ErrInvalid, "a frame cannot have so many")
}

// part returns a part of the layout of a buffer.
func part(layout []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(layout))), layout...)
}

func TestAWrongLayoutFailsTheLeaseAndNothingElse(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Capacity: 4})
	good := NamedTensor{Name: "a", Tensor: Tensor{DType: Uint8, Shape: []uint64{4}}}
	right, err := wire.AppendBufferLayout(nil, nil, convert.WireLayout([]NamedTensor{good}).Arrays)
	require.NoError(t, err)
	lies := [][]byte{append(right[:len(right):len(right)], right...), part(nil), {0, 0, 0, 0}, right[:len(right)-1],
		append(right[:len(right):len(right)], 0), append([]byte{255, 255, 255, 127}, right[4:]...), {1}}
	for _, lie := range layoutLies() {
		lies = append(lies, part(lie))
	}
	said := func(key string) []byte {
		layout, err := wire.AppendLayout(nil, &wire.Layout{Metadata: []wire.MetadataEntry{{Key: key, Value: "value"}}})
		require.NoError(t, err)
		return part(layout)
	}
	lies = append(lies, said("k"), slices.Concat(bytes.Replace(said("k"), []byte("value"), []byte("valu\xff"), 1), right),
		slices.Concat(part([]byte("\x82\xa2md\xdd\xff\xff\xff\xff")), right))
	for i, lie := range lies {
		n := uint64(len(lie))
		l := &Lease{client: s.pool.client}
		unwritten := Tensor{DType: Uint8, Shape: []uint64{16 + n}, LayoutBytes: n}
		require.NoError(t, l.client.streams.Allocate(t.Context(), &l.held, session.Waiting, s.pool.opened, unwritten))
		require.NoError(t, l.CopyFrom(t.Context(), 16, lie))
		require.NoError(t, l.Publish(t.Context(), Publication{Name: "bad", Replace: true}))
		_, err = s.consumer.TryGet(t.Context(), "bad", LeaseOptions{})
		require.ErrorIs(t, err, mempool.ErrContentFailed, "%d: %x", i, lie)
		_, err = s.consumer.TryLease(t.Context(), l.Grant().Buffer, l.Grant().Generation, LeaseOptions{})
		require.ErrorIs(t, err, mempool.ErrContentFailed)
		require.NoError(t, l.Release(false))
	}
	for _, wrong := range []Tensor{
		{DType: Uint8, Shape: []uint64{4}, LayoutBytes: 5}, {DType: Int8, Shape: []uint64{64}, LayoutBytes: 5}, {DType: Uint8, LayoutBytes: 1},
		{DType: Uint8, Shape: []uint64{1 << 40}, LayoutBytes: mempool.MaxLayoutBytes + 1}, {DType: Uint8, Shape: []uint64{8, 8}, LayoutBytes: 8},
	} {
		_, err := s.pool.TryAllocate(t.Context(), wrong)
		require.ErrorIs(t, err, mempool.ErrInvalid, "%v", wrong)
	}
	require.Eventually(t, func() bool {
		st, err := s.consumer.Stats(t.Context())
		return err == nil && st.Leases == 0
	}, time.Minute, time.Millisecond)
}

// layoutLies returns wrong layouts of a frame of 16 bytes.
func layoutLies() (lies [][]byte) {
	good := wire.NamedTensor{Name: "a", Tensor: wire.Tensor{DType: "uint8", Shape: []uint64{4}}}
	encode := func(arrays ...wire.NamedTensor) []byte {
		layout, err := wire.AppendLayout(nil, &wire.Layout{Arrays: arrays})
		if err != nil {
			panic(err)
		}
		lies = append(lies, layout)
		return layout
	}
	lie := func(change func(a *wire.NamedTensor)) {
		bad := good
		change(&bad)
		encode(bad)
	}
	encode()
	encode(good, good)
	lie(func(a *wire.NamedTensor) { a.Name = "" })
	lie(func(a *wire.NamedTensor) { a.Name = "a\a" })
	lie(func(a *wire.NamedTensor) { a.Name = string(make([]byte, 256)) })
	lie(func(a *wire.NamedTensor) { a.Tensor.DType = "uint9" })
	lie(func(a *wire.NamedTensor) { a.Tensor.Shape = []uint64{17} })
	lie(func(a *wire.NamedTensor) { a.Tensor.Offset = 13 })
	lie(func(a *wire.NamedTensor) { a.Tensor.DType, a.Tensor.Offset = "int32", 2 })
	lie(func(a *wire.NamedTensor) { a.Tensor.Shape = []uint64{1 << 62, 1 << 62} })
	lie(func(a *wire.NamedTensor) { a.Tensor.Strides = []int64{1 << 62} })
	lie(func(a *wire.NamedTensor) { a.Tensor.Strides = []int64{-1} })
	lie(func(a *wire.NamedTensor) { a.Tensor.Shape = make([]uint64, 33) })
	layout := encode(good)
	lies = lies[:len(lies)-1]
	return append(lies, layout[:len(layout)-1], append(layout[:len(layout):len(layout)], 0), []byte("\xff"), []byte("\x80"),
		[]byte("\x81\xa2ar\xdd\xff\xff\xff\xff"), []byte("\x81\xa2ar\x91\x82\xa2nm\xa1\xff\xa1t\x81\xa2dt\xa5uint8"))
}

func TestAllContentOfAnotherServiceIsOtherContent(t *testing.T) {
	seen := make([]*Lease, 2)
	for i := range seen {
		s := start(t, server.Config{}, unhurried)
		c := dial(t, s.path)
		l := allocate(t, createPool(t, c, hostPool("p", 1<<22)), 8)
		require.NoError(t, l.Publish(t.Context(), Publication{Name: "m"}))
		var err error
		seen[i], err = c.TryGet(t.Context(), "m", LeaseOptions{OtherThan: seen[0]})
		require.NoError(t, err)
	}
	assert.Equal(t, seen[0].Grant().Buffer, seen[1].Grant().Buffer)
	assert.Equal(t, seen[0].Version(), seen[1].Version())
}

func TestAReaderGetsOnlyOtherContentThanItKnows(t *testing.T) {
	s := start(t, server.Config{}, unhurried)
	writer, reader := dial(t, s.path), dial(t, s.path)
	pool := createPool(t, writer, hostPool("p", 1<<22))
	var mine *Lease
	publish := func(version uint64) error {
		l, err := pool.TryAllocate(t.Context(), Tensor{DType: Uint8, Shape: []uint64{8}})
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Release(false)) }()
		mine = l
		return l.Publish(t.Context(), Publication{Name: "m", Replace: true, Version: version})
	}
	require.NoError(t, publish(0))
	first, err := reader.TryGet(t.Context(), "m", LeaseOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 1, first.Version())
	_, err = reader.TryGet(t.Context(), "m", LeaseOptions{OtherThan: first})
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, "nothing newer than version 1")
	require.NoError(t, first.Release(false))

	came := make(chan *Lease)
	go func() {
		l, err := reader.Get(t.Context(), "m", LeaseOptions{OtherThan: first})
		assert.NoError(t, err)
		came <- l
	}()
	require.NoError(t, publish(40))
	second := <-came
	assert.EqualValues(t, 40, second.Version())
	assert.EqualValues(t, 40, mine.Version(), "the publisher knows it, too")
	_, err = writer.TryGet(t.Context(), "m", LeaseOptions{OtherThan: mine})
	require.ErrorContains(t, err, "nothing newer than version 40")
	require.ErrorIs(t, publish(40), ErrInvalid)
	nameless, err := pool.TryAllocate(t.Context(), Tensor{DType: Uint8})
	require.NoError(t, err)
	_, err = reader.TryGet(t.Context(), "m", LeaseOptions{OtherThan: nameless})
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, publish(41))
	third, err := reader.TryGet(t.Context(), "m", LeaseOptions{OtherThan: second})
	require.NoError(t, err)
	assert.EqualValues(t, 41, third.Version())
	for name, err := range reader.Names(t.Context()) {
		require.NoError(t, err)
		assert.EqualValues(t, 41, name.Version)
	}
}
