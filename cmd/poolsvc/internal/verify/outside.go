package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// outsideChecks returns checks that do not use the service: descriptors, handles, multiprocessing and fork.
func outsideChecks(kind mempool.Kind, consumers []string, _ Options) []check {
	best := preferred(consumers)
	checks := each(mapping, "fork", best[1:], fork)
	switch kind {
	case mempool.VMM:
		checks = append(checks, each(handle, "descriptor", best, descriptor)...)
	case mempool.Device:
		if slices.Contains(consumers, cudaCore) {
			checks = append(checks, each(transfer, "pickled", []string{cudaCore}, pickled)...)
		}
	case mempool.Legacy:
		checks = append(checks, alone(each(handle, "zeros", best, zeros), own)...)
		checks = append(checks, each(handle, "refused", best, refusedByDriver)...)
		checks = append(checks, each(handle, "segments", consumers[:1], uniqueHandles)...)
	}
	return checks
}

// cudaCore is the consumer that uses only cuda.core.
const cudaCore = "cuda.core"

// shared is memory of this process that another process opens by a descriptor.
type shared struct {
	physical *cuda.Physical
	mapping  *cuda.Mapping
	fd       int
}

// share allocates memory of a GPU and exports the allocation as a descriptor.
func share(c *cuda.Context, bytes uint64) (m *shared, err error) {
	unit, err := c.AllocationGranularity()
	if err != nil {
		return nil, err
	}
	m = new(shared)
	if m.physical, err = c.NewPhysical((bytes + unit - 1) / unit * unit); err != nil {
		return nil, err
	}
	if m.mapping, err = c.MapPhysical(m.physical, cuda.AccessReadWrite); err != nil {
		return nil, errors.Join(err, m.physical.Close())
	}
	if m.fd, err = m.physical.ExportFD(); err != nil {
		return nil, errors.Join(err, m.mapping.Close(), m.physical.Close())
	}
	return m, nil
}

// close unmaps the memory, and then releases the allocation and its descriptor.
func (m *shared) close() error {
	return errors.Join(m.mapping.Close(), m.physical.Close(), unix.Close(m.fd))
}

// descriptor sends a worker the file descriptor of an allocation through a separate socket, not through the service. In the first run,
// the worker unmaps the memory before this process does. In the second run, the worker unmaps the memory after this process does: the
// memory must exist as long as the worker maps it.
func descriptor(ctx context.Context, s *scene, consumer string) error {
	for _, ownerFirst := range []bool{false, true} {
		if err := passDescriptor(ctx, s, consumer, ownerFirst); err != nil {
			return fmt.Errorf("the owner cleans up first: %v: %w", ownerFirst, err)
		}
	}
	return nil
}

func passDescriptor(ctx context.Context, s *scene, consumer string, ownerFirst bool) (err error) {
	device, err := s.uuid()
	if err != nil {
		return err
	}
	g, err := s.bench.OnDevice(device)
	if err != nil {
		return err
	}
	w, err := s.worker(consumer)
	if err != nil {
		return err
	}
	m, err := share(g.Context, maskedElements*work.ElementBytes)
	if err != nil {
		return err
	}
	owned := true
	defer func() {
		if owned {
			err = errors.Join(err, m.close())
		}
	}()
	first, second := masked(0), masked(1)
	if err := s.bench.Fill(ctx, m, maskedElements, first); err != nil {
		return err
	}
	t := work.Task{Task: "descriptor", Path: filepath.Join(s.dir, "run", fmt.Sprintf("%d.sock", s.names.Add(1))), Device: device,
		Pattern: first, Then: second, Elements: maskedElements}
	if err := m.send(ctx, t.Path, func(ctx context.Context) error {
		_, err := w.check(ctx, t)
		return err
	}); err != nil {
		return err
	}
	seen, err := s.bench.Verify(ctx, m, maskedElements, second)
	if err = errors.Join(err, seen.Err()); err != nil {
		return err
	}
	if ownerFirst {
		owned = false
		if err := m.close(); err != nil {
			return err
		}
	}
	_, err = w.check(ctx, work.Task{Task: "descriptor-close", Pattern: second, Elements: maskedElements})
	return err
}

// Info, Bytes and Pointer implement work.Memory.
func (m *shared) Info() mempool.LeaseInfo {
	return mempool.LeaseInfo{Tensor: mempool.Bytes(m.mapping.Size())}
}
func (m *shared) Bytes(context.Context) ([]byte, error)    { return nil, nil }
func (m *shared) Pointer(context.Context) (uintptr, error) { return uintptr(m.mapping.Ptr()), nil }

// send sends the size and the descriptor to another process, which connects to a socket. The function `receive` makes the other process
// connect and receive. It runs while the method `send` waits for the connection.
func (m *shared) send(ctx context.Context, path string, receive func(context.Context) error) (err error) {
	listener, err := seqpacket.Listen(path, seqpacket.ListenConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	sent := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			size := binary.LittleEndian.AppendUint64(nil, m.physical.Size())
			err = errors.Join(conn.Send(size, []int{m.fd}), conn.Close())
		}
		sent <- err
	}()
	if err := receive(ctx); err != nil {
		return err // the deferred call closes the listener, which ends Accept
	}
	return <-sent
}

// zeros lets a worker open a handle that consists of 64 zero bytes. The worker must report a clear error. After the error, the worker
// must still be able to use other memory.
func zeros(ctx context.Context, s *scene, consumer string) (err error) {
	device, err := s.uuid()
	if err != nil {
		return err
	}
	name := s.uniqueName("zeros")
	undo, err := s.publish(ctx, name, legacyElements, masked(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	path, _, release, err := s.save(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	none := filepath.Join(s.dir, s.uniqueName("zeros"))
	if err := os.WriteFile(none, make([]byte, mempool.HandleBytes), 0o600); err != nil {
		return err
	}
	w, err := s.fresh(role{consumer: consumer})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	_, err = w.do(ctx, work.Task{Task: "open-file", Path: none, Device: device, Consumer: consumer, Pattern: work.Affine(0, 0), Elements: 1})
	failed, ok := errors.AsType[*work.Failure](err)
	switch {
	case err == nil:
		return errors.New("64 zero bytes were opened as a handle")
	case !ok || failed.Code != "invalid":
		return fmt.Errorf("64 zero bytes should be an invalid handle: %w", err)
	}
	s.note = failed.Message
	_, err = w.check(ctx, work.Task{Task: "open-file", Path: path, Consumer: consumer, Pattern: masked(0), Elements: legacyElements})
	return err
}

// refusedByDriver lets a worker ask the driver for handles of memory for which the driver makes no handles.
func refusedByDriver(ctx context.Context, s *scene, consumer string) error {
	device, err := s.uuid()
	if err != nil {
		return err
	}
	w, err := s.worker(consumer)
	if err != nil {
		return err
	}
	a, err := w.do(ctx, work.Task{Task: "refused", Device: device})
	if err != nil {
		return err
	}
	var said []string
	for _, name := range slices.Sorted(maps.Keys(a.Refused)) {
		refusal := a.Refused[name]
		if refusal == nil {
			return fmt.Errorf("the driver gave a handle of %s memory", name)
		}
		said = append(said, name+": "+refusal.Message)
	}
	if len(said) == 0 {
		return errors.New("the worker asked for no handle")
	}
	s.note = strings.Join(said, "; ")
	return nil
}

// uniqueHandles saves the handles of several buffers. All handles must be different, and each handle must open the buffer to which it
// belongs.
func uniqueHandles(ctx context.Context, s *scene, consumer string) (err error) {
	w, err := s.worker(consumer)
	if err != nil {
		return err
	}
	name := s.uniqueName("segments")
	total := uint64(0)
	for _, bytes := range segments {
		total += bytes
	}
	pool, undo, err := s.pool(ctx, name, total)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	paths := make([]string, len(segments))
	seen := make(map[string]string)
	for i, bytes := range segments {
		segment := fmt.Sprintf("%s, segment %d", name, i)
		if err := s.put(ctx, pool, segment, bytes/work.ElementBytes, masked(uint32(i))); err != nil {
			return err
		}
		path, saved, release, err := s.save(ctx, segment)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, release()) }()
		if other, known := seen[string(saved.Handle)]; known {
			return fmt.Errorf("%q and %q have one handle", other, segment)
		}
		seen[string(saved.Handle)] = segment
		paths[i] = path
	}
	for i, path := range paths {
		_, err := w.check(ctx, work.Task{Task: "open-file", Path: path, Consumer: consumer, Pattern: masked(uint32(i)),
			Elements: segments[i] / work.ElementBytes})
		if err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
	}
	return nil
}

// pickled lets a worker pass a buffer of cuda.core to another process through multiprocessing.
func pickled(ctx context.Context, s *scene, consumer string) error {
	device, err := s.uuid()
	if err != nil {
		return err
	}
	w, err := s.worker(consumer)
	if err != nil {
		return err
	}
	a, err := w.check(ctx, work.Task{Task: "pickled", Device: device, Pattern: masked(0), Then: masked(1), Elements: maskedElements})
	if err == nil && !a.Mapped {
		err = errors.New("the buffer does not say that it is mapped in the process that got it")
	}
	return err
}

// fork lets a worker call fork without exec. Each call of the library in the child process must return an error and must not give the
// child memory. After the fork, the worker itself must still be able to use memory.
func fork(ctx context.Context, s *scene, consumer string) (err error) {
	name := s.uniqueName("fork")
	undo, err := s.publish(ctx, name, maskedElements, masked(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	w, err := s.worker(consumer)
	if err != nil {
		return err
	}
	a, err := w.check(ctx, work.Task{Task: "fork", Name: name, Consumer: consumer, Pattern: masked(0), Elements: maskedElements})
	if err != nil {
		return err
	}
	for _, what := range []string{"client", "lease"} {
		if a.Raised[what] != "ForkError" {
			return fmt.Errorf("a forked child that uses the %s should get ForkError, and got %q", what, a.Raised[what])
		}
	}
	if s.kind == mempool.Host && a.Signal != int(unix.SIGSEGV) {
		return fmt.Errorf("a forked child that touches the memory should end by signal %d, and the signal was %d", unix.SIGSEGV, a.Signal)
	}
	_, err = w.check(ctx, work.Task{Name: name, Consumer: consumer, Pattern: masked(0), Elements: maskedElements})
	return err
}
