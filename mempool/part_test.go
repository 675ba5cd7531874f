package mempool

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestThePartOfAMemoryTouchesNothingElse(t *testing.T) {
	whole := hostMemory{bytes.Repeat([]byte{1}, 100)}
	p := PartOf(whole, 10, 20)
	require.NoError(t, p.Fill(0, 20, 2))
	require.NoError(t, p.CopyFrom(5, []byte{3, 4}))
	want := append(bytes.Repeat([]byte{1}, 10), bytes.Repeat([]byte{2}, 20)...)
	want = append(want, bytes.Repeat([]byte{1}, 70)...)
	want[15], want[16] = 3, 4
	assert.Equal(t, want, whole.mem)
	assert.Equal(t, want[10:30], p.Bytes())
	assert.Equal(t, 20, cap(p.Bytes()))
	got := make([]byte, 3)
	require.NoError(t, p.CopyTo(got, 4))
	assert.Equal(t, []byte{2, 3, 4}, got)
	assert.Equal(t, whole.Pointer()+10, p.Pointer())
	assert.Equal(t, whole.Queue(), p.Queue())
	assert.Nil(t, PartOf(unreadable{whole}, 10, 20).Bytes(), "the CPU cannot access the memory")
}

// unreadable is memory that the CPU cannot access.
type unreadable struct{ Memory }

func (unreadable) Bytes() []byte { return nil }
