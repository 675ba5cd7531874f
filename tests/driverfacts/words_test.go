package driverfacts_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cuda"
)

const pageSize = 4 * kib

// page is a shared page of 64-bit words.
type page struct {
	mem []byte
	reg *cuda.HostRegistration
}

func (p *page) word(i uint64) *uint64 {
	return (*uint64)(unsafe.Pointer(&p.mem[8*i]))
}

// These operations of a worker use words. "register read only" maps and registers the page so that neither the CPU nor
// the GPU can write the page.
func init() {
	register := func(prot int, flags cuda.HostRegisterFlags) operation {
		return withFD(func(w *worker, _ call, fd int) (reply, error) {
			mem, err := unix.Mmap(fd, 0, pageSize, prot, unix.MAP_SHARED)
			if err != nil {
				return reply{}, fmt.Errorf("mmap: %w", err)
			}
			reg, err := w.ctx.RegisterHost(mem, flags|cuda.HostDeviceMap)
			if err != nil {
				return reply{}, err
			}
			return reply{ID: w.keep(&page{mem, reg}), Ptr: uint64(reg.DevicePtr())}, nil
		})
	}
	operations["register"] = register(unix.PROT_READ|unix.PROT_WRITE, 0)
	operations["register read only"] = register(unix.PROT_READ, cuda.HostReadOnly)
	operations["write word"] = with(func(w *worker, c call) (reply, error) {
		return reply{}, w.stream.WriteValue64(cuda.DevicePtr(c.Ptr), c.Value)
	})
	operations["wait for word"] = with(func(w *worker, c call) (reply, error) {
		return reply{}, w.stream.WaitValue64GEQ(cuda.DevicePtr(c.Ptr), c.Value)
	})
	operations["cpu reads word"] = on(func(_ *worker, p *page, c call) (reply, error) {
		return reply{Value: atomic.LoadUint64(p.word(c.Size))}, nil
	})
}

// words makes a page, and returns the test's descriptor and the test's mapping of the page.
func words(t *testing.T) (int, *page) {
	t.Helper()
	fd, err := unix.MemfdCreate("words", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Fchmod(fd, 0o600))
	require.NoError(t, unix.Ftruncate(fd, pageSize))
	mem, err := unix.Mmap(fd, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	return fd, &page{mem: mem}
}

func TestAStreamWaitsForAWordOfAnotherProcess(t *testing.T) {
	needWords(t)
	for name, set := range map[string]setting{
		"side by side":                  {},
		"PID, mount and IPC namespaces": {namespaces: true},
		"another user who may lock 64 KiB, in other namespaces": {namespaces: true, uid: nobody, memlock: 64 * kib},
	} {
		t.Run(name, func(t *testing.T) {
			fd, cpu := words(t)
			writer, waiter := start(t, setting{}), start(t, set)
			out := writer.must(call{Op: "register"}, fd).Ptr
			in := waiter.must(call{Op: "register"}, fd).Ptr

			waiter.must(call{Op: "wait for word", Ptr: in, Value: 3})
			waiter.must(call{Op: "write word", Ptr: in + 8, Value: 1})
			writer.must(call{Op: "write word", Ptr: out, Value: 2})
			writer.must(call{Op: "synchronize"})
			time.Sleep(50 * time.Millisecond)
			assert.False(t, waiter.must(call{Op: "idle"}).OK, "2 is less than 3")
			assert.Zero(t, atomic.LoadUint64(cpu.word(1)))

			writer.must(call{Op: "write word", Ptr: out, Value: 4})
			waiter.must(call{Op: "synchronize"})
			assert.EqualValues(t, 1, atomic.LoadUint64(cpu.word(1)))
		})
	}
}

func TestAStreamWaitsThroughAReadOnlyMapping(t *testing.T) {
	needWords(t)
	_, readOnly, err := device(t, 0).SupportsHostRegister()
	require.NoError(t, err)
	if !readOnly {
		t.Skip("the device does not support read-only registration")
	}
	for name, set := range map[string]setting{
		"side by side": {},
		"another user who may lock 64 KiB, in other namespaces": {namespaces: true, uid: nobody, memlock: 64 * kib},
	} {
		t.Run(name, func(t *testing.T) {
			fd, _ := words(t)
			writer, waiter := start(t, setting{}), start(t, set)
			out := writer.must(call{Op: "register"}, fd).Ptr
			page := waiter.must(call{Op: "register read only"}, fd)
			waiter.must(call{Op: "wait for word", Ptr: page.Ptr, Value: 1})
			assert.False(t, waiter.must(call{Op: "idle"}).OK)
			writer.must(call{Op: "write word", Ptr: out, Value: 1})
			waiter.must(call{Op: "synchronize"})
			assert.EqualValues(t, 1, waiter.must(call{Op: "cpu reads word", ID: page.ID}).Value)
		})
	}
}

func TestWritingAReadOnlyRegistrationRuinsOnlyTheWriter(t *testing.T) {
	needWords(t)
	_, readOnly, err := device(t, 0).SupportsHostRegister()
	require.NoError(t, err)
	if !readOnly {
		t.Skip("the device does not support read-only registration")
	}
	fd, cpu := words(t)
	owner, intruder := start(t, setting{}), start(t, setting{})
	out := owner.must(call{Op: "register"}, fd).Ptr
	in := intruder.must(call{Op: "register read only"}, fd).Ptr
	intruder.must(call{Op: "write word", Ptr: in, Value: 1}) // the driver accepts this call
	_, err = intruder.do(call{Op: "synchronize"})
	assert.ErrorIs(t, err, cuda.ErrLaunchFailed)
	assert.Zero(t, atomic.LoadUint64(cpu.word(0)), "nothing was written")
	owner.must(call{Op: "write word", Ptr: out, Value: 2})
	owner.must(call{Op: "synchronize"})
	assert.EqualValues(t, 2, atomic.LoadUint64(cpu.word(0)))
}

func TestTheCPUWritesTheWordThatAStreamWaitsFor(t *testing.T) {
	needWords(t)
	fd, cpu := words(t)
	waiter := start(t, setting{})
	in := waiter.must(call{Op: "register"}, fd).Ptr
	waiter.must(call{Op: "wait for word", Ptr: in, Value: 7})
	waiter.must(call{Op: "write word", Ptr: in + 8, Value: 8})
	assert.False(t, waiter.must(call{Op: "idle"}).OK)
	atomic.StoreUint64(cpu.word(0), 9)
	waiter.must(call{Op: "synchronize"})
	assert.EqualValues(t, 8, atomic.LoadUint64(cpu.word(1)))
}

func TestAStreamWaitsForADeadProcessUntilSomebodyElseWrites(t *testing.T) {
	needWords(t)
	fd, cpu := words(t)
	writer, waiter := start(t, setting{}), start(t, setting{})
	writer.must(call{Op: "register"}, fd)
	in := waiter.must(call{Op: "register"}, fd).Ptr
	waiter.must(call{Op: "wait for word", Ptr: in, Value: 1})
	writer.kill()
	time.Sleep(200 * time.Millisecond)
	assert.False(t, waiter.must(call{Op: "idle"}).OK)
	atomic.StoreUint64(cpu.word(0), 1)
	waiter.must(call{Op: "synchronize"})
}

func TestAWordIsAMultipleOf8(t *testing.T) {
	needWords(t)
	fd, _ := words(t)
	p := start(t, setting{})
	page := p.must(call{Op: "register"}, fd).Ptr
	_, err := p.do(call{Op: "write word", Ptr: page + 4, Value: 1})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue)
}

func TestPoolMemoryHoldsNoWords(t *testing.T) {
	needPools(t)
	needWords(t)
	p := start(t, setting{})
	b := p.shared(mib, 0)
	_, err := p.do(call{Op: "write word", Ptr: b.ptr, Value: 1})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue)
	_, err = p.do(call{Op: "wait for word", Ptr: b.ptr, Value: 1})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue)
}

func TestLegacyMemoryHoldsWords(t *testing.T) {
	needWords(t)
	p := start(t, setting{})
	ptr := p.must(call{Op: "malloc", Size: pageSize}).Ptr
	require.NoError(t, p.fill(ptr, pageSize, 0))
	p.must(call{Op: "write word", Ptr: ptr, Value: 0x0101010101010101})
	p.must(call{Op: "wait for word", Ptr: ptr, Value: 0x0101010101010101})
	p.must(call{Op: "synchronize"})
	assert.True(t, p.is(ptr, 8, 1))
}
