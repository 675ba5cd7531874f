package mempool

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAPoolAndABlockAreMappedOnceInAProcess(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := createPool(t, s, PoolSpec{Name: "p", Kind: Host, MaxBytes: 1 << 16})
	l := allocate(t, s, p, 4096)
	require.NoError(t, l.CopyFrom(0, []byte("hello")))
	info := l.Info()
	x, _, err := l.Export()
	require.NoError(t, err)

	a, err := ImportPool(svc.Epoch(), p.Info(), p.Export(), "")
	require.NoError(t, err)
	b, err := ImportPool(svc.Epoch(), p.Info(), Export{}, "")
	require.NoError(t, err, "it is open already")
	assert.Same(t, a, b)
	_, err = a.Block(info.Block, info.BlockBytes, nil)
	assert.ErrorIs(t, err, ErrNotFound)
	m, err := a.Block(info.Block, info.BlockBytes, &x)
	require.NoError(t, err)
	again, err := b.Block(info.Block, info.BlockBytes, nil)
	require.NoError(t, err)
	assert.Same(t, m, again)
	mem, err := m.Memory(false)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(mem.Bytes()[:5]))

	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.NoError(t, m.Close())
	assert.Equal(t, "hello", string(mem.Bytes()[:5]), "the second user has it still")
	require.NoError(t, again.Close())
	imports.mu.Lock()
	defer imports.mu.Unlock()
	assert.Empty(t, imports.pools)
}

func TestWhatIsNoExportIsRefused(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := createPool(t, s, PoolSpec{Name: "p", Kind: Host, MaxBytes: 8192})
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	for what, x := range map[string]Export{
		"no file": {}, "two files": {Files: []*os.File{null, null}}, "no memfd": {Files: []*os.File{null}},
	} {
		_, err := ImportPool(svc.Epoch(), p.Info(), x, "")
		assert.ErrorIs(t, err, ErrInvalid, what)
	}
	_, err = ImportPool(svc.Epoch(), PoolInfo{ID: 9, Kind: "tape"}, Export{}, "")
	assert.ErrorIs(t, err, ErrInvalid)

	imported, err := ImportPool(svc.Epoch(), p.Info(), p.Export(), "")
	require.NoError(t, err)
	defer imported.Close()
	at := func(off uint64) []byte { return binary.LittleEndian.AppendUint64(nil, off) }
	for what, x := range map[string]Export{
		"no data": {}, "short data": {Data: at(0)[:7]}, "with a file": {Data: at(0), Files: []*os.File{null}},
		"behind the end": {Data: at(8192)}, "over the end": {Data: at(4097)}, "wrapped": {Data: at(^uint64(0))},
	} {
		_, err := imported.Block(1, 4096, &x)
		assert.ErrorIs(t, err, ErrInvalid, what)
	}
}
