package service

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// fake is memory of this process whose methods fail when a test says so.
const fake mempool.Kind = "fake"

func init() {
	mempool.Register(mempool.Backend{Kind: fake, Probe: func(string) error { return nil }, Create: newFakeBacking})
}

type fakeBacking struct {
	mu     sync.Mutex
	used   uint64
	frees  int
	closed bool
	fail   map[string]error // the error of each method that fails, by the method's name
	file   *os.File         // that keeps the memory; nil: it ends with its process
	gate   chan struct{}    // if gate is not nil, Allocate waits for it
	inside chan struct{}    // receives when Allocate waits
}

// fakeFaults maps the name of a device to an error. If the map has an error for a device, making a pool on this device fails with the
// error.
var fakeFaults sync.Map

// fakeGates maps the name of a pool to a [fakeGate]. If the map has a gate for a name, making a pool with this name waits for the gate.
var fakeGates sync.Map

// fakeGate makes the creation of a pool wait. The code that creates the pool sends to the channel `inside`, and then waits until the test
// sends to the channel `outcome`: an error, or nil to let the creation succeed.
type fakeGate struct {
	inside  chan struct{}
	outcome chan error
}

// holdUp makes each creation of a pool with the given name wait for an outcome, until the test ends.
func holdUp(t testing.TB, name string) fakeGate {
	t.Helper()
	g := fakeGate{make(chan struct{}, 16), make(chan error)}
	fakeGates.Store(name, g)
	t.Cleanup(func() { fakeGates.Delete(name) })
	return g
}

func newFakeBacking(spec mempool.PoolSpec, _ *hostmem.Memory) (mempool.Backing, error) {
	if gate, ok := fakeGates.Load(spec.Name); ok {
		gate := gate.(fakeGate)
		gate.inside <- struct{}{}
		if err := <-gate.outcome; err != nil {
			return nil, err
		}
	}
	if err, ok := fakeFaults.Load(spec.Device); ok {
		return nil, err.(error)
	}
	a := &fakeBacking{fail: make(map[string]error)}
	if strings.HasPrefix(spec.Name, "kept") {
		fd, err := unix.MemfdCreate(spec.Name, unix.MFD_CLOEXEC)
		if err != nil {
			return nil, err
		}
		a.file = os.NewFile(uintptr(fd), spec.Name)
	}
	return a, nil
}

// set makes a method fail from now on, or work again if err is nil.
func (a *fakeBacking) set(method string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail[method] = err
}

func (a *fakeBacking) block() (inside <-chan struct{}, open func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gate, a.inside = make(chan struct{}), make(chan struct{}, 16)
	return a.inside, sync.OnceFunc(func() { close(a.gate) })
}

func (a *fakeBacking) Device() mempool.DeviceInfo { return mempool.NoDevice }
func (a *fakeBacking) Granularity() uint64        { return 512 }

func (a *fakeBacking) Export() (x mempool.Export) {
	if a.file != nil {
		x.Files = []*os.File{a.file}
	}
	return x
}

func (a *fakeBacking) InUse() (uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used, a.fail["InUse"]
}

func (a *fakeBacking) Allocate(_ context.Context, size uint64) (mempool.Allocation, error) {
	a.mu.Lock()
	gate := a.gate
	a.mu.Unlock()
	if gate != nil {
		a.inside <- struct{}{}
		<-gate
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.fail["Allocate"]; err != nil {
		return nil, err
	}
	a.used += size
	return &fakeBlock{fakeMemory: make(fakeMemory, size), backing: a}, nil
}

func (a *fakeBacking) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		panic("a backing is closed twice")
	}
	a.closed = true
	return a.fail["Close"]
}

type fakeMemory []byte

func (m fakeMemory) CopyFrom(off uint64, src []byte) error { copy(m[off:], src); return nil }
func (m fakeMemory) CopyTo(dst []byte, off uint64) error   { copy(dst, m[off:]); return nil }
func (m fakeMemory) Fill(off, n uint64, b byte) error {
	copy(m[off:off+n], bytes.Repeat([]byte{b}, int(n)))
	return nil
}
func (m fakeMemory) Bytes() []byte        { return m }
func (m fakeMemory) Pointer() uintptr     { return uintptr(unsafe.Pointer(unsafe.SliceData(m))) }
func (m fakeMemory) Queue() mempool.Queue { return mempool.CPU }
func (m fakeMemory) Synchronize() error   { return nil }

type fakeBlock struct {
	fakeMemory
	backing *fakeBacking
	freed   bool
}

func (b *fakeBlock) Export() (mempool.Export, error) {
	b.backing.mu.Lock()
	defer b.backing.mu.Unlock()
	return mempool.Export{Data: []byte{1}}, b.backing.fail["Export"]
}

func (b *fakeBlock) Free() error {
	a := b.backing
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case b.freed:
		panic("a block is freed twice")
	case a.closed:
		panic("a block is freed after its backing was closed")
	case a.fail["Free"] != nil:
		return a.fail["Free"]
	}
	b.freed = true
	a.used -= uint64(len(b.fakeMemory))
	a.frees++
	clear(b.fakeMemory) // a reader that still uses the memory sees zeros
	return nil
}
