package bridge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// children has, for each role, the function that a child with this role runs. A child is a process that a test starts from the test binary.
// A child prints a line after each step of its work, and waits for a line from the test before the next step.
var children = map[string]func() error{
	"bequeath": func() error { return hold(bequeath) },
	"hold":     func() error { return hold(nil) },
	"server":   crowdedServer,
	"visit":    visit,
	"complain": complain,
	"crowd":    crowd,
	"starve":   starve,
	"read":     readOnce,
}

// child is a process that a test has started with exec.
type child struct {
	testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

func spawn(t testing.TB, role, path string, change func(*exec.Cmd)) *child {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childRole+"="+role, "POOLBRIDGE_SOCKET="+path, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	if change != nil {
		change(cmd)
	}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{t, cmd, stdin, bufio.NewScanner(stdout)}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return c
}

// says waits for the next line that the child prints.
func (c *child) says() string {
	c.Helper()
	require.True(c, c.lines.Scan(), "the child said no more")
	return c.lines.Text()
}

func (c *child) tell(line string) {
	c.Helper()
	_, err := fmt.Fprintln(c.stdin, line)
	require.NoError(c, err)
}

// stop stops the child (SIGSTOP), and returns when the child has stopped.
func (c *child) stop() {
	c.Helper()
	require.NoError(c, c.cmd.Process.Signal(syscall.SIGSTOP))
	require.NoError(c, unix.Waitid(unix.P_PID, c.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil))
	c.Cleanup(func() { _ = c.cmd.Process.Signal(syscall.SIGCONT) })
}

func (c *child) kill() {
	c.Helper()
	require.NoError(c, c.cmd.Process.Signal(syscall.SIGKILL))
	_ = c.cmd.Wait()
}

// hold allocates two buffers of the pool "p" and leases the buffer "torn" for writing. When hold reads a line, it closes its connection
// without the request `bye`, but its process continues to run. If `first` is not nil, hold calls it with the new client.
func hold(first func(*Client) error) error {
	ctx := context.Background()
	c, err := Dial(ctx, DefaultSocket())
	if err == nil && first != nil {
		err = first(c)
	}
	if err != nil {
		return err
	}
	p, err := c.TryOpenPool(ctx, "p")
	if err != nil {
		return err
	}
	for range 2 {
		l, err := p.TryAllocate(ctx, mempool.Bytes(4096))
		if err != nil {
			return err
		}
		if err := l.Fill(context.Background(), 0, 4096, 'x'); err != nil {
			return err
		}
	}
	if _, err := c.TryGet(ctx, "torn", LeaseOptions{Write: true}); err != nil {
		return err
	}
	fmt.Println("holding")
	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		return nil
	}
	if err := c.session.Conn().Close(); err != nil {
		return err
	}
	fmt.Println("closed")
	in.Scan()
	return nil
}

// bequeath starts a process that has the client's socket open until it has read descriptor 3 to its end.
func bequeath(c *Client) error {
	raw, err := c.session.Conn().SyscallConn()
	if err != nil {
		return err
	}
	heir := exec.Command("cat")
	heir.Stdin = os.NewFile(3, "life of the heir")
	if e := raw.Control(func(fd uintptr) {
		var copied int
		if copied, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			heir.ExtraFiles = []*os.File{os.NewFile(uintptr(copied), "socket")}
		}
	}); e != nil || err != nil {
		return errors.Join(e, err)
	}
	return errors.Join(heir.Start(), heir.ExtraFiles[0].Close())
}

// complain prints the error of Dial.
func complain() error {
	_, err := Dial(context.Background(), DefaultSocket())
	fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
	return nil
}

// crowd connects until the service refuses a session, and then waits with one session until the service refuses a request that waits. It prints
// how many sessions and requests were accepted. Then it prints when each of these requests has failed.
func crowd() error {
	ctx := context.Background()
	var clients []*Client
	for {
		c, err := Dial(ctx, DefaultSocket())
		if errors.Is(err, ErrLimit) {
			break
		} else if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	const most = 200 // requests that may wait
	failed := make(chan error, most)
	for range most {
		go func() {
			_, err := clients[0].Get(ctx, "absent", LeaseOptions{})
			failed <- err
		}()
	}
	if err := <-failed; !errors.Is(err, ErrLimit) {
		return err
	}
	fmt.Println(len(clients), most-1)
	for range most - 1 {
		if err := <-failed; errors.Is(err, ErrLimit) {
			return err
		}
	}
	fmt.Println("ended")
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}

// starve dials, allocates and opens a pool without a free descriptor. It prints the results, and that of Dial with free descriptors.
func starve() error {
	ctx := context.Background()
	old, clients := unix.Rlimit{}, make([]*Client, 2)
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old)
	for i := range clients {
		if err == nil {
			clients[i], err = Dial(ctx, DefaultSocket())
		}
	}
	if err != nil {
		return err
	}
	p, err := clients[0].TryOpenPool(ctx, "p")
	if err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: old.Max}); err != nil {
		return err
	}
	_, unconnected := Dial(ctx, DefaultSocket())
	_, unopened := clients[1].TryOpenPool(ctx, "p")
	_, allocated := p.TryAllocate(ctx, mempool.Bytes(100))
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		return err
	}
	c, connected := Dial(ctx, DefaultSocket())
	for _, err := range []error{unconnected, unopened, allocated, connected} {
		fmt.Println(err)
	}
	if connected != nil {
		return connected
	}
	return errors.Join(c.Close(), clients[0].Close())
}

// visit tries operations as another user, and prints the result of each operation.
func visit() error {
	ctx := context.Background()
	c, refused := Dial(ctx, DefaultSocket())
	fmt.Println("dial:", situationOf(refused))
	if c == nil {
		return nil
	}
	_, err := c.TryOpenPool(ctx, "private")
	fmt.Println("private:", situationOf(err))
	_, err = c.TryOpenPool(ctx, "shared")
	fmt.Println("shared:", situationOf(err))
	_, err = c.CreatePool(ctx, hostPool("mine", 4096))
	fmt.Println("create:", situationOf(err))
	fmt.Println("end:", situationOf(c.EndSession(ctx, 1)))
	page, err := c.TryEvents(ctx, 0)
	if err != nil {
		return err
	}
	fmt.Print("events:")
	for _, e := range page.Events {
		fmt.Print(" ", e.Kind, " ", e.Pool)
	}
	fmt.Println()
	return c.Close()
}

func situationOf(err error) string {
	if err == nil {
		return "ok"
	}
	if sentinel := convert.Sentinel(convert.Code(err)); sentinel != nil {
		return sentinel.Error()
	}
	return err.Error()
}

// readOnce prints the content that is published as "greeting".
func readOnce() error {
	ctx := context.Background()
	c, err := Dial(ctx, DefaultSocket())
	if err != nil {
		return err
	}
	l, err := c.Get(ctx, "greeting", LeaseOptions{})
	if err != nil {
		return err
	}
	text := make([]byte, l.Grant().Bytes)
	if err := l.CopyTo(context.Background(), text, 0); err != nil {
		return err
	}
	fmt.Println(string(text))
	return c.Close()
}

// crowdedServer runs a server, and opens files until this process has no free descriptor. When crowdedServer reads the line "one", it
// closes one of these files. When it reads the line "quit", it ends. When it reads any other line, it closes all of them.
func crowdedServer() error {
	svc := service.New(service.Config{})
	defer svc.Close()
	path := os.Getenv("POOLBRIDGE_SOCKET")
	srv, err := server.Listen(path, svc, server.Config{Log: slog.New(slog.NewTextHandler(os.Stdout, nil))})
	if err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 128}); err != nil {
		return err
	}
	_ = time.Now().Format(time.RFC3339) // now, and not in the first line of the log: it opens the file of the time zone
	var full []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, unix.EMFILE) {
			break
		} else if err != nil {
			return err
		}
		full = append(full, f)
	}
	fmt.Println("full")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() && !strings.HasPrefix(in.Text(), "quit") {
		room := len(full)
		if in.Text() == "one" {
			room = 1
		} else if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 128, Max: 128}); err != nil { // all the room at once
			return err
		}
		session.CloseFiles(full[:room])
		full = full[room:]
		fmt.Println("has made room")
	}
	return srv.Close()
}
