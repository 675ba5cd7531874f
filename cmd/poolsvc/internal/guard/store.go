package guard

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/internal/failpoint"
)

// Store is the descriptor store of the guard, or of systemd.
type Store struct {
	socket int
	mu     sync.Mutex
	Guard  *os.Process         // nil: systemd is the guard
	held   map[string]*os.File // copies of what the guard holds, for another guard; an entry is nil if there was no room
}

const (
	// answerTime is how long the store may take to take a descriptor, and another program to check books, and then to serve.
	answerTime = 5 * time.Second
	accepted   = "accepted"
	noFile     = ^uintptr(0)
)

// Held returns the store of this process, and the descriptors that it has from the processes before; nil: there is no store.
func Held() (*Store, map[string]*os.File, error) {
	if os.Getenv("FDSTORE") == "" || os.Getenv("NOTIFY_SOCKET") == "" {
		return nil, nil, nil
	}
	held, from := handed()
	socket, err := dial(os.Getenv("NOTIFY_SOCKET"))
	if from != nil && os.Getppid() != from.Pid && lives(from) { // a parent that dies gives its children up first
		return nil, nil, fmt.Errorf("process %d is the guard, but not the parent: a script that it runs must end with `exec poolsvc`", from.Pid)
	}
	if from != nil && socket >= 0 {
		err = nil // the guard has died, and another comes
	}
	s := &Store{socket: socket, Guard: from, held: make(map[string]*os.File)}
	for name, f := range held {
		s.copy(name, f)
	}
	return s, held, err
}

// handed returns the descriptors that this process was given, by their names, and the process that gave them; nil: it is systemd.
func handed() (held map[string]*os.File, from *os.Process) {
	if who, ours := strings.CutPrefix(os.Getenv("LISTEN_PID"), fromUs); ours {
		pid, _ := strconv.Atoi(who)
		from, _ = os.FindProcess(pid)                          // it does not fail, also if the process has died
		_ = os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid())) // as systemd says, which knows the process before the process runs
	}
	held = make(map[string]*os.File)
	for _, f := range activation.Files(true) {
		held[f.Name()] = f
	}
	_ = os.Unsetenv("FDSTORE")
	return held, from
}

// launch starts a program, or this one again, with the arguments of this one, and with descriptors and variables.
func launch(program string, held map[string]*os.File, sys *syscall.SysProcAttr, env ...string) (*os.Process, error) {
	names, files := []string{}, []uintptr{0, 1, 2}
	for name, f := range held {
		names, files = append(names, name), append(files, number(f))
	}
	if slices.Contains(files, noFile) {
		return nil, fmt.Errorf("this process had no room for copies of its descriptors (LimitNOFILE, ulimit -n): %w", unix.EMFILE)
	}
	env = append(env, fmt.Sprint("LISTEN_PID=", fromUs, os.Getpid()), fmt.Sprint("LISTEN_FDS=", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	env = append(env, slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "NOTIFY_SOCKET=") || strings.HasPrefix(v, "WATCHDOG_PID=") // these are of this process
	})...)
	pid, err := syscall.ForkExec(cmp.Or(program, "/proc/self/exe"), os.Args, &syscall.ProcAttr{Env: env, Files: files, Sys: sys})
	if err != nil {
		return nil, os.NewSyscallError("fork and exec", err)
	}
	return os.FindProcess(pid)
}

var errNoChild = errors.New("it was killed, or has ended without a word")

// await waits for the end of a process: a child, or the parent of this process, of which it cannot say how it ended.
func await(process *os.Process) error {
	state, err := process.Wait()
	switch {
	case err != nil:
		for os.Getppid() == process.Pid {
			if process.WithHandle(func(fd uintptr) { _, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1) }) != nil {
				time.Sleep(100 * time.Millisecond) // this kernel has no handles of processes
			}
		}
		return errNoChild
	case !state.Success():
		return &exec.ExitError{ProcessState: state}
	}
	return nil
}

// lives reports whether a process has not ended within a second.
func lives(process *os.Process) bool {
	n := 0
	err := process.WithHandle(func(fd uintptr) { n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000) })
	return err == nil && n == 0
}

// NewGuard waits for the end of the guard, which is not systemd, and starts another.
func (s *Store) NewGuard() error {
	_ = await(s.Guard)                                        // how it ended does not matter
	time.Sleep(100 * time.Millisecond)                        // a guard that dies at once again and again does little harm
	_ = unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC) // if the driver has opened some otherwise
	failpoint.At("newguard/begun")
	var guard *os.Process
	var given map[string]*os.File
	name, err := ask(answerTime, func(w *os.File) (err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		given = maps.Clone(s.held)
		held := maps.Clone(given)
		held[answerName] = w
		guard, err = launch("", held, &syscall.SysProcAttr{Setsid: true})
		failpoint.At("newguard/launched")
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && name == "" {
		err = errors.New("it ended before it could answer")
	}
	if err == nil {
		err = os.NewSyscallError("connect to a guard that has begun", unix.Connect(s.socket, &unix.SockaddrUnix{Name: name}))
	}
	failpoint.At("newguard/connected")
	for name, f := range s.held { // what came meanwhile
		if err == nil && given[name] != f {
			err = send(s.socket, keepText(name), f)
		}
	}
	for name := range given {
		if err == nil && s.held[name] == nil {
			err = send(s.socket, dropText(name), nil)
		}
	}
	if err != nil && guard != nil {
		_ = guard.Kill() // it may have died
		go func() { _ = await(guard) }()
	}
	failpoint.At("newguard/done")
	s.Guard = cmp.Or(guard, s.Guard)
	return errors.Join(err, os.Setenv("NOTIFY_SOCKET", name))
}

// dial returns a socket that is connected to that of a guard, or of systemd.
func dial(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
	}
	return fd, os.NewSyscallError("connect to NOTIFY_SOCKET", err)
}

// Upgrade lets the guard `pid` kill its service, and run another program as the next. If that does not serve, the guard
// runs the program before again, and Upgrade returns an error.
func Upgrade(pid int, program string) error {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return err
	}
	begins := fmt.Sprint(addressBegins, pid, "-")
	_, name, _ := strings.Cut(string(text), begins)
	name, _, _ = strings.Cut(name, "\n")
	socket, err := dial(begins + name)
	defer unix.Close(socket)
	answer := ""
	if err == nil {
		answer, err = ask(time.Minute, func(w *os.File) error { return send(socket, "UPGRADE="+program, w) })
	}
	if err == nil && answer != accepted {
		err = errors.New(cmp.Or(answer, "the guard gave no answer: only the service's user, in its container, may ask; or it has ended"))
	}
	return err
}

// mayUpgrade reports whether a process is of the guard's user and container: those that share only the network see the guard's socket, too.
func mayUpgrade(from unix.Ucred) bool {
	its, err := os.Stat(fmt.Sprintf("/proc/%d/ns/mnt", from.Pid))
	own, failed := os.Stat("/proc/self/ns/mnt")
	return err == nil && failed == nil && int(from.Uid) == os.Getuid() && os.SameFile(its, own)
}

// Keep gives the store a descriptor. It returns when systemd has handled it. It does not wait for our guard, which hears all that its service has
// sent before it starts the next one; if the guard has died, another comes, and gets the copy.
func (s *Store) Keep(name string, f *os.File) error {
	s.mu.Lock()
	s.copy(name, f)
	ours := s.Guard != nil
	s.mu.Unlock()
	err := send(s.socket, keepText(name), f)
	failpoint.At("store/sent")
	if err == nil && !ours {
		err = settle(s.socket)
	}
	if ours && (errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOTCONN)) {
		err = nil
	}
	return err
}

// copy keeps a copy of a descriptor for another guard.
func (s *Store) copy(name string, f *os.File) {
	if s.Guard != nil {
		fd, _ := unix.FcntlInt(number(f), unix.F_DUPFD_CLOEXEC, 0) // NewFile makes nil of -1
		closeAll([]*os.File{s.held[name]})
		s.held[name] = os.NewFile(uintptr(fd), name)
	}
}

// Drop closes a descriptor of the store.
func (s *Store) Drop(name string) {
	s.mu.Lock()
	closeAll([]*os.File{s.held[name]})
	delete(s.held, name)
	s.mu.Unlock()
	_ = send(s.socket, dropText(name), nil) // a store that is gone has nothing
}

func keepText(name string) string { return "FDSTORE=1\nFDPOLL=0\nFDNAME=" + name }

func dropText(name string) string { return "FDSTOREREMOVE=1\nFDNAME=" + name }

// settle returns when the guard, or systemd, has handled all messages, or has died.
func settle(socket int) error {
	_, err := ask(answerTime, func(w *os.File) error { return send(socket, "BARRIER=1", w) })
	return err
}

// ask returns what others write to a pipe that they get from `give`.
func ask(limit time.Duration, give func(w *os.File) error) (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	err = give(w)
	if err = errors.Join(err, w.Close(), r.SetReadDeadline(time.Now().Add(limit))); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(r)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("the guard of the service does not answer within %v", limit)
	}
	return string(answer), err
}

// number returns the number of a file; noFile: it is nil. Other than f.Fd, it does not make the file block.
func number(f *os.File) uintptr {
	n := noFile
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n = fd }) // nobody has closed it
	}
	return n
}

func send(socket int, text string, f *os.File) error {
	var rights []byte
	if f != nil {
		rights = unix.UnixRights(int(number(f)))
	}
	return os.NewSyscallError("send", unix.Sendmsg(socket, []byte(text), rights, nil, 0)) // it waits for a guard that is stopped, if its queue is full
}
