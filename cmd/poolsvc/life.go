package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/server"
)

// life has the flags that a program gives to a service that the program starts for its own use. The flags say how the
// program learns that the service is ready, and when the service ends.
type life struct {
	ready, end int // descriptors; a negative number: no descriptor
	unused     time.Duration
	private    bool
	quick      time.Duration // see guard.Guard
	guarded    bool          // another process holds what the service needs, and starts it again
	logBytes   byteSize      // 0: the log has no limit

	log       *boundedLog // nil: standard error has no limit
	unbounded error       // why standard error has no limit although the user asked for one
}

// socketError says that the service cannot listen on its socket.
type socketError struct{ err error }

func (e *socketError) Error() string { return e.err.Error() }
func (e *socketError) Unwrap() error { return e.err }

func (l *life) flags(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&l.ready, "ready-fd", -1, "descriptor to which the service writes the socket's path as a line once clients can connect; it then closes it")
	f.IntVar(&l.end, "end-fd", -1, "end when this descriptor becomes readable: a pipe whose other end is closed, or a pidfd of a program that ends")
	f.DurationVar(&l.unused, "end-unused", 0, "end when no client was connected for so long, also after the start; 0: do not")
	f.Var(&l.logBytes, "log-bytes", "limit the file of standard error to so many bytes: its older half is dropped; 0: no limit")
	c.PreRunE = l.bound
	f.BoolVar(&l.guarded, "guard", true, "stay as a guard that runs the service as its child, and starts it again when it dies: clients keep their sessions, and all memory but that of kind legacy; not with --private, --ready-fd and --end-fd, nor if systemd keeps descriptors for the service")
	f.DurationVar(&l.quick, "guard-quick", time.Second, "count a death of the service as quick when it has served for less; after 20 of them in a row the guard gives up")
	f.BoolVar(&l.private, "private", false, "listen in a new folder below $TMPDIR or /tmp, which is removed at the end, instead of at --socket")
}

// check checks that the descriptors are open, and makes them close on exec.
func (l *life) check(c *cobra.Command) error {
	for flag, fd := range map[string]int{"ready-fd": l.ready, "end-fd": l.end} {
		if !c.Flags().Changed(flag) {
			continue
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return misused(c, "--%s %d is no open descriptor: %v", flag, fd, err)
		}
	}
	if l.private || l.ready >= 0 || l.end >= 0 {
		if l.guarded && c.Flags().Changed("guard") {
			return misused(c, "--guard excludes --private, --ready-fd and --end-fd: a service that ends with the program that started it needs no guard")
		}
		l.guarded = false
	}
	if l.private && c.Flags().Changed("socket") {
		return misused(c, "--private and --socket exclude each other: expected one of them")
	}
	return nil
}

// live writes to --ready-fd that the service is ready, and calls the function `end` when the service must end.
func (l *life) live(end func(), srv *server.Server, socket string, log *slog.Logger) {
	if l.ready >= 0 {
		file := os.NewFile(uintptr(l.ready), "ready-fd")
		_, err := fmt.Fprintln(file, socket)
		if cerr := file.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			log.Warn("the service could not write to --ready-fd that it is ready", "error", err)
		}
	}
	go func() {
		<-srv.Unused()
		log.Info("no client is connected any more")
		end()
	}()
	if l.end >= 0 {
		go func() {
			if err := awaitReadable(l.end); err != nil {
				log.Error("the service cannot wait for --end-fd, and ends now", "error", err)
			} else {
				log.Info("the program that started the service has ended, or asks it to end")
			}
			end()
		}()
	}
}

func awaitReadable(fd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n > 0 {
			return os.NewSyscallError("poll", err)
		}
	}
}

// privateSocket makes a folder for a socket, and returns the path of the socket in this folder.
func privateSocket() (string, error) {
	const name = "poolsvc.sock"
	base := os.TempDir()
	if len(filepath.Join(base, "poolbridge-0123456789", name+".lock")) >= len(unix.RawSockaddrUnix{}.Path) {
		base = "/tmp" // otherwise the path would be too long for a socket
	}
	dir, err := os.MkdirTemp(base, "poolbridge-")
	return filepath.Join(dir, name), err
}
