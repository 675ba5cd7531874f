package driverfacts_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

// storePTX is a kernel that writes one 32-bit word.
const storePTX = `
.version 7.0
.target sm_70
.address_size 64

.visible .entry store(.param .u64 out, .param .u32 value)
{
	.reg .b32 %r;
	.reg .b64 %d<3>;
	ld.param.u64 %d1, [out];
	ld.param.u32 %r, [value];
	cvta.to.global.u64 %d2, %d1;
	st.global.u32 [%d2], %r;
	ret;
}
`

// These operations of a worker use physical memory.
func init() {
	operations["granularity"] = with(func(w *worker, _ call) (reply, error) {
		n, err := w.ctx.AllocationGranularity()
		return reply{Size: n}, err
	})
	operations["new physical"] = with(func(w *worker, c call) (reply, error) {
		p, err := w.ctx.NewPhysical(c.Size)
		return reply{ID: w.keep(p)}, err
	})
	operations["import physical"] = withFD(func(w *worker, c call, fd int) (reply, error) {
		p, err := w.ctx.ImportPhysical(fd, c.Size)
		return reply{ID: w.keep(p)}, err
	})
	operations["export physical"] = exporting[*cuda.Physical]()
	operations["map"] = on(func(w *worker, p *cuda.Physical, c call) (reply, error) {
		m, err := w.ctx.MapPhysical(p, cuda.AccessFlags(c.Value))
		if err != nil {
			return reply{}, err
		}
		return reply{ID: w.keep(m), Ptr: uint64(m.Ptr())}, nil
	})
	operations["store"] = with(func(w *worker, c call) (reply, error) {
		m, err := w.ctx.LoadModule([]byte(storePTX))
		if err != nil {
			return reply{}, err
		}
		f, err := m.Function("store")
		if err != nil {
			return reply{}, err
		}
		if err := w.stream.Launch(f, cuda.Dim3{}, cuda.Dim3{}, 0, cuda.DevicePtr(c.Ptr), uint32(c.Value)); err != nil {
			return reply{}, err
		}
		return reply{}, w.stream.Synchronize()
	})
}

// physical allocates physical memory in the worker and fills it with v. It returns the descriptor and the address.
func (p *process) physical(size uint64, v byte) (fd int, ptr uint64) {
	p.t.Helper()
	id := p.must(call{Op: "new physical", Size: size}).ID
	fd = p.mustFD(call{Op: "export physical", ID: id})
	ptr = p.must(call{Op: "map", ID: id, Value: uint64(cuda.AccessReadWrite)}).Ptr
	require.NoError(p.t, p.fill(ptr, size, v))
	return fd, ptr
}

// mapped imports physical memory into the worker, maps the memory, and returns its address.
func (p *process) mapped(fd int, size uint64, access cuda.AccessFlags) uint64 {
	p.t.Helper()
	id := p.must(call{Op: "import physical", Size: size}, fd).ID
	return p.must(call{Op: "map", ID: id, Value: uint64(access)}).Ptr
}

// needKernels skips the test if kernels do not run, for example on the simulated driver.
func needKernels(t *testing.T) {
	t.Helper()
	p := start(t, setting{})
	ptr := p.must(call{Op: "malloc", Size: 64}).Ptr
	_, err := p.do(call{Op: "store", Ptr: ptr, Value: 1})
	if errors.Is(err, cuda.ErrNotSupported) || errors.Is(err, cuda.ErrSymbolNotFound) {
		t.Skip("kernels do not run here: ", err)
	}
	require.NoError(t, err)
}

func TestPhysicalMemoryComesIn2MiB(t *testing.T) {
	needVMM(t)
	p := start(t, setting{})
	assert.EqualValues(t, 2*mib, p.must(call{Op: "granularity"}).Size)
	_, err := p.do(call{Op: "new physical", Size: mib})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue)
}

func TestPhysicalMemoryIsSharedThroughItsDescriptor(t *testing.T) {
	needVMM(t)
	owner, user := start(t, setting{}), start(t, setting{namespaces: true})
	fd, ptr := owner.physical(4*mib, 0x61)
	there := user.mapped(fd, 4*mib, cuda.AccessReadWrite)
	assert.True(t, user.is(there, 4*mib, 0x61))
	require.NoError(t, user.fill(there, 4*mib, 0x62))
	assert.True(t, owner.is(ptr, 4*mib, 0x62))
}

func TestAReadOnlyMappingRefusesTheDriversWrites(t *testing.T) {
	needVMM(t)
	owner, user := start(t, setting{}), start(t, setting{})
	fd, ptr := owner.physical(2*mib, 0x71)
	there := user.mapped(fd, 2*mib, cuda.AccessReadOnly)
	assert.True(t, user.is(there, 2*mib, 0x71))
	assert.ErrorIs(t, user.fill(there, 16, 0), cuda.ErrInvalidValue)
	_, err := user.do(call{Op: "copy in", Ptr: there, Data: make([]byte, 16)})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue)
	assert.True(t, owner.is(ptr, 2*mib, 0x71))
	assert.True(t, user.is(there, 2*mib, 0x71), "the writer goes on")
}

func TestAKernelThatWritesAReadOnlyMappingHarmsOnlyItsOwnProcess(t *testing.T) {
	needVMM(t)
	needKernels(t)
	owner, user := start(t, setting{}), start(t, setting{})
	fd, ptr := owner.physical(2*mib, 0x73)
	there := user.mapped(fd, 2*mib, cuda.AccessReadOnly)
	_, err := user.do(call{Op: "store", Ptr: there, Value: 1})
	assert.ErrorIs(t, err, cuda.ErrIllegalAddress)
	assert.ErrorIs(t, user.fill(there, 16, 0), cuda.ErrIllegalAddress, "the error stays")
	assert.True(t, owner.is(ptr, 2*mib, 0x73))
	require.NoError(t, owner.fill(ptr, 2*mib, 0x74))
}

func TestPhysicalMemoryIsImportedAgainAfterTheExportersDeath(t *testing.T) {
	needVMM(t)
	owner := start(t, setting{})
	fd, _ := owner.physical(2*mib, 0x81)
	owner.kill()
	user := start(t, setting{})
	there := user.mapped(fd, 2*mib, cuda.AccessReadWrite)
	assert.True(t, user.is(there, 2*mib, 0x81))
}
