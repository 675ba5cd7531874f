package main

import (
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/guard"
	"github.com/poolbridge/poolbridge/mempool/service"
	"github.com/poolbridge/poolbridge/mempool/service/books"
)

// socketName is the name of the listening socket in the descriptor store.
const socketName = "socket"

// beGuard runs the service as a child of this process.
func beGuard(c *cobra.Command, p *plan, quick time.Duration) error {
	r := &running{plan: p}
	g := guard.Guard{Quick: quick, Log: r.newLog(c.ErrOrStderr()), Command: func() *exec.Cmd {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Args[0] = os.Args[0]
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return cmd
	}}
	defer r.lines.close()
	return g.Run()
}

// watchGuard notes when the guard has died.
func (r *running) watchGuard() {
	fd, err := unix.PidfdOpen(os.Getppid(), 0)
	if err == nil {
		err = awaitReadable(fd)
	}
	if err == nil {
		r.svc.Impaired("the guard of the service is gone: if the service dies now, all sessions and their memory end with it; restart the service when that suits")
	}
}

// takeover is what a service takes over from the processes before it.
type takeover struct {
	store *guard.Store // nil: the service ends with this process
	held  map[string]*os.File
}

// begin makes the service, or takes over that of a process that died.
func (r *running) begin(config service.Config) (*takeover, error) {
	store, held, err := guard.Held()
	if err != nil {
		return nil, fmt.Errorf("the guard of the service cannot be reached: %w", err)
	}
	t := &takeover{store, held}
	if store != nil {
		config.Store = store
	}
	if f := held[service.BooksName]; f != nil {
		began := time.Now()
		if r.svc, err = adopt(config, f, held); err == nil {
			r.adopted = true
			counts := r.svc.Stats()
			r.log.Info("took over from a service that died", "took", time.Since(began).Round(time.Microsecond), "sessions", counts.Sessions, "leases", counts.Leases,
				"buffers", counts.Buffers, "names", counts.Names, "pools", len(counts.Pools))
			go r.watchGuard()
			return t, nil
		}
		r.log.Error("the service before this one cannot be taken over: its sessions end, and its memory is given back", "error", err)
		for name, f := range held {
			if name != socketName {
				_ = f.Close() // it was only held
				store.Drop(name)
			}
		}
	}
	r.svc = service.New(config)
	if store != nil {
		go r.watchGuard()
	}
	return t, nil
}

func adopt(config service.Config, f *os.File, held map[string]*os.File) (*service.Service, error) {
	content, err := books.Read(f)
	if err != nil {
		return nil, err
	}
	return service.Adopt(config, content, held)
}

// listen serves clients on the socket of the service before this one, or on a new one.
func (t *takeover) listen(anew func() (*server.Server, error), svc *service.Service, config server.Config) (*server.Server, error) {
	if f := t.held[socketName]; f != nil {
		return server.ListenFile(f, svc, config)
	}
	srv, err := anew()
	if err != nil || t.store == nil {
		return srv, err
	}
	return srv, t.store.Keep(socketName, srv.Socket())
}
