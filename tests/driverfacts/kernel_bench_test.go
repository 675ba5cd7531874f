package driverfacts_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
)

const (
	kernelTakes = 200 * time.Millisecond
	headStart   = 20 * time.Millisecond // how much earlier the work beside a call begins than the call
)

// publisher is the state of a process that exports memory. newPublisher makes everything that the calls need prepare
// runs before the kernel runs.
type publisher struct {
	ctx        *cuda.Context
	kernels    *pattern.Kernels
	busy, idle *cuda.Stream // the kernel runs on busy
	event      *cuda.Event
	words      *cuda.Pinned
	page       []byte // memory that cuMemHostRegister has not registered yet
	pool       *cuda.MemPool
	pooled     cuda.DevicePtr
	plain      cuda.DevicePtr    // allocated by cuMemAlloc
	foreign    cuda.IPCMemHandle // handle of another process
	undo       []func() error    // functions that undo the calls that were made while the kernel ran
}

// publisherCalls are the calls that the benchmark measures.
var publisherCalls = []struct {
	name string
	do   func(p *publisher) error
}{
	{"cuStreamQuery, busy stream", func(p *publisher) error { _, err := p.busy.Query(); return err }},
	{"cuStreamWriteValue64, busy stream", func(p *publisher) error { return p.busy.WriteValue64(p.words.DevicePtr(), 1) }},
	{"cuStreamWriteValue64, idle stream", func(p *publisher) error { return p.idle.WriteValue64(p.words.DevicePtr()+8, 1) }},
	{"cuStreamWaitValue64, idle stream", func(p *publisher) error { return p.idle.WaitValue64GEQ(p.words.DevicePtr()+8, 0) }},
	{"cuEventRecord, busy stream", func(p *publisher) error { return p.event.Record(p.busy) }},
	{"cuEventCreate, interprocess", func(p *publisher) error {
		e, err := p.ctx.NewEvent(cuda.EventSpec{Interprocess: true})
		if err == nil {
			p.undo = append(p.undo, e.Close)
		}
		return err
	}},
	{"cuIpcGetEventHandle", func(p *publisher) error { _, err := p.event.IPCHandle(); return err }},
	{"cuMemsetD8Async, idle stream", func(p *publisher) error { return p.idle.Memset8(p.pooled, 1, kib) }},
	{"cuLaunchKernel, idle stream", func(p *publisher) error { return p.kernels.Spin(p.idle, 0) }},
	{"cuPointerGetAttributes", func(p *publisher) error { _, err := p.ctx.PointerAttributes(p.plain); return err }},
	{"cuMemHostRegister", func(p *publisher) error {
		r, err := p.ctx.RegisterHost(p.page, cuda.HostDeviceMap)
		if err == nil {
			p.undo = append(p.undo, r.Close)
		}
		return err
	}},
	{"cuMemHostAlloc", func(p *publisher) error {
		m, err := p.ctx.NewPinned(pageSize)
		if err == nil {
			p.undo = append(p.undo, m.Close)
		}
		return err
	}},
	{"cuMemAlloc", func(p *publisher) error {
		ptr, err := p.ctx.Malloc(2 * mib)
		if err == nil {
			p.undo = append(p.undo, func() error { return p.ctx.MFree(ptr) })
		}
		return err
	}},
	{"cuIpcGetMemHandle", func(p *publisher) error { _, err := p.ctx.IPCMemHandle(p.plain); return err }},
	{"cuMemAllocFromPoolAsync, idle stream", func(p *publisher) error {
		ptr, err := p.pool.Alloc(mib, p.idle)
		if err == nil {
			p.undo = append(p.undo, func() error { return p.pool.Free(ptr, p.idle) })
		}
		return err
	}},
	{"cuMemPoolExportPointer", func(p *publisher) error { _, err := p.pool.ExportPtr(p.pooled); return err }},
	{"cuStreamCreate", func(p *publisher) error {
		s, err := p.ctx.NewStream()
		if err == nil {
			p.undo = append(p.undo, s.Close)
		}
		return err
	}},
}

// beside is the work that runs at the same time as a call of the publisher: inside runs in another thread of the
// publisher, outside runs in another process.
type beside struct {
	name    string
	inside  func(p *publisher, ptr cuda.DevicePtr) error
	prepare func(other *process, handle []byte) (opened uint64) // before the kernel runs
	outside func(other *process, handle []byte, opened uint64) (undo call, err error)
	device  int  // GPU of the other process
	frees   bool // the work frees the memory that is published
}

func opens(other *process, handle []byte, _ uint64) (call, error) {
	r, err := other.do(call{Op: "open", Data: handle})
	return call{Op: "close opened", Ptr: r.Ptr}, err
}

func besides() []beside {
	return []beside{
		{name: "nothing"},
		{name: "this process frees cuMemAlloc memory", frees: true, inside: func(p *publisher, ptr cuda.DevicePtr) error { return p.ctx.MFree(ptr) }},
		{name: "this process opens a legacy handle", inside: func(p *publisher, _ cuda.DevicePtr) error {
			opened, err := p.ctx.OpenIPCMem(p.foreign)
			if err == nil {
				p.undo = append(p.undo, func() error { return p.ctx.CloseIPCMem(opened) })
			}
			return err
		}},
		{name: "another process opens a legacy handle of this one", outside: opens},
		{name: "another process closes a legacy handle of this one",
			prepare: func(other *process, handle []byte) uint64 { return other.must(call{Op: "open", Data: handle}).Ptr },
			outside: func(other *process, _ []byte, opened uint64) (call, error) {
				_, err := other.do(call{Op: "close opened", Ptr: opened})
				return call{}, err
			}},
		{name: "another process, on GPU 1, opens a legacy handle of this one", outside: opens, device: 1},
	}
}

// These operations of a worker make the worker a publisher and measure its calls.
func init() {
	operations["become publisher"] = with(func(w *worker, c call) (reply, error) {
		p, err := newPublisher(w, cuda.IPCMemHandle(c.Data))
		return reply{ID: w.keep(p)}, err
	})
	operations["run kernel"] = on(func(_ *worker, p *publisher, _ call) (reply, error) {
		return reply{}, p.kernels.Spin(p.busy, kernelTakes)
	})
	// This operation returns two times in nanoseconds: Value is the time of the call, and Size is the time of the work
	// that the worker does at the same time.
	operations["time call"] = on(func(_ *worker, p *publisher, c call) (r reply, err error) {
		inside := besides()[c.Size].inside
		done := make(chan error, 1)
		go func() {
			if inside == nil {
				done <- nil
				return
			}
			began := time.Now()
			err := inside(p, cuda.DevicePtr(c.Ptr))
			r.Size = uint64(time.Since(began))
			done <- err
		}()
		time.Sleep(headStart)
		began := time.Now()
		err = publisherCalls[c.Value].do(p)
		r.Value = uint64(time.Since(began))
		return r, errors.Join(err, <-done)
	})
	operations["end kernel"] = on(func(_ *worker, p *publisher, _ call) (reply, error) {
		errs := []error{p.busy.Synchronize(), p.idle.Synchronize()}
		for _, undo := range p.undo {
			errs = append(errs, undo())
		}
		p.undo = nil
		return reply{}, errors.Join(append(errs, p.idle.Synchronize())...)
	})
}

func newPublisher(w *worker, foreign cuda.IPCMemHandle) (p *publisher, err error) {
	p = &publisher{ctx: w.ctx, busy: w.stream, foreign: foreign}
	for _, make := range []func() error{
		func() (err error) { p.kernels, err = pattern.Load(w.ctx); return err },
		func() (err error) { p.idle, err = w.ctx.NewStream(); return err },
		func() (err error) { p.event, err = w.ctx.NewEvent(cuda.EventSpec{Interprocess: true}); return err },
		func() (err error) { p.words, err = w.ctx.NewPinned(pageSize); return err },
		func() (err error) {
			p.page, err = unix.Mmap(-1, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
			return err
		},
		func() (err error) {
			p.pool, err = w.ctx.NewMemPool(cuda.MemPoolSpec{MaxBytes: 64 * mib, Exportable: true})
			return err
		},
		func() (err error) { p.pooled, err = p.pool.Alloc(mib, p.idle); return err },
		func() error { // a pool must be exported before its pointers can be exported
			fd, err := p.pool.ExportFD()
			return errors.Join(err, unix.Close(fd))
		},
		func() (err error) { p.plain, err = w.ctx.Malloc(2 * mib); return err },
		// The driver loads a kernel when the kernel first runs, so run each kernel before the measurement.
		func() error {
			return errors.Join(p.kernels.Spin(p.busy, 0), p.kernels.Spin(p.idle, 0), w.ctx.Synchronize())
		},
	} {
		if err := make(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// BenchmarkPublisherWhileAKernelRuns measures each call of a publisher while a kernel of 200 ms runs. At the same time,
// other work runs that may wait for the kernel. If the call takes 0.2 s, it has waited for the kernel too. The table
// shows, in milliseconds, the longest time of all rounds.
func BenchmarkPublisherWhileAKernelRuns(b *testing.B) {
	needLegacy(b)
	needPools(b)
	devices, err := cuda.DeviceCount()
	require.NoError(b, err)
	var table strings.Builder
	columns := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for kind, beside := range besides() {
		if beside.device >= devices {
			fmt.Fprintf(columns, "beside: %s\tskipped, there are %d devices\n", beside.name, devices)
			continue
		}
		own, other := start(b, setting{}), start(b, setting{device: beside.device})
		_, foreign := other.legacy(2*mib, 0)
		id := own.must(call{Op: "become publisher", Data: foreign}).ID
		fmt.Fprintf(columns, "beside: %s\tcall\tbeside it\n", beside.name)
		for i, c := range publisherCalls {
			b.Run(beside.name+"/"+c.name, func(b *testing.B) {
				var call, along time.Duration
				for b.Loop() {
					took, went := round(b, own, other, id, kind, i)
					call, along = max(call, took), max(along, went)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(call.Microseconds())/1e3, "ms/call")
				b.ReportMetric(float64(along.Microseconds())/1e3, "ms/beside")
				fmt.Fprintf(columns, "  %s\t%.3f\t%.3f\n", c.name, float64(call.Microseconds())/1e3, float64(along.Microseconds())/1e3)
			})
		}
	}
	require.NoError(b, columns.Flush())
	_, err = os.Stdout.WriteString(table.String())
	require.NoError(b, err)
}

// round measures one call once. It returns the time of the call, and the time of the work that runs at the same time.
func round(b *testing.B, own, other *process, id, kind, which int) (took, along time.Duration) {
	b.Helper()
	beside := besides()[kind]
	ptr, handle := own.legacy(2*mib, 0)
	var opened uint64
	if beside.prepare != nil {
		opened = beside.prepare(other, handle)
	}
	own.must(call{Op: "run kernel", ID: id})
	type outcome struct {
		undo call
		took time.Duration
		err  error
	}
	outside := make(chan outcome, 1)
	go func() {
		var o outcome
		if beside.outside != nil {
			began := time.Now()
			o.undo, o.err = beside.outside(other, handle, opened)
			o.took = time.Since(began)
		}
		outside <- o
	}()
	r := own.must(call{Op: "time call", ID: id, Value: uint64(which), Size: uint64(kind), Ptr: ptr})
	o := <-outside
	require.NoError(b, o.err)
	own.must(call{Op: "end kernel", ID: id})
	if o.undo.Op != "" {
		other.must(o.undo)
	}
	if !beside.frees {
		own.must(call{Op: "mfree", Ptr: ptr})
	}
	return time.Duration(r.Value), o.took + time.Duration(r.Size)
}
