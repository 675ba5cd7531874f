package verify

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// openFile opens a legacy handle from a file, without the service, compares the memory, and then writes another pattern, if there is one.
type openFile struct {
	Path   string   `json:"path"`
	Device string   `json:"device"` // the GPU of the memory, if the file does not name it
	Expect *Pattern `json:"expect"`
	Then   *Pattern `json:"then"`
}

func (t openFile) do(_ context.Context, w *Worker) (_ any, err error) {
	raw, err := os.ReadFile(t.Path)
	if err != nil {
		return nil, err
	}
	h, err := mempool.ParseSaved(raw)
	if err != nil {
		return nil, err
	}
	if h.Device != "" {
		t.Device = h.Device
	}
	g, err := w.gpus.named(t.Device)
	if err != nil {
		return nil, err
	}
	o, err := h.Open(g.context)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	return nil, w.gpus.compare(memory{ptr: o.Ptr(), elements: t.Expect.Elements}, t.Expect, t.Then)
}

// ownLegacy allocates memory with a pattern, without the service, and answers with its legacy handle. The memory lives as long as the
// worker.
type ownLegacy struct {
	Device  string   `json:"device"`
	Content *Pattern `json:"content"`
}

func (t ownLegacy) do(_ context.Context, w *Worker) (any, error) {
	g, err := w.gpus.named(t.Device)
	if err != nil {
		return nil, err
	}
	// An allocation that is smaller than `whole` could share a block of the driver with other allocations. Its handle would then open the
	// beginning of that block, not the beginning of the allocation.
	const whole = 2 << 20
	ptr, err := g.context.Malloc((t.Content.bytes() + whole - 1) / whole * whole)
	if err != nil {
		return nil, err
	}
	if err := w.gpus.fill(memory{ptr: ptr, elements: t.Content.Elements}, t.Content); err != nil {
		return nil, err
	}
	base, _, err := g.context.AddressRange(ptr)
	if err != nil {
		return nil, err
	}
	handle, err := g.context.IPCMemHandle(ptr)
	if err != nil {
		return nil, err
	}
	h := mempool.LegacyHandle{Handle: handle, Offset: uint64(ptr - base)}
	return h.AppendBinary(nil), nil
}

// descriptor receives the size and the file descriptor of an allocation through a socket, without the service. It maps the allocation,
// compares it, writes another pattern and says so through the socket. When the owner has given the memory back and closed the socket, it
// compares the memory once more.
type descriptor struct {
	Path   string   `json:"path"`
	Device string   `json:"device"`
	Expect *Pattern `json:"expect"`
	Then   *Pattern `json:"then"`
}

func (t descriptor) do(ctx context.Context, w *Worker) (_ any, err error) {
	conn, err := seqpacket.Dial(ctx, t.Path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	size := make([]byte, 8)
	n, fds, err := conn.Recv(size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fds.Close()) }()
	if n != len(size) || fds.Len() != 1 {
		return nil, errors.New("expected the size of an allocation, in 8 bytes, and its descriptor")
	}
	g, err := w.gpus.named(t.Device)
	if err != nil {
		return nil, err
	}
	fd := fds.Next()
	defer func() { err = errors.Join(err, fd.Close()) }()
	physical, err := g.context.ImportPhysical(fd.Raw(), binary.LittleEndian.Uint64(size))
	if err != nil {
		return nil, err
	}
	return nil, mapped(g.context, physical, func(ptr cuda.DevicePtr) error {
		m := memory{ptr: ptr, elements: t.Expect.Elements}
		if err := errors.Join(w.gpus.compare(m, t.Expect, t.Then), conn.Send(size, nil)); err != nil {
			return err
		}
		if _, _, err := conn.Recv(size); !errors.Is(err, io.EOF) {
			return fmt.Errorf("the owner should close the socket: %w", err)
		}
		return w.gpus.compare(m, t.Then, nil)
	})
}

// mapped calls f with the address of a mapping of an allocation. Afterwards it unmaps the allocation and gives it back.
func mapped(c *cuda.Context, physical *cuda.Physical, f func(cuda.DevicePtr) error) error {
	m, err := c.MapPhysical(physical, cuda.AccessReadWrite)
	if err == nil {
		err = errors.Join(f(m.Ptr()), m.Close())
	}
	return errors.Join(err, physical.Close())
}

// save writes a file that says how to open a published buffer, and calls f with its path and the handle. Until f returns, the buffer stays.
func (s *scene) save(ctx context.Context, name string, f func(path string, handle []byte) error) error {
	lease, err := s.client.TryExport(ctx, name)
	if err != nil {
		return err
	}
	saved := lease.Saved(name, s.socket)
	file, err := json.Marshal(saved)
	path := filepath.Join(s.dir, s.uniqueName("saved"))
	if err == nil {
		err = os.WriteFile(path, file, 0o600)
	}
	if err == nil {
		err = f(path, saved.Handle)
	}
	return errors.Join(err, lease.Release())
}

// handleInAFile saves the handle of a buffer to a file. Then it starts a worker that uses no service. The worker opens the handle from the
// file, compares the memory and writes it, and then does so once more.
func handleInAFile(ctx context.Context, s *scene) error {
	first, second, doubled := affine(megabyte, 0.001, 42), affine(megabyte, 1, 100), affine(megabyte, 2, 200)
	first.Tolerance = 1e-4
	return s.published(ctx, first, func(name string) error {
		err := s.save(ctx, name, func(path string, _ []byte) error {
			return s.alone(nil, func(w *worker) error {
				if err := w.do(ctx, openFile{path, "", first, second}, nil); err != nil {
					return err
				}
				return w.do(ctx, openFile{path, "", second, doubled}, nil)
			}, "--socket", filepath.Join(s.dir, "nobody"))
		})
		if err != nil {
			return err
		}
		return s.compareBuffer(ctx, name, doubled, nil)
	})
}

// deadOwner lets a worker open a handle whose owner process was killed. The worker must report an error, and must still be able to use
// other memory.
func deadOwner(ctx context.Context, s *scene) error {
	device, err := s.uuid()
	if err != nil {
		return err
	}
	owner, err := s.start(goConsumer, nil)
	if err != nil {
		return err
	}
	defer owner.Kill()
	p := affine(megabyte, 1, 100)
	var handle []byte
	if err := owner.do(ctx, ownLegacy{device, p}, &handle); err != nil {
		return err
	}
	path := filepath.Join(s.dir, s.uniqueName("handle"))
	if err := os.WriteFile(path, handle, 0o600); err != nil {
		return err
	}
	w, err := s.worker()
	if err != nil {
		return err
	}
	t := openFile{path, device, p, nil}
	if err := w.do(ctx, t, nil); err != nil {
		return fmt.Errorf("while the owner lives: %w", err)
	}
	owner.Kill()
	switch err := w.do(ctx, t, nil); {
	case err == nil:
		return errors.New("the handle of a dead process was opened")
	case !hasCode(err, "unavailable"):
		return fmt.Errorf("the handle of a dead process should be unavailable: %w", err)
	}
	return s.published(ctx, p, func(name string) error { return w.do(ctx, check{name, p, nil}, nil) })
}

// passDescriptor lends a worker memory through a socket of its own, not through the service.
func passDescriptor(ctx context.Context, s *scene) error {
	device, err := s.uuid()
	if err != nil {
		return err
	}
	w, err := s.worker()
	if err != nil {
		return err
	}
	t := descriptor{filepath.Join(s.dir, "run", fmt.Sprintf("%d.sock", s.names.Add(1))), device, masked(megabyte, 0), masked(megabyte, 1)}
	listener, err := seqpacket.Listen(t.Path, seqpacket.ListenConfig{})
	if err != nil {
		return err
	}
	lent := make(chan error, 1)
	go func() { lent <- s.lend(t, listener) }()
	return errors.Join(w.do(ctx, t, nil), listener.Close(), <-lent) // the end of the listener ends Accept if the worker did not connect
}

// lend sends the size and the descriptor of an allocation to the process that connects to the listener. When the process has answered, lend
// compares the memory, gives it back, and only then closes the socket: the memory must exist as long as the other process maps it.
func (s *scene) lend(t descriptor, listener *seqpacket.Listener) (err error) {
	g, err := s.gpus.named(t.Device)
	if err != nil {
		return err
	}
	unit, err := g.context.AllocationGranularity()
	if err != nil {
		return err
	}
	physical, err := g.context.NewPhysical((t.Expect.bytes() + unit - 1) / unit * unit)
	if err != nil {
		return err
	}
	var conn *seqpacket.Conn
	err = mapped(g.context, physical, func(ptr cuda.DevicePtr) error {
		m := memory{ptr: ptr, elements: t.Expect.Elements}
		if err := s.gpus.fill(m, t.Expect); err != nil {
			return err
		}
		if conn, err = listener.Accept(); err != nil {
			return err
		}
		fd, err := physical.ExportFD()
		if err != nil {
			return err
		}
		size := binary.LittleEndian.AppendUint64(nil, physical.Size())
		if err := errors.Join(conn.Send(size, []int{fd}), unix.Close(fd)); err != nil {
			return err
		}
		if _, _, err := conn.Recv(size); err != nil {
			return err
		}
		return s.gpus.compare(m, t.Then, nil)
	})
	if conn != nil {
		err = errors.Join(err, conn.Close())
	}
	return err
}
