package work

import (
	"context"
	"errors"
	"os"

	"github.com/poolbridge/poolbridge/mempool"
)

// openFile opens a legacy handle from a file, compares the memory and changes the memory. The task needs no service.
func (w *Worker) openFile(ctx context.Context, t *Task) (a *Answer, err error) {
	raw, err := os.ReadFile(t.Path)
	if err != nil {
		return nil, err
	}
	h, err := mempool.ParseSaved(raw)
	if err != nil {
		return nil, err
	}
	device := t.Device
	if h.Device != "" {
		device = h.Device
	}
	g, err := w.bench.OnDevice(device)
	if err != nil {
		return nil, err
	}
	o, err := h.Open(g.Context)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	a = &Answer{Elements: t.Elements, Mapped: true}
	return a, w.compare(ctx, a, placed{o.Ptr(), o.Size()}, t.Elements, t)
}

// ownLegacy allocates legacy memory with a pattern, and returns its handle. The memory lives until the worker ends.
func (w *Worker) ownLegacy(_ context.Context, t *Task) (*Answer, error) {
	g, err := w.bench.OnDevice(t.Device)
	if err != nil {
		return nil, err
	}
	// An allocation that is smaller than `whole` could share a block of the driver with other allocations. Its handle would then open the
	// beginning of that block, not the beginning of the allocation.
	const whole = 2 << 20
	ptr, err := g.Context.Malloc((t.Elements*ElementBytes + whole - 1) / whole * whole)
	if err != nil {
		return nil, err
	}
	w.kept = append(w.kept, func() error { return g.Context.MFree(ptr) })
	want, err := t.Pattern.pattern()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(g.Kernels.Fill(g.Stream, ptr, t.Elements, want), g.Stream.Synchronize()); err != nil {
		return nil, err
	}
	base, _, err := g.Context.AddressRange(ptr)
	if err != nil {
		return nil, err
	}
	handle, err := g.Context.IPCMemHandle(ptr)
	if err != nil {
		return nil, err
	}
	h := mempool.LegacyHandle{Handle: handle, Offset: uint64(ptr - base)}
	return &Answer{Handle: h.AppendBinary(nil), PID: os.Getpid()}, nil
}
