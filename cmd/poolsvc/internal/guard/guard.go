// Package guard starts the service as its child, holds descriptors for it, and starts it again when it dies. Guard and service speak the
// protocol of systemd's descriptor store, so that systemd can be the guard: sd_notify(3), sd_pid_notify_with_fds(3), sd_listen_fds(3).
package guard

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

const (
	// After freeDeaths quick deaths in a row the guard makes pauses, and after maxDeaths it gives up.
	freeDeaths = 3
	maxDeaths  = 20
	maxFDs     = 253 // descriptors in a message, as the kernel allows
	// fromGuard is the value of LISTEN_PID that the guard sets: it does not know the number of its child before the child runs.
	fromGuard = "guard"
	// TakeoversVariable says how often a service of this guard has taken over from another one.
	TakeoversVariable = "POOLBRIDGE_TAKEOVERS"
)

// Guard holds descriptors for a service.
type Guard struct {
	Log *slog.Logger
	// Quick is the time in which a service that dies has served too little.
	Quick time.Duration
	// Command returns the command of the service. The guard adds files and variables of the environment.
	Command func() *exec.Cmd
	// Held are the descriptors for the first service, by their names.
	Held map[string]*os.File

	socket *os.File
	name   string
	mu     sync.Mutex
	child  int  // the process of the service
	ready  bool // this service has served
}

// Run runs the service until it ends by itself, or dies again and again. It returns how the last service ended.
//
// The guard starts a service only when it has reaped the one before: a service that was stopped (SIGSTOP) cannot run on beside its successor.
func (g *Guard) Run() error {
	if g.Held == nil {
		g.Held = make(map[string]*os.File)
	}
	if err := g.listen(); err != nil {
		return err
	}
	go g.receive()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer signal.Stop(signals)
	served := false // by any service
	for deaths, takeovers := 0, 1; ; takeovers++ {
		began := time.Now()
		ended, err := g.serve(signals, fmt.Sprint(takeovers-1))
		g.mu.Lock()
		ready := g.ready
		g.mu.Unlock()
		exit, exited := errors.AsType[*exec.ExitError](err)
		killed := exited && !exit.Exited()
		refuses := exited && !killed && exit.ExitCode() != 2 && (ready || !served) // 2: a panic
		switch served = served || ready; {
		case ended && killed: // the signal came before the service could handle it
			return nil
		case err == nil, ended, refuses, !served && !killed: // a service that was killed may have served, and not said so
			return err
		}
		if deaths++; time.Since(began) > g.Quick {
			deaths = 1
		}
		if deaths >= maxDeaths {
			return fmt.Errorf("the service died %d times in a row, the last time by: %w; the guard gives its memory up", deaths, err)
		}
		pause := time.Duration(0)
		if deaths > freeDeaths {
			pause = min(20*time.Millisecond<<(deaths-freeDeaths), time.Second)
		}
		g.Log.Error("the service died, and another takes over", "death", err, "served", time.Since(began).Round(time.Millisecond), "pause", pause)
		select {
		case s := <-signals:
			if s != unix.SIGHUP {
				return nil
			}
		case <-time.After(pause):
		}
	}
}

// serve runs one service. It reports whether the guard was told to end it.
func (g *Guard) serve(signals <-chan os.Signal, takeovers string) (told bool, err error) {
	cmd := g.Command()
	g.mu.Lock()
	var names []string
	for name, f := range g.Held {
		names, cmd.ExtraFiles = append(names, name), append(cmd.ExtraFiles, f)
	}
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+g.name, "FDSTORE=guard", TakeoversVariable+"="+takeovers, "LISTEN_PID="+fromGuard,
		fmt.Sprint("LISTEN_FDS=", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "WATCHDOG_PID=") }) // it names the guard
	if err = cmd.Start(); err == nil {
		g.child = cmd.Process.Pid
	}
	g.ready = false
	g.mu.Unlock()
	if err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			return told, err
		case s := <-signals:
			told = told || s != unix.SIGHUP
			_ = cmd.Process.Signal(s) // the service may have ended
		}
	}
}

// listen makes the socket of NOTIFY_SOCKET.
func (g *Guard) listen() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	g.socket = os.NewFile(uintptr(fd), "NOTIFY_SOCKET")
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@poolbridge-guard-" + fmt.Sprint(os.Getpid(), "-", time.Now().UnixNano())}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	g.name = name.(*unix.SockaddrUnix).Name
	return nil
}

// receive handles the messages of the service.
func (g *Guard) receive() {
	data, control := make([]byte, 8192), make([]byte, unix.CmsgSpace(maxFDs*4)+unix.CmsgSpace(unix.SizeofUcred))
	for {
		n, size, _, _, err := unix.Recvmsg(int(g.socket.Fd()), data, control, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			g.Log.Error("the guard hears nothing any more: what the service makes from now on ends with it", "error", err)
			return
		}
		files, pid := parts(control[:size])
		if others := g.handle(pid, string(data[:n]), files); len(others) > 0 {
			_, _ = daemon.SdNotify(false, strings.Join(others, "\n")) // without a supervisor, this does nothing
		}
	}
}

// parts returns the descriptors of a message, and the process of its sender.
func parts(control []byte) (files []*os.File, pid int) {
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "held"))
			}
		}
		if from, err := unix.ParseUnixCredentials(&m); err == nil {
			pid = int(from.Pid)
		}
	}
	return files, pid
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // it was only held
	}
}

// handle handles a message of the process `pid`. It returns what is for the guard's own supervisor.
func (g *Guard) handle(pid int, text string, files []*os.File) (others []string) {
	name := ""
	lines := strings.Split(text, "\n")
	for _, line := range lines {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "FDNAME":
			name = value
		case "FDSTORE", "FDSTOREREMOVE", "FDPOLL", "BARRIER", "":
		default:
			others = append(others, line)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	defer func() { closeAll(files) }() // that of BARRIER=1, too: its sender notices
	switch {
	case pid != g.child:
		return nil
	case slices.Contains(lines, "FDSTORE=1") && len(files) == 1:
		closeAll([]*os.File{g.Held[name]})
		g.Held[name], files = files[0], nil
	case slices.Contains(lines, "FDSTOREREMOVE=1"):
		closeAll([]*os.File{g.Held[name]})
		delete(g.Held, name)
	}
	g.ready = g.ready || slices.Contains(others, "READY=1")
	return others
}
