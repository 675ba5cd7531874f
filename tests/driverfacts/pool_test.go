package driverfacts_test

import (
	"strconv"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cuda"
)

// These operations of a worker use memory pools.
func init() {
	operations["new pool"] = with(func(w *worker, c call) (reply, error) {
		spec := cuda.MemPoolSpec{MaxBytes: c.Size, ReleaseThreshold: c.Value, Exportable: true}
		if len(c.Data) > 0 {
			node, err := strconv.Atoi(string(c.Data))
			if err != nil {
				return reply{}, err
			}
			spec.Location = cuda.HostNUMALocation(node)
		}
		p, err := w.ctx.NewMemPool(spec)
		return reply{ID: w.keep(p)}, err
	})
	operations["import pool"] = withFD(func(w *worker, _ call, fd int) (reply, error) {
		p, err := w.ctx.ImportMemPool(fd)
		if err != nil {
			return reply{}, err
		}
		return reply{ID: w.keep(p), Value: uint64(p.Handle())}, nil
	})
	operations["export pool"] = exporting[*cuda.MemPool]()
	operations["close"] = closing()
	operations["allocate"] = on(func(w *worker, p *cuda.MemPool, c call) (reply, error) {
		ptr, err := p.Alloc(c.Size, w.stream)
		if err != nil {
			return reply{}, err
		}
		return reply{Ptr: uint64(ptr)}, w.stream.Synchronize()
	})
	operations["free"] = on(func(w *worker, p *cuda.MemPool, c call) (reply, error) {
		if err := p.Free(cuda.DevicePtr(c.Ptr), w.stream); err != nil {
			return reply{}, err
		}
		return reply{}, w.stream.Synchronize()
	})
	operations["export pointer"] = on(func(_ *worker, p *cuda.MemPool, c call) (reply, error) {
		data, err := p.ExportPtr(cuda.DevicePtr(c.Ptr))
		return reply{Data: data[:]}, err
	})
	operations["import pointer"] = on(func(_ *worker, p *cuda.MemPool, c call) (reply, error) {
		ptr, err := p.ImportPtr(cuda.PtrExportData(c.Data))
		return reply{Ptr: uint64(ptr)}, err
	})
	operations["trim"] = on(func(_ *worker, p *cuda.MemPool, c call) (reply, error) {
		return reply{}, p.TrimTo(c.Size)
	})
	operations["reserved"] = on(func(_ *worker, p *cuda.MemPool, _ call) (reply, error) {
		n, err := p.ReservedMem()
		return reply{Size: n}, err
	})
	operations["access"] = on(func(_ *worker, p *cuda.MemPool, c call) (reply, error) {
		d, err := cuda.DeviceAt(int(c.Value))
		if err != nil {
			return reply{}, err
		}
		flags, err := p.Access(d)
		return reply{Value: uint64(flags)}, err
	})
	operations["set access"] = on(func(_ *worker, p *cuda.MemPool, c call) (reply, error) {
		d, err := cuda.DeviceAt(int(c.Value))
		if err != nil {
			return reply{}, err
		}
		return reply{}, p.SetAccess(d, cuda.AccessFlags(c.Size))
	})
	operations["import and free from many threads"] = func(w *worker, c call, fds []int) (reply, []int, error) {
		if _, err := w.context(); err != nil {
			return reply{}, nil, err
		}
		var g errgroup.Group
		for i, fd := range fds {
			defer unix.Close(fd)
			g.Go(func() error {
				for range c.Value {
					if err := visit(w, fd, cuda.PtrExportData(c.Data[64*i:64*i+64])); err != nil {
						return err
					}
				}
				return nil
			})
		}
		return reply{}, nil, g.Wait()
	}
}

// visit imports a pool and a pointer, frees the pointer, and closes the pool.
func visit(w *worker, fd int, data cuda.PtrExportData) error {
	p, err := w.ctx.ImportMemPool(fd)
	if err != nil {
		return err
	}
	ptr, err := p.ImportPtr(data)
	if err != nil {
		return err
	}
	if err := p.Free(ptr, w.stream); err != nil {
		return err
	}
	return p.Close()
}

// block is an allocation in a worker's pool. It has everything that another worker needs to import the allocation.
type block struct {
	fd   int // descriptor of the pool
	pool int
	ptr  uint64
	size uint64
	data []byte
}

// shared makes an exportable pool in the worker, and one allocation in this pool. It fills the allocation with v.
func (p *process) shared(size uint64, v byte) block {
	p.t.Helper()
	pool := p.must(call{Op: "new pool", Value: ^uint64(0)}).ID
	b := block{pool: pool, size: size, fd: p.mustFD(call{Op: "export pool", ID: pool})}
	b.ptr = p.must(call{Op: "allocate", ID: pool, Size: size}).Ptr
	b.data = p.must(call{Op: "export pointer", ID: pool, Ptr: b.ptr}).Data
	if err := p.fill(b.ptr, size, v); err != nil {
		p.t.Fatal(err)
	}
	return b
}

// imported imports the block's pool and its pointer into the worker.
func (p *process) imported(b block) block {
	p.t.Helper()
	b.pool = p.must(call{Op: "import pool"}, b.fd).ID
	b.ptr = p.must(call{Op: "import pointer", ID: b.pool, Data: b.data}).Ptr
	return b
}
