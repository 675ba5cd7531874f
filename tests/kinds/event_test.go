package kinds

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// readerOf and readerShm are environment variables. If readerOf is set, this process reads a buffer of the service at
// the socket that the value names. If readerShm is set, the process also has its own /dev/shm.
const (
	readerOf  = "POOLBRIDGE_KINDS_READER"
	readerShm = "POOLBRIDGE_KINDS_READER_SHM"
)

const nobody = 65534

// read makes a stream wait for the content of the buffer "frame", and prints whether this succeeded. Then it waits
// for the content and prints the first and the last byte.
func read(socket string) (err error) {
	if os.Getenv(readerShm) != "" {
		err = errors.Join(unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""), unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, ""))
		if err != nil {
			return err
		}
	}
	c, err := bridge.Dialer{Wait: true}.Dial(context.Background(), socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	l, err := c.TryGet(context.Background(), "frame", bridge.LeaseOptions{})
	if err != nil {
		return err
	}
	d, err := mempool.FindDevice("")
	if err != nil {
		return err
	}
	ctx, err := d.Retain()
	if err != nil {
		return err
	}
	stream, err := ctx.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close(), ctx.Close()) }()
	_, opened := l.ReadyEvent()
	if opened != nil {
		if err := works(ctx); err != nil {
			return err
		}
		fmt.Printf("refused %t %t %v\n", errors.Is(opened, mempool.ErrUnavailable), errors.Is(opened, cuda.ErrMapFailed), opened)
	}
	err = l.WaitOn(context.Background(), mempool.StreamQueue(ctx, stream))
	if err != nil {
		return err
	}
	done, err := stream.Query()
	if err != nil {
		return err
	}
	fmt.Printf("done %t, event opened %t\n", done, opened == nil)
	b := make([]byte, mib)
	if err := l.CopyTo(context.Background(), b, 0); err != nil {
		fmt.Printf("died %t\n", errors.Is(err, mempool.ErrProducerDied))
		return l.Release(false)
	}
	fmt.Printf("read %d %d\n", b[0], b[mib-1])
	return l.Release(false)
}

// works checks that CUDA still works in a context.
func works(ctx *cuda.Context) error {
	p, err := ctx.Malloc(mib)
	if err != nil {
		return err
	}
	return errors.Join(ctx.CopyHtoD(p, make([]byte, mib)), ctx.MFree(p))
}

// reader is a process that runs read.
type reader struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Reader
}

func startReader(t *testing.T, socket string, where *syscall.SysProcAttr) *reader {
	t.Helper()
	r := &reader{t: t, cmd: exec.Command("/proc/self/exe")}
	r.cmd.Env = append(os.Environ(), readerOf+"="+socket)
	if where != nil && where.Cloneflags != 0 {
		r.cmd.Env = append(r.cmd.Env, readerShm+"=1")
	}
	r.cmd.Stderr, r.cmd.SysProcAttr = os.Stderr, where
	out, err := r.cmd.StdoutPipe()
	require.NoError(t, err)
	r.out = bufio.NewReader(out)
	if err := r.cmd.Start(); errors.Is(err, syscall.EPERM) {
		t.Skip("not permitted here: ", err)
	} else {
		require.NoError(t, err)
	}
	t.Cleanup(func() { assert.NoError(t, r.cmd.Wait()) })
	return r
}

func (r *reader) line() string {
	r.t.Helper()
	line, err := r.out.ReadString('\n')
	if !errors.Is(err, io.EOF) {
		require.NoError(r.t, err)
	}
	return strings.TrimSpace(line)
}

// eventful is a client that publishes content with an event. Its stream waits until the test opens a gate.
type eventful struct {
	*bridge.Client
	pool   *bridge.Pool
	ctx    *cuda.Context
	stream *cuda.Stream
	queue  mempool.Queue
	event  *mempool.Event
	gate   []byte
	word   cuda.DevicePtr // address of the gate for the GPU
}

func producer(t *testing.T, s *rig.Service) *eventful {
	t.Helper()
	c, err := bridge.Dialer{Wait: true}.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	p := &eventful{Client: c}
	p.pool, err = c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	d, err := mempool.FindDevice("")
	require.NoError(t, err)
	p.ctx, err = d.Retain()
	require.NoError(t, err)
	p.stream, err = p.ctx.NewStream()
	require.NoError(t, err)
	p.queue = mempool.StreamQueue(p.ctx, p.stream)
	p.event, err = mempool.NewEvent(p.ctx)
	require.NoError(t, err)
	p.gate, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_SHARED)
	require.NoError(t, err)
	host, err := p.ctx.RegisterHost(p.gate, cuda.HostPortable|cuda.HostDeviceMap)
	require.NoError(t, err)
	p.word = host.DevicePtr()
	t.Cleanup(func() {
		p.open()
		assert.NoError(t, errors.Join(p.stream.Synchronize(), c.Close(), p.event.Close(), host.Close(), p.stream.Close(), p.ctx.Close(), unix.Munmap(p.gate)))
	})
	return p
}

func (p *eventful) open() { (*atomic.Uint64)(unsafe.Pointer(&p.gate[0])).Store(1) }

// publish publishes a buffer whose content the stream has not written yet.
func (p *eventful) publish(t *testing.T) *bridge.Lease {
	t.Helper()
	l, err := p.pool.TryAllocate(t.Context(), mempool.Tensor{DType: mempool.Uint8, Shape: []uint64{mib}})
	require.NoError(t, err)
	ptr, err := l.Pointer(context.Background())
	require.NoError(t, err)
	require.NoError(t, p.stream.WaitValue64GEQ(p.word, 1)) // only now, because mapping the memory may wait for the stream
	require.NoError(t, p.stream.Memset8(cuda.DevicePtr(ptr), 7, mib))
	require.NoError(t, p.event.Record(p.queue))
	require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: "frame", Replace: true, Keep: true,
		Completion: mempool.Completion{Event: p.event}}))
	return l
}

func TestAStreamOfAnotherProcessWaitsForAnEvent(t *testing.T) {
	for _, kind := range gpuKinds {
		if err := kind.Probe(""); err != nil {
			t.Skip(err)
		}
		t.Run(string(kind), func(t *testing.T) {
			s := rig.Serve(t, "--pool", "name=p,max=64MiB,kind="+string(kind))
			p := producer(t, s)
			l := p.publish(t)
			r := startReader(t, s.Socket, nil)
			assert.Equal(t, "done false, event opened true", r.line())
			p.open()
			assert.Equal(t, "read 7 7", r.line())
			require.NoError(t, l.Release(false))
		})
	}
}

func TestElsewhereAnEventIsRefusedAndItsFenceWorks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user, or with another /dev/shm")
	}
	if err := mempool.Device.Probe(""); err != nil {
		t.Skip(err)
	}
	for name, where := range map[string]*syscall.SysProcAttr{
		"another user":      {Credential: &syscall.Credential{Uid: nobody, Gid: nobody}},
		"another /dev/shm":  {Cloneflags: syscall.CLONE_NEWNS},
		"another IPC space": {Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "poolbridge-events-")
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
			require.NoError(t, os.Chmod(dir, 0o755))
			s := rig.ServeAt(t, filepath.Join(dir, "poolsvc.sock"), "--mode", "0666", "--pool", "name=p,max=64MiB,kind=device,uid=0,uid=65534")
			p := producer(t, s)
			l := p.publish(t)
			r := startReader(t, s.Socket, where)
			refused := r.line()
			assert.True(t, strings.HasPrefix(refused, "refused true true "), refused)
			for _, reason := range []string{"another user", "/dev/shm", "fence"} {
				assert.Contains(t, refused, reason)
			}
			assert.Equal(t, "done false, event opened false", r.line(), "the fence is enough")
			p.open()
			assert.Equal(t, "read 7 7", r.line())
			require.NoError(t, l.Release(false))
		})
	}
}

func TestAnEventThatItsProcessClosedCannotBeOpened(t *testing.T) {
	simulated(t) // the answer of a real driver was not measured
	s := rig.Serve(t, "--pool", "name=p,max=64MiB,kind=device")
	p := producer(t, s)
	p.open()
	l := p.publish(t)
	require.NoError(t, p.stream.Synchronize())
	require.NoError(t, p.event.Close())
	r := startReader(t, s.Socket, nil)
	assert.Contains(t, r.line(), "refused true true")
	assert.Contains(t, r.line(), ", event opened false")
	assert.Equal(t, "read 7 7", r.line())
	require.NoError(t, l.Release(false))
}

func TestWaitingForAnEventOnTheCPUHasALimit(t *testing.T) {
	if err := mempool.Device.Probe(""); err != nil {
		t.Skip(err)
	}
	p := producer(t, rig.Serve(t, "--pool", "name=p,max=64MiB,kind=device"))
	l := p.publish(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, l.WaitOn(ctx, mempool.CPU), context.DeadlineExceeded)
	assert.ErrorIs(t, p.event.Before(ctx, mempool.CPU), context.DeadlineExceeded)
	p.open()
	require.NoError(t, l.WaitOn(t.Context(), mempool.CPU))
	require.NoError(t, l.Release(false))
}
