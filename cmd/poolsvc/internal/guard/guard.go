// Package guard starts the service as its child, holds descriptors for it, and starts it again when it dies. Guard and service speak the
// protocol of systemd's descriptor store, so that systemd can be the guard: sd_notify(3), sd_pid_notify_with_fds(3), sd_listen_fds(3).
package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/internal/failpoint"
	"github.com/poolbridge/poolbridge/mempool/service"
)

const (
	// After freeDeaths quick deaths in a row the guard makes pauses, and after maxDeaths it gives up.
	freeDeaths = 3
	maxDeaths  = 20
	maxFDs     = 253 // descriptors in a message, as the kernel allows
	// A process of poolsvc that gives descriptors sets LISTEN_PID to fromUs and its own id. Systemd sets it to the id of the process that gets them.
	fromUs        = "from-"
	addressBegins = "@poolbridge-guard-" // of the guard's socket; its process follows
	answerName    = "answer"             // of the pipe to which a new guard writes its address
	// TakeoversVariable says how often a service of this guard has taken over from another one.
	TakeoversVariable = "POOLBRIDGE_TAKEOVERS"
)

// Guard runs a service, starts the next one when it dies, and holds the descriptors that the next one takes over.
type Guard struct {
	Log *slog.Logger
	// Quick is how long a service must serve so that its death is not one more of several in a row.
	Quick time.Duration
	// Held are the descriptors for the first service, by their names.
	Held map[string]*os.File
	// Settings are the flags of the service that `poolsvc config show` takes, too: another program shows by it that it accepts the configuration.
	Settings []string

	socket  *os.File
	name    string
	given   *os.Process // a service whose guard died
	mu      sync.Mutex
	program *os.File    // of the next service; nil: that of the guard. It is open, because another program may have its path later
	before  *os.File    // the program before the upgrade; it runs again if Held still has the books `read` when the next one fails
	asked   *os.File    // the pipe of who asked for the upgrade, and waits
	read    *os.File    // the books when the upgrade began
	child   *os.Process // the service; nil: there was none
	ready   bool        // this service has served
	hup     bool        // SIGHUP came before: it would end a service that begins
}

// Take takes over what a service whose guard died has given to this process.
func (g *Guard) Take() {
	if strings.HasPrefix(os.Getenv("LISTEN_PID"), fromUs) {
		g.Held, g.given = handed()
	}
}

// Run starts the service, and starts another one when it dies. Run returns how the last service ended: when a service ends by itself, when one
// exits before any has served, or after maxDeaths quick deaths in a row. Run also returns when a signal, other than SIGHUP, tells the guard
// to end.
//
// The guard starts a service only when the process of the one before has ended: a service that was stopped (SIGSTOP) cannot run on beside its
// successor.
func (g *Guard) Run(ctx context.Context) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP) // before anybody learns that this process is the guard
	defer signal.Stop(signals)
	if ctx.Err() != nil { // a signal came before
		return nil
	}
	if err := g.listen(); err != nil {
		return err
	}
	failpoint.At("guard/listening")
	_, _ = g.Held[answerName].WriteString(g.name) // of a guard that was given descriptors; the service may have died
	closeAll([]*os.File{g.Held[answerName]})
	delete(g.Held, answerName)
	g.child, g.ready = g.given, g.given != nil
	failpoint.At("guard/answered")
	go g.receive()
	served := g.ready                                          // by any service
	takeovers, _ := strconv.Atoi(os.Getenv(TakeoversVariable)) // of services that had another guard
	for deaths := 0; ; takeovers++ {
		_ = os.Setenv(TakeoversVariable, strconv.Itoa(takeovers))
		began := time.Now()
		ended, err := g.serve(signals)
		g.mu.Lock()
		ready, upgraded := g.ready, g.ready && g.asked != nil
		if !ready {
			if g.asked != nil {
				err = cmp.Or(err, errNotServing)
			}
			g.answer(fmt.Sprintf("the other program ended before it served: %v", err))
		}
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
		if deaths++; upgraded || time.Since(began) > g.Quick {
			deaths = 1
		}
		if deaths >= maxDeaths {
			return fmt.Errorf("the service died %d times in a row, the last time by: %w; the guard gives its memory up", deaths, err)
		}
		pause := time.Duration(0)
		if deaths > freeDeaths {
			pause = min(20*time.Millisecond<<(deaths-freeDeaths), time.Second)
		}
		if upgraded {
			g.Log.Info("the guard has ended the service for an upgrade, and the other program takes over", "served", time.Since(began).Round(time.Millisecond))
		} else {
			g.Log.Error("the service died, and another takes over", "death", err, "served", time.Since(began).Round(time.Millisecond), "pause", pause)
		}
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
func (g *Guard) serve(signals <-chan os.Signal) (told bool, err error) {
	g.mu.Lock()
	process := g.given
	if g.given = nil; process == nil {
		process, err = launch(pathOf(g.program), g.Held, nil, "NOTIFY_SOCKET="+g.name, "FDSTORE=guard")
		failpoint.At("guard/launched")
		g.child, g.ready = cmp.Or(process, g.child), false
	}
	g.mu.Unlock()
	if err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() { ended <- g.wait(process) }()
	for {
		select {
		case err := <-ended:
			return told, err
		case s := <-signals:
			told = told || s != unix.SIGHUP
			if s != unix.SIGHUP || !g.defers() {
				_ = process.Signal(s) // the service may have ended
			}
		}
	}
}

// defers notes that SIGHUP came, if the service does not serve yet: it gets SIGHUP when it does.
func (g *Guard) defers() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hup = g.hup || !g.ready
	return g.hup
}

// wait waits for the end of a service, and returns how it ended.
func (g *Guard) wait(process *os.Process) error {
	err := await(process)
	failpoint.At("guard/reaped")
	if socket, failed := dial(g.name); failed == nil {
		_ = settle(socket) // hears the last words of the service
		_ = unix.Close(socket)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if errors.Is(err, errNoChild) && g.Held[service.BooksName] == nil {
		return nil // it has ended by itself
	}
	return err
}

// upgrade kills the service, and makes another program the next one. It writes to `asked` whether that serves.
func (g *Guard) upgrade(path string, asked, books *os.File) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	program, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	said := ""
	run := func(args ...string) {
		check := exec.CommandContext(ctx, pathOf(program), args...)
		check.ExtraFiles, check.WaitDelay, check.SysProcAttr = []*os.File{books}, time.Second, &syscall.SysProcAttr{Setpgid: true}
		check.Cancel = func() error { return unix.Kill(-check.Process.Pid, unix.SIGKILL) } // with its children
		var out []byte
		out, err = check.CombinedOutput()
		said = strings.TrimSpace(string(out))
	}
	if err == nil {
		run("books", "check", "/proc/self/fd/3")
	}
	if err == nil && !strings.HasPrefix(said, "ok: ") {
		err = errNoPoolsvc
	}
	if err == nil {
		run(append([]string{"config", "show"}, g.Settings...)...)
	}
	if err != nil {
		why := strings.TrimSuffix(fmt.Sprint(err, ": ", said), ": ")
		_, _ = fmt.Fprintf(asked, "the service goes on: %s cannot take over: %s", path, why)
		closeAll([]*os.File{asked, program})
		return
	}
	failpoint.At("upgrade/checked")
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer("another upgrade came")
	g.asked, g.read, g.before, g.program = asked, g.Held[service.BooksName], g.program, program
	_ = g.child.Kill() // it may have died
	failpoint.At("upgrade/killed")
	time.AfterFunc(answerTime, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.asked == asked && !g.ready { // clients wait for 10 s
			g.answer(fmt.Sprintf("the other program did not serve within %v", answerTime))
			_ = g.child.Kill()
		}
	})
}

var (
	errNoPoolsvc  = errors.New("it is no poolsvc that checks books")
	errNotServing = errors.New("it did not say that it serves")
)

// pathOf returns a path by which an open program can be run; empty: there is none.
func pathOf(program *os.File) string {
	if program == nil {
		return ""
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), number(program))
}

// answer tells the process that waits for an upgrade how it ended. After a failure, the guard runs the program before again, unless the new
// program has written books. The caller holds g.mu.
func (g *Guard) answer(text string) {
	if g.asked == nil {
		return
	}
	_, _ = g.asked.WriteString(text) // the other end may be gone
	closeAll([]*os.File{g.asked})
	if g.asked = nil; text != accepted && g.Held[service.BooksName] == g.read {
		g.before, g.program = g.program, g.before
	}
	closeAll([]*os.File{g.before})
	g.before = nil
}

// listen makes the socket of NOTIFY_SOCKET.
func (g *Guard) listen() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	g.socket = os.NewFile(uintptr(fd), "NOTIFY_SOCKET")
	g.name = fmt.Sprint(addressBegins, os.Getpid(), "-", time.Now().UnixNano())
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: g.name}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1))
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
		files, from := parts(control[:size])
		if others := g.handle(from, string(data[:n]), files); len(others) > 0 {
			_, _ = daemon.SdNotify(false, strings.Join(others, "\n")) // without a supervisor, this does nothing
		}
	}
}

// parts returns the descriptors of a message, and its sender.
func parts(control []byte) (files []*os.File, from unix.Ucred) {
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "held"))
			}
		}
		if sender, err := unix.ParseUnixCredentials(&m); err == nil {
			from = *sender
		}
	}
	return files, from
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // it was only held
	}
}

// handle handles a message. It returns what is for the guard's own supervisor.
func (g *Guard) handle(from unix.Ucred, text string, files []*os.File) (others []string) {
	name, program := "", ""
	lines := strings.Split(text, "\n")
	for _, line := range lines {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "FDNAME":
			name = value
		case "UPGRADE":
			program = value
		case "FDSTORE", "FDSTOREREMOVE", "FDPOLL", "BARRIER", "":
		default:
			others = append(others, line)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	defer func() { closeAll(files) }() // that of BARRIER=1, too: its sender notices
	switch {
	case program != "" && g.child != nil && len(files) == 1 && mayUpgrade(from):
		go g.upgrade(program, files[0], g.Held[service.BooksName])
		files = nil
		return nil
	case program != "" || g.child == nil || int(from.Pid) != g.child.Pid:
		go closeAll(files) // of strangers: it may block
		files = nil
		return nil
	case slices.Contains(lines, "FDSTORE=1") && len(files) == 1:
		closeAll([]*os.File{g.Held[name]})
		g.Held[name], files = files[0], nil
		failpoint.At("guard/stored")
	case slices.Contains(lines, "FDSTOREREMOVE=1"):
		closeAll([]*os.File{g.Held[name]})
		delete(g.Held, name)
		failpoint.At("guard/dropped")
	}
	if slices.Contains(others, "READY=1") {
		g.ready = true
		if g.hup {
			g.hup = false
			_ = g.child.Signal(unix.SIGHUP)
		}
		failpoint.At("guard/ready")
		g.answer(accepted)
	}
	return others
}
