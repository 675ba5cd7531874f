package shmchannel

import (
	"bytes"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMetaComesAsTheDocumentedTypes(t *testing.T) {
	type level int8
	packed, err := AppendMeta([]byte("before"), map[string]any{
		"int": -5, "int8": int8(math.MinInt8), "uint": uint(7), "uint64": uint64(math.MaxUint64), "float32": float32(0.5), "float64": -0.1, "bool": true,
		"text": "größe", "bytes": []byte{0, 255}, "nil": nil, "list": []any{1, "a", nil}, "numbers": []int16{-1, 300}, "map": map[string]any{"k": []any{}},
		"texts": map[string]string{"a": "b"}, "level": level(3), "duration": time.Second, "array": [2]bool{true, false},
	})
	require.NoError(t, err)
	require.Equal(t, "before", string(packed[:6]))
	require.NoError(t, CheckMeta(packed[6:]))
	assert.Equal(t, map[string]any{
		"int": int64(-5), "int8": int64(math.MinInt8), "uint": int64(7), "uint64": uint64(math.MaxUint64), "float32": 0.5, "float64": -0.1, "bool": true,
		"text": "größe", "bytes": []byte{0, 255}, "nil": nil, "list": []any{int64(1), "a", nil}, "numbers": []any{int64(-1), int64(300)},
		"map": map[string]any{"k": []any{}}, "texts": map[string]any{"a": "b"}, "level": int64(3), "duration": int64(time.Second), "array": []any{true, false},
	}, DecodeMeta(packed[6:]))
	assert.Nil(t, DecodeMeta(nil))
}

func TestMetaThatCannotBeSentNamesTheKeyTheTypeAndTheCure(t *testing.T) {
	deep, wide := any(1), any([]any{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	for range MaxMetaDepth {
		deep = []any{deep}
	}
	for range MaxMetaDepth - 2 {
		wide = []any{wide, wide, wide, wide, wide, wide, wide, wide, wide, wide}
	}
	endless := map[string]any{}
	endless["k"] = endless
	for _, c := range []struct {
		meta map[string]any
		want []string
	}{
		{map[string]any{"k": "\xff"}, []string{`["k"]`, "UTF-8", "[]byte"}},
		{map[string]any{"k": "half of \xc3"}, []string{`["k"]`, "UTF-8"}},
		{map[string]any{"k": []any{"\xed\xa0\x80"}}, []string{`["k"][0]`, "UTF-8"}},
		{map[string]any{"\xff": 1}, []string{`["\xff"]`, "UTF-8"}},
		{map[string]any{"roi": map[string]any{"at": []any{1, 2i}}}, []string{`["roi"]["at"][1]`, "complex128", "convert it"}},
		{map[string]any{"when": time.Time{}}, []string{`["when"]`, "time.Time", "expected"}},
		{map[string]any{"m": map[int]int{1: 2}}, []string{`["m"]`, "map[int]int"}},
		{map[string]any{"p": new(int)}, []string{`["p"]`, "*int"}},
		{map[string]any{"deep": deep}, []string{`["deep"][0]`, "deeper than 8", "flatter"}},
		{endless, []string{`["k"]["k"]`, "deeper than 8"}},
		{map[string]any{"wide": wide}, []string{`["wide"]`, "8320 bytes"}},
		{map[string]any{"text": string(make([]byte, MaxMetaBytes))}, []string{"8329 bytes", "8320"}},
		{map[string]any{"a": string(make([]byte, 5000)), "b": make([]byte, 5000)}, []string{"8320"}},
		{map[string]any{"b": make([]byte, 1<<20)}, []string{`["b"]`, "1048576 bytes", "array"}},
	} {
		to, err := AppendMeta(nil, c.meta)
		require.ErrorIs(t, err, ErrInvalid)
		assert.Nil(t, to)
		for _, want := range c.want {
			assert.ErrorContains(t, err, want)
		}
	}
}

// FuzzMeta decodes any bytes that CheckMeta accepts, and encodes the result again.
func FuzzMeta(f *testing.F) {
	for _, v := range metaVectors() {
		f.Add([]byte(v.bytes()))
	}
	f.Fuzz(func(t *testing.T, packed []byte) { roundTrip(t, packed) })
}

func roundTrip(t testing.TB, packed []byte) (ok bool) {
	if CheckMeta(packed) != nil {
		return false
	}
	meta := DecodeMeta(packed)
	again, err := AppendMeta(nil, meta)
	if err != nil && len(packed) < MaxMetaBytes/2 { // a float of 32 bits becomes longer
		t.Fatalf("%x is accepted, and %v cannot be sent: %v", packed, meta, err)
	}
	if err == nil && len(again) > 0 && !bytes.Equal(must(AppendMeta(nil, DecodeMeta(again))), again) {
		t.Fatalf("%x comes as %v, and that as %v", packed, meta, DecodeMeta(again))
	}
	return true
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestMetaOfAnyBytesIsRefusedOrComesAsItIs(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	accepted, good := 0, metaVectors()[:12]
	for range 20_000 {
		packed := []byte(good[random.IntN(len(good))].bytes())
		for range random.IntN(3) {
			packed[random.IntN(len(packed))] = byte(random.Uint32())
		}
		if random.IntN(4) == 0 {
			packed = packed[:random.IntN(len(packed)+1)]
		}
		if roundTrip(t, packed) {
			accepted++
		}
	}
	assert.Greater(t, accepted, 1000)
	assert.Less(t, accepted, 19_000)
}

func TestEveryKindOfValueIsSentOrRefused(t *testing.T) {
	for _, value := range []any{int16(1), int32(1), int64(1), uint8(1), uint16(1), uint32(1), uintptr(1), complex64(1), func() {}, make(chan int), struct{}{}} {
		_, err := AppendMeta(nil, map[string]any{"k": value})
		switch reflect.TypeOf(value).Kind() {
		case reflect.Uintptr, reflect.Complex64, reflect.Func, reflect.Chan, reflect.Struct:
			require.ErrorIs(t, err, ErrInvalid, "%T", value)
		default:
			require.NoError(t, err, "%T", value)
		}
	}
}

func BenchmarkMetaOfOneText(b *testing.B) {
	meta := map[string]any{"exposure": "8"}
	var packed []byte
	for b.Loop() {
		packed = must(AppendMeta(packed[:0], meta))
		if err := CheckMeta(packed); err != nil || len(DecodeMeta(packed)) != 1 {
			b.Fatal(err)
		}
	}
}
