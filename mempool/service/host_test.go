package service

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// smallMachine is a machine with total bytes of memory, of which available bytes are left.
type smallMachine struct {
	*testing.T
	root string
}

func newSmallMachine(t *testing.T, total, available uint64) smallMachine {
	t.Helper()
	m := smallMachine{t, t.TempDir()}
	m.write("self/cgroup", "0::/\n")
	m.write("self/mountinfo", "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
	m.has(total, available)
	return m
}

func (m smallMachine) write(file, text string) {
	m.Helper()
	path := filepath.Join(m.root, "proc", file)
	require.NoError(m, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(m, os.WriteFile(path, []byte(text), 0o644))
}

func (m smallMachine) has(total, available uint64) {
	m.Helper()
	m.write("meminfo", fmt.Sprintf("MemTotal: %d kB\nMemAvailable: %d kB\n", total>>10, available>>10))
}

// service returns a service that runs on the machine.
func (m smallMachine) service() *Service {
	svc := newService(m)
	svc.memory = hostmem.At(m.root)
	return svc
}

func TestAPoolThatTheMachineCanNeverHoldIsRefused(t *testing.T) {
	s := open(t, newSmallMachine(t, 64<<20, 1<<20).service())
	_, err := s.CreatePool(mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 45})
	require.ErrorIs(t, err, mempool.ErrOutOfMemory)
	assert.ErrorAs(t, err, new(*hostmem.Shortage))
	assert.EqualError(t, err, "out of memory: 32 TiB are asked for, and at most 60 MiB can ever be "+
		"available: the machine has 64 MiB, and 4 MiB of them are left to others; ask for fewer")
	createPool(t, s, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 60 << 20})
}

func TestAnAllocationThatTheMachineHasNoMemoryForTakesNone(t *testing.T) {
	m := newSmallMachine(t, 64<<20, 20<<20)
	svc := m.service()
	s := open(t, svc)
	p := createPool(t, s, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 60 << 20})
	_, err := s.allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(32<<20), 0)
	require.ErrorIs(t, err, mempool.ErrOutOfMemory)
	assert.EqualError(t, err, "out of memory: 32 MiB are asked for, and 16 MiB are available: "+
		"the machine has 20 MiB left of 64 MiB, and 4 MiB of them are left to others; ask for fewer, or free memory")
	checkBooks(t, svc)
	assert.Zero(t, pages(t, p))
	m.has(64<<20, 40<<20)
	release(t, allocate(t, s, p, 32<<20))
}

// pages returns how many bytes of the machine's memory a pool has taken.
func pages(t *testing.T, p *Pool) int64 {
	t.Helper()
	st := new(unix.Stat_t)
	require.NoError(t, unix.Fstat(int(p.Export().Files[0].Fd()), st))
	return st.Blocks * 512
}

func TestProcessesThatMapMemoryReadOnWhenTheServiceHasClosed(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := createPool(t, s, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 8192})
	l := allocate(t, s, p, 4096)
	mapBlock(t, l)
	copy(memory(l).Bytes(), "content")
	elsewhere, err := unix.Mmap(int(p.Export().Files[0].Fd()), 0, 8192, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	svc.Close()
	assert.Equal(t, "content", string(elsewhere[:7]))
	require.NoError(t, unix.Munmap(elsewhere))
}
