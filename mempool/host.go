package mempool

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/sizeclass"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// hostBackend makes pools in CPU memory. Each pool is a memfd. A process that uses the pool gets the file descriptor and maps the whole
// pool once. The export of a block is the block's offset in the pool.
var hostBackend = Backend{Kind: Host, Probe: probeHost, Create: newHostBacking, Open: openHostBacking, Adopt: adoptHostBacking}

// hostSeals are the seals that fix the size of a memfd. Without them, a process could shrink the memfd, and another process that accesses
// the memory would get a SIGBUS.
const hostSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

func probeHost(device string) error {
	if device != "" {
		return typed.Errorf(ErrInvalid, "memory of kind %q is on no device, not on %q", Host, device)
	}
	return nil
}

// hostBacking is a memfd that is mapped in this process, with a list of its free ranges.
type hostBacking struct {
	memory *hostmem.Memory
	file   *os.File
	mem    []byte

	lasts atomic.Bool // freed ranges keep their content

	mu   sync.Mutex
	free []span // sorted by offset, never adjacent
	used uint64
}

// span is a range of bytes.
type span struct{ off, size uint64 }

func newHostBacking(spec PoolSpec, memory *hostmem.Memory) (Backing, error) {
	if err := memory.Fits(spec.MaxBytes); err != nil {
		return nil, memoryError(err)
	}
	page := uint64(os.Getpagesize())
	size := sizeclass.RoundUp(spec.MaxBytes, page)
	fd, err := unix.MemfdCreate("poolbridge:"+spec.Name[:min(len(spec.Name), 200)], unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, HostError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "memfd:"+spec.Name)
	mem, err := sizeAndMap(f, size)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &hostBacking{memory: memory, file: f, mem: mem, free: []span{{0, size}}}, nil
}

func adoptHostBacking(f *os.File, at []Place, memory *hostmem.Memory) (Backing, []Allocation, error) {
	a := &hostBacking{memory: memory, file: f}
	st, err := f.Stat()
	if err == nil {
		a.mem, err = mapHost(f, uint64(st.Size()), unix.PROT_READ|unix.PROT_WRITE)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	all := make([]Allocation, len(at))
	order := slices.Clone(at)
	slices.SortFunc(order, func(a, b Place) int { return cmp.Compare(a.At, b.At) })
	end := uint64(0)
	for _, p := range append(order, Place{At: uint64(len(a.mem))}) {
		if p.At < end || p.At > uint64(len(a.mem)) || p.Size > uint64(len(a.mem))-p.At {
			return nil, nil, errors.Join(typed.Errorf(ErrInvalid, "%d bytes at %d are not in the %d bytes of the pool, or belong to two blocks", p.Size, p.At, len(a.mem)), a.Close())
		}
		if p.At > end {
			a.free = append(a.free, span{end, p.At - end})
			err = errors.Join(err, a.punch(end, p.At-end)) // the process may have died while it made a block
		}
		end = p.At + p.Size
		a.used += p.Size
	}
	for i, p := range at {
		all[i] = &hostAllocation{hostMemory: hostMemory{a.mem[p.At : p.At+p.Size : p.At+p.Size]}, backing: a, off: p.At}
	}
	return a, all, err
}

func sizeAndMap(f *os.File, size uint64) ([]byte, error) {
	if err := f.Truncate(int64(size)); err != nil {
		return nil, HostError("ftruncate", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, hostSeals); err != nil {
		return nil, HostError("fcntl(F_ADD_SEALS)", err)
	}
	return mapHost(f, size, unix.PROT_READ|unix.PROT_WRITE)
}

func mapHost(f *os.File, size uint64, protection int) ([]byte, error) {
	if size > math.MaxInt {
		return nil, typed.Errorf(ErrInvalid, "%s are more than this process can map", bytesize.Text(size))
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), protection, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if errors.Is(err, unix.ENOMEM) {
		return nil, typed.Errorf(ErrOutOfMemory, "%s are more than this process can map at once: make a smaller pool, or look at ulimit -v and "+
			"vm.overcommit_memory (mmap: %v)", bytesize.Text(size), err)
	}
	if err != nil {
		return nil, HostError("mmap", err)
	}
	return mem, nil
}

// HostError wraps the error of a system call with a sentinel of this package. The sentinel says whether the call reached a limit, found no
// memory, or failed for another reason.
func HostError(call string, err error) error {
	sentinel := ErrInternal
	switch {
	case noDescriptor(err):
		return typed.Errorf(ErrLimit, "%v; %s", os.NewSyscallError(call, err), raiseFiles)
	case errors.Is(err, unix.EFBIG):
		var limit unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil && limit.Cur != unix.RLIM_INFINITY {
			return typed.Errorf(ErrLimit, "%v; no file of this process may have more than %s: raise that limit (LimitFSIZE= in a unit of systemd, "+
				"ulimit -f)", os.NewSyscallError(call, err), bytesize.Text(limit.Cur))
		}
		sentinel = ErrInvalid
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOSPC):
		sentinel = ErrOutOfMemory
	case errors.Is(err, unix.ENOSYS):
		sentinel = ErrUnavailable
	}
	return fmt.Errorf("%w: %w", sentinel, os.NewSyscallError(call, err))
}

// raiseFiles says what to do if the service has no free file descriptor.
const raiseFiles = "the service has no free file descriptor: end sessions, or raise the service's limit RLIMIT_NOFILE (LimitNOFILE= in a unit of " +
	"systemd, ulimit -n)"

func noDescriptor(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

// memoryError wraps an error of package hostmem with a sentinel of this package.
func memoryError(err error) error {
	switch _, short := errors.AsType[*hostmem.Shortage](err); {
	case short:
		return fmt.Errorf("%w: %w", ErrOutOfMemory, err)
	case noDescriptor(err):
		return typed.Errorf(ErrLimit, "%v; %s", err, raiseFiles)
	case errors.Is(err, hostmem.ErrUnknown):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

func (a *hostBacking) Device() DeviceInfo  { return NoDevice }
func (a *hostBacking) Granularity() uint64 { return uint64(os.Getpagesize()) }
func (a *hostBacking) Export() Export      { return Export{Files: []*os.File{a.file}} }

func (a *hostBacking) InUse() (uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used, nil
}

// hostPart is how many bytes one call of fallocate(2) allocates. During the call (about 10 ms), other allocations and page faults of the
// pool wait. If a signal interrupts the call, the kernel frees the pages that the call has allocated, and this process repeats the call.
const hostPart = 32 << 20

func (a *hostBacking) Allocate(ctx context.Context, size uint64) (Allocation, error) {
	off, err := a.take(size)
	if err != nil {
		return nil, err
	}
	// Allocate the pages now. Otherwise, if the machine has no memory left, the first process that accesses a page would get a SIGBUS.
	took := uint64(0)
	err = a.memory.Take(size, hostPart, func(at, n uint64) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := a.fallocate(unix.FALLOC_FL_KEEP_SIZE, off+at, n)
		if err == nil {
			took += n
		}
		return err
	})
	if err != nil {
		err = memoryError(err)
		if took > 0 {
			err = errors.Join(err, a.punch(off, took))
		}
		a.put(span{off, size}) // even if punch failed: no process has written to the range
		return nil, err
	}
	return &hostAllocation{hostMemory: hostMemory{a.mem[off : off+size : off+size]}, backing: a, off: off}, nil
}

// fallocate allocates or frees the pages of a range. It repeats the call after a signal.
func (a *hostBacking) fallocate(mode uint32, off, size uint64) error {
	for {
		err := unix.Fallocate(int(a.file.Fd()), mode, int64(off), int64(size))
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return HostError("fallocate", err)
		}
	}
}

// punch frees the pages of a range.
func (a *hostBacking) punch(off, size uint64) error {
	return a.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, size)
}

// take takes the smallest free range that is large enough.
func (a *hostBacking) take(size uint64) (uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	best := -1
	for i, s := range a.free {
		if s.size >= size && (best < 0 || s.size < a.free[best].size) {
			best = i
		}
	}
	if best < 0 {
		return 0, typed.Errorf(ErrOutOfMemory, "no contiguous %s are left in a pool of %s, of which %s are in use", bytesize.Text(size),
			bytesize.Text(uint64(len(a.mem))), bytesize.Text(a.used))
	}
	off := a.free[best].off
	if a.free[best].size == size {
		a.free = slices.Delete(a.free, best, best+1)
	} else {
		a.free[best].off += size
		a.free[best].size -= size
	}
	a.used += size
	return off, nil
}

// put makes a range free and joins it with its free neighbours.
func (a *hostBacking) put(s span) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used -= s.size
	i, _ := slices.BinarySearchFunc(a.free, s.off, func(f span, off uint64) int {
		if f.off < off {
			return -1
		}
		return 1
	})
	if i < len(a.free) && s.off+s.size == a.free[i].off {
		s.size += a.free[i].size
		a.free = slices.Delete(a.free, i, i+1)
	}
	if i > 0 && a.free[i-1].off+a.free[i-1].size == s.off {
		a.free[i-1].size += s.size
		return
	}
	a.free = slices.Insert(a.free, i, s)
}

func (a *hostBacking) Last() { a.lasts.Store(true) }

func (a *hostBacking) Close() error {
	return errors.Join(os.NewSyscallError("munmap", unix.Munmap(a.mem)), a.file.Close())
}

// hostAllocation is a range of a hostBacking.
type hostAllocation struct {
	hostMemory
	backing *hostBacking
	off     uint64
}

func (h *hostAllocation) Export() (Export, error) {
	return Export{Data: binary.LittleEndian.AppendUint64(nil, h.off)}, nil
}

func (h *hostAllocation) Place() uint64 { return h.off }

// Free gives the pages back to the kernel, so that the next owner of the range reads zeros. After a call of Last, the range has no next
// owner, so Free keeps the pages: the kernel frees them when the last process has unmapped and closed the file.
func (h *hostAllocation) Free() error {
	size := uint64(len(h.mem))
	if h.backing.lasts.Load() {
		h.backing.put(span{h.off, size})
		return nil
	}
	if err := h.backing.punch(h.off, size); err != nil {
		return err
	}
	h.backing.put(span{h.off, size})
	return nil
}

// hostMemory is memory that the CPU can access.
type hostMemory struct{ mem []byte }

func (h hostMemory) CopyFrom(off uint64, src []byte) error {
	copy(h.mem[off:], src)
	return nil
}

func (h hostMemory) CopyTo(dst []byte, off uint64) error {
	copy(dst, h.mem[off:])
	return nil
}

func (h hostMemory) Fill(off, n uint64, b byte) error {
	part := h.mem[off : off+n]
	if len(part) == 0 {
		return nil
	}
	part[0] = b
	for done := 1; done < len(part); done *= 2 {
		copy(part[done:], part[:done])
	}
	return nil
}

func (h hostMemory) Bytes() []byte      { return h.mem }
func (h hostMemory) Pointer() uintptr   { return uintptr(unsafe.Pointer(unsafe.SliceData(h.mem))) }
func (h hostMemory) Queue() Queue       { return CPU }
func (h hostMemory) Synchronize() error { return nil }

// importedHostBacking is the memfd of another process, mapped twice in this process: its readView cannot be written.
type importedHostBacking struct{ views [2][]byte }

func openHostBacking(p PoolInfo, x Export) (ImportedBacking, error) {
	if len(x.Files) != 1 {
		return nil, typed.Errorf(ErrInvalid, "a pool of kind %q comes with one file descriptor, this one with %d", Host, len(x.Files))
	}
	f := x.Files[0]
	if seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&hostSeals != hostSeals {
		return nil, typed.Errorf(ErrInvalid, "the file of pool %q must be a memfd whose size is sealed, and this one is not (seals %#x, %v)", p.Name, seals, err)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, HostError("fstat", err)
	}
	a := &importedHostBacking{}
	for i, protection := range [...]int{readView: unix.PROT_READ, writeView: unix.PROT_READ | unix.PROT_WRITE} {
		if a.views[i], err = mapHost(f, uint64(st.Size()), protection); err != nil {
			return nil, errors.Join(err, a.Close())
		}
	}
	return a, nil
}

func (a *importedHostBacking) Import(x Export, size uint64) (Mapping, error) {
	if len(x.Data) != 8 || len(x.Files) != 0 {
		return nil, typed.Errorf(ErrInvalid, "a block of kind %q is exported as 8 bytes, not as %d bytes and %d file descriptors",
			Host, len(x.Data), len(x.Files))
	}
	off, total := binary.LittleEndian.Uint64(x.Data), uint64(len(a.views[readView]))
	if off > total || size > total-off {
		return nil, typed.Errorf(ErrInvalid, "a block of %d bytes at %d lies outside its pool of %d", size, off, total)
	}
	var m hostMapping
	for i, view := range a.views {
		m[i] = hostMemory{view[off : off+size : off+size]}
	}
	return m, nil
}

// Reach does nothing: no GPU accesses this memory.
func (a *importedHostBacking) Reach(string) error { return nil }

func (a *importedHostBacking) Close() error {
	var err error
	for i, view := range a.views {
		if view == nil {
			continue
		}
		if e := unix.Munmap(view); e != nil {
			err = errors.Join(err, os.NewSyscallError("munmap", e))
			continue
		}
		a.views[i] = nil
	}
	return err
}

// hostMapping is a range of an importedHostBacking. The backing unmaps all ranges together.
type hostMapping [2]hostMemory

func (m hostMapping) Memory(write bool) (Memory, error) {
	if write {
		return m[writeView], nil
	}
	return m[readView], nil
}

func (hostMapping) Close() error { return nil }
