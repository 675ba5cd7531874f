package driverfacts_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cuda"
)

// workerVariable is an environment variable. If it is set, the test binary is a worker. Descriptor 3 of the worker is
// the socket to the test.
const workerVariable = "POOLBRIDGE_FACTS_WORKER"

// worker is the state of a worker process. The worker makes a context when an operation first needs a context.
type worker struct {
	ctx     *cuda.Context
	stream  *cuda.Stream
	objects []any
}

// operation executes a call. It closes the descriptors in fds that it does not keep. The worker closes the returned
// descriptors after it has sent the reply.
type operation func(w *worker, c call, fds []int) (reply, []int, error)

// operations has the operations by name. The other files of the package add their operations.
var operations = map[string]operation{
	"hello": func(*worker, call, []int) (reply, []int, error) { return reply{}, nil, nil },
	"hold":  func(w *worker, _ call, fds []int) (reply, []int, error) { return reply{ID: w.keep(fds[0])}, nil, nil },
	"give": func(w *worker, c call, _ []int) (reply, []int, error) {
		fd, err := object[int](w, c.ID)
		return reply{}, []int{fd}, err
	},
}

func work() error {
	if err := settle(); err != nil {
		return err
	}
	conn, err := connection(3)
	if err != nil {
		return err
	}
	w := &worker{}
	for {
		if err := w.serve(conn); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
				return nil
			}
			return err
		}
	}
}

// settle applies the worker's setting to the process.
func settle() error {
	number := func(name string) uint64 {
		n, _ := strconv.ParseUint(os.Getenv(workerVariable+name), 10, 64)
		return n
	}
	if number("_SHM") != 0 {
		if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("mount /dev/shm: %w", err)
		}
	}
	if number("_PROC") != 0 {
		// The driver reads files about its own process in /proc. If /proc belongs to another namespace, cuInit fails
		// with CUDA_ERROR_OPERATING_SYSTEM.
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			return fmt.Errorf("mount /proc: %w", err)
		}
	}
	if n := number("_MEMLOCK"); n != 0 {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("setrlimit: %w", err)
		}
	}
	uid := int(number("_UID"))
	if uid == 0 {
		return nil
	}
	// This call loads the library of the driver before the process changes its user, because the other user may not be
	// able to read the file.
	_, _ = cuda.DriverVersion()
	return errors.Join(syscall.Setgroups(nil), syscall.Setgid(uid), syscall.Setuid(uid))
}

// serve executes one call.
func (w *worker) serve(conn *net.UnixConn) error {
	var c call
	fds, err := receive(conn, &c)
	if err != nil {
		return err
	}
	op, ok := operations[c.Op]
	if !ok {
		return send(conn, reply{Error: "unknown operation " + c.Op})
	}
	r, out, err := op(w, c, fds)
	if err != nil {
		r.Error = err.Error()
		errors.As(err, &r.Result)
	}
	err = send(conn, r, out...)
	for _, fd := range out {
		unix.Close(fd)
	}
	return err
}

// context returns the worker's context. If there is none yet, context makes a context and a stream.
func (w *worker) context() (*cuda.Context, error) {
	if w.ctx != nil {
		return w.ctx, nil
	}
	ordinal, _ := strconv.Atoi(os.Getenv(workerVariable + "_DEVICE"))
	d, err := cuda.DeviceAt(ordinal)
	if err != nil {
		return nil, err
	}
	c, err := d.Retain()
	if err != nil {
		return nil, err
	}
	if w.stream, err = c.NewStream(); err != nil {
		return nil, err
	}
	w.ctx = c
	return c, nil
}

// keep stores an object and returns its number.
func (w *worker) keep(o any) int {
	w.objects = append(w.objects, o)
	return len(w.objects) - 1
}

func object[T any](w *worker, id int) (T, error) {
	var none T
	if id < 0 || id >= len(w.objects) {
		return none, fmt.Errorf("no object %d", id)
	}
	o, ok := w.objects[id].(T)
	if !ok {
		return none, fmt.Errorf("object %d is a %T", id, w.objects[id])
	}
	return o, nil
}

// with makes an operation from a function that needs a context.
func with(f func(w *worker, c call) (reply, error)) operation {
	return func(w *worker, c call, fds []int) (reply, []int, error) {
		for _, fd := range fds {
			defer unix.Close(fd)
		}
		if _, err := w.context(); err != nil {
			return reply{}, nil, err
		}
		r, err := f(w, c)
		return r, nil, err
	}
}

// withFD is like with, for a function that needs one descriptor.
func withFD(f func(w *worker, c call, fd int) (reply, error)) operation {
	return func(w *worker, c call, fds []int) (reply, []int, error) {
		for _, fd := range fds {
			defer unix.Close(fd)
		}
		if len(fds) != 1 {
			return reply{}, nil, fmt.Errorf("%s wants a descriptor", c.Op)
		}
		if _, err := w.context(); err != nil {
			return reply{}, nil, err
		}
		r, err := f(w, c, fds[0])
		return r, nil, err
	}
}

// on is like with, for a function that needs an object of the worker.
func on[T any](f func(w *worker, o T, c call) (reply, error)) operation {
	return with(func(w *worker, c call) (reply, error) {
		o, err := object[T](w, c.ID)
		if err != nil {
			return reply{}, err
		}
		return f(w, o, c)
	})
}

// exporting makes an operation that exports an object of the worker as a descriptor.
func exporting[T interface{ ExportFD() (int, error) }]() operation {
	return func(w *worker, c call, _ []int) (reply, []int, error) {
		o, err := object[T](w, c.ID)
		if err != nil {
			return reply{}, nil, err
		}
		fd, err := o.ExportFD()
		if err != nil {
			return reply{}, nil, err
		}
		return reply{}, []int{fd}, nil
	}
}

// closing makes an operation that closes an object of the worker.
func closing() operation {
	return on(func(_ *worker, o io.Closer, _ call) (reply, error) { return reply{}, o.Close() })
}
