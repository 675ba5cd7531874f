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
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// After freeDeaths quick deaths in a row the guard makes pauses, and after maxDeaths it gives up.
	freeDeaths = 3
	maxDeaths  = 20
	maxFDs     = 253 // descriptors in a message, as the kernel allows
	// fromGuard is the value of LISTEN_PID that the guard sets: it does not know the number of its child before the child runs.
	fromGuard = "guard"
)

// Guard holds descriptors for a service.
type Guard struct {
	Log *slog.Logger
	// Quick is the time in which a service that dies has served too little.
	Quick time.Duration
	// Command returns the command of the service. The guard adds files and variables of the environment.
	Command func() *exec.Cmd

	socket *os.File
	name   string
	mu     sync.Mutex
	held   map[string]*os.File
	ready  bool // a service has served
}

// Run runs the service until it ends by itself, or dies again and again. It returns how the last service ended.
func (g *Guard) Run() error {
	g.held = make(map[string]*os.File)
	if err := g.listen(); err != nil {
		return err
	}
	go g.receive()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer signal.Stop(signals)
	for deaths := 0; ; {
		began := time.Now()
		err := g.serve(signals)
		exit, exited := errors.AsType[*exec.ExitError](err)
		if !exited || !g.ready || exit.Exited() && exit.ExitCode() != 2 { // 2: a panic
			return err
		}
		if deaths++; time.Since(began) > g.Quick {
			deaths = 1
		}
		if deaths >= maxDeaths {
			return fmt.Errorf("the service died %d times in a row, the last time by %w: its memory is given up", deaths, exit)
		}
		pause := time.Duration(0)
		if deaths > freeDeaths {
			pause = min(20*time.Millisecond<<(deaths-freeDeaths), time.Second)
		}
		g.Log.Error("the service died, and another takes over", "death", exit.String(), "served", time.Since(began).Round(time.Millisecond), "pause", pause)
		time.Sleep(pause)
	}
}

// serve runs one service.
func (g *Guard) serve(signals <-chan os.Signal) error {
	cmd := g.Command()
	g.mu.Lock()
	var names []string
	for name, f := range g.held {
		if cmd.ExtraFiles = append(cmd.ExtraFiles, f); true {
			names = append(names, name)
		}
	}
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+g.name, "FDSTORE=guard", "LISTEN_PID="+fromGuard, fmt.Sprint("LISTEN_FDS=", len(names)),
		"LISTEN_FDNAMES="+strings.Join(names, ":"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: 0}
	err := cmd.Start()
	g.mu.Unlock()
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			return err
		case s := <-signals:
			_ = cmd.Process.Signal(s)
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
		files, uid := parts(control[:size])
		if uid != uint32(os.Getuid()) {
			closeAll(files)
			continue
		}
		g.handle(string(data[:n]), files)
	}
}

// parts returns the descriptors of a message, and the user of its sender.
func parts(control []byte) (files []*os.File, uid uint32) {
	uid = ^uint32(0)
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "held"))
			}
		}
		if from, err := unix.ParseUnixCredentials(&m); err == nil {
			uid = from.Uid
		}
	}
	return files, uid
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // it was only held
	}
}

// handle handles a message.
func (g *Guard) handle(text string, files []*os.File) {
	lines := strings.Split(text, "\n")
	name := ""
	for _, line := range lines {
		if after, ok := strings.CutPrefix(line, "FDNAME="); ok {
			name = after
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case slices.Contains(lines, "READY=1"):
		g.ready = true
	case slices.Contains(lines, "FDSTORE=1") && len(files) == 1:
		closeAll([]*os.File{g.held[name]})
		g.held[name], files = files[0], nil
	case slices.Contains(lines, "FDSTOREREMOVE=1"):
		closeAll([]*os.File{g.held[name]})
		delete(g.held, name)
	}
	closeAll(files) // that of BARRIER=1, too: its sender notices
}
