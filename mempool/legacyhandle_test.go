package mempool

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestALegacyHandleSurvivesItsBytes(t *testing.T) {
	h := LegacyHandle{Offset: 0x0123456789abcdef}
	for i := range h.Handle {
		h.Handle[i] = byte(i * 5)
	}
	raw := h.AppendBinary(nil)
	assert.Len(t, raw, LegacyHandleBytes)
	back, err := ParseLegacyHandle(raw)
	require.NoError(t, err)
	assert.Equal(t, h, back)
	bare, err := ParseLegacyHandle(raw[:HandleBytes])
	require.NoError(t, err)
	assert.Equal(t, LegacyHandle{Handle: h.Handle}, bare, "the driver's bytes alone")
}

func TestBytesOfAnotherLengthAreNoLegacyHandle(t *testing.T) {
	for _, n := range []int{0, 1, 63, 65, 71, 73, 144} {
		_, err := ParseLegacyHandle(make([]byte, n))
		assert.ErrorIs(t, err, ErrInvalid, "%d bytes", n)
	}
}

func saved() Saved {
	return Saved{Version: SavedVersion, Kind: Legacy, Device: "GPU-01234567-89ab-cdef-0123-456789abcdef", Bytes: 400,
		DType: Float32, Shape: []uint64{10, 10}, Handle: make([]byte, LegacyHandleBytes), Socket: "/run/s", Name: "n", Epoch: Epoch{7}.String()}
}

func TestASavedBufferIsReadBack(t *testing.T) {
	want := saved()
	file, err := json.MarshalIndent(want, "", "  ")
	require.NoError(t, err)
	got, err := ParseSaved(file)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	got, err = ParseSaved(bytes.Repeat([]byte{0xff}, HandleBytes))
	require.NoError(t, err, "the driver's bytes alone")
	assert.Equal(t, Legacy, got.Kind)
}

func TestFilesThatAreNoSavedBuffersAreRefused(t *testing.T) {
	whole, err := json.Marshal(saved())
	require.NoError(t, err)
	files := map[string][]byte{
		"empty": nil, "short": whole[:len(whole)/2], "one byte short": whole[:len(whole)-1], "text": []byte("hello"),
		"63 bytes": bytes.Repeat([]byte{1}, 63), "65 bytes": bytes.Repeat([]byte{1}, 65), "other JSON": []byte(`{"a": 1}`), "a list": []byte(`[]`),
	}
	for what, change := range map[string]func(*Saved){
		"another version": func(s *Saved) { s.Version++ },
		"unknown kind":    func(s *Saved) { s.Kind = "tape" },
		"unknown type":    func(s *Saved) { s.DType = "float128" },
		"too few bytes":   func(s *Saved) { s.Bytes = 399 },
		"outside":         func(s *Saved) { s.ByteOffset = 4 },
		"short handle":    func(s *Saved) { s.Handle = s.Handle[:63] },
		"no handle":       func(s *Saved) { s.Handle = nil },
	} {
		s := saved()
		change(&s)
		files[what], err = json.Marshal(s)
		require.NoError(t, err)
	}
	for what, file := range files {
		_, err := ParseSaved(file)
		assert.ErrorIs(t, err, ErrInvalid, what)
	}
}

func TestASavedBufferOfAnotherKindHasNoHandleToOpen(t *testing.T) {
	s := saved()
	s.Kind, s.Handle = Host, nil
	require.NoError(t, s.Validate())
	_, err := s.Open(nil)
	assert.ErrorIs(t, err, ErrInvalid)
	assert.ErrorContains(t, err, "/run/s", "it says whom to ask")
}
