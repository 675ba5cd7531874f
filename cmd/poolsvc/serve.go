package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/guard"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/upkeep"
	"github.com/poolbridge/poolbridge/internal/failpoint"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// heapGrowth is the value of GOGC: it says by how many percent the heap may grow between two garbage collections. It is lower than the
// default of Go, so the collector runs more often and the heap stays smaller. The collector has little to do, because a request leaves
// little garbage. A small heap is important, because most of the service's memory is heap if there are many buffers.
const heapGrowth = 50

// ballastBytes is the size of memory that counts as heap. So the collector of a service with few buffers runs after 4 MiB more of garbage,
// about 4,000 requests: a collection slows down the requests of half a millisecond. Nobody touches this memory, so the system gives it no pages.
const ballastBytes = 8 << 20

func newServe() *cobra.Command {
	var l life
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the service until it is interrupted",
		Long: `Run the service until SIGINT or SIGTERM.

The exit status is 3 if another service listens at the socket already, and 4 if it cannot listen there.

--pool makes a pool at the start, so that clients only have to open it:

  poolsvc serve --pool name=frames,kind=device,device=0,max=8GiB
  poolsvc serve --pool name=frames,kind=host,max=256MiB,session=64MiB,user=128MiB,uid=1000,uid=1001,gid=44

Sizes are in bytes, KiB, MiB, GiB or TiB. The default kind is host, the default device the first GPU. session and user limit the bytes
that one session and one user may have in the pool.

Users and groups on a pool's access list can use all of the pool's memory. The default is only the user that the service
runs as. Other users must also be able to open the socket: see --mode.

The service limits how much state clients can cause. --limit changes a limit, for example --limit sessions=100: "Limits" in
docs/protocol.md has all limits and their defaults.

A configuration file (--config, else $POOLBRIDGE_CONFIG) has the same settings as the flags; on SIGHUP the service reads it again: see
docs/deploying.md. An environment variable such as $POOLBRIDGE_LOG_LEVEL, for --log-level, overrides the file, and a flag overrides both.
poolsvc config check says what is wrong in a file, and poolsvc config show what a service would do.

The service supports systemd's socket activation, readiness notification and watchdog.

The process stays as a guard, which runs the service as its child: see docs/survival.md. SIGTERM to it ends both; SIGKILL does not end the service.
With --guard=false, or if a program starts its own service with one of the next flags, there is no guard.

Programs that start their own service use --ready-fd to hear that it listens, and --end-fd and --end-unused to make it end
by itself.`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := l.check(c); err != nil {
				return err
			}
			return serve(c, l)
		},
	}
	planFlags(c.Flags())
	l.flags(c)
	return c
}

// serve runs the service.
func serve(c *cobra.Command, l life) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
		defer runtime.KeepAlive(make([]byte, ballastBytes))
	}
	signal.Ignore(unix.SIGPIPE) // a write to a log without a reader fails, and the service goes on
	if l.guarded && os.Getenv("FDSTORE") == "" {
		return beGuard(c, l.quick)
	}
	store, held, err := guard.Held()
	if err != nil {
		return fmt.Errorf("the guard of the service cannot be reached: %w", err)
	}
	p, err := succeed(c.Flags(), held)
	if err != nil {
		return err
	}
	socket := p.socket
	if l.private {
		if socket, err = privateSocket(); err != nil {
			return &socketError{err}
		}
		defer os.RemoveAll(filepath.Dir(socket))
	}
	hups := make(chan os.Signal, 1)
	signal.Notify(hups, unix.SIGHUP)
	defer signal.Stop(hups)
	r := &running{flags: c.Flags(), plan: p, made: make(chan struct{}), store: store}
	if l.log != nil {
		l.log.format = p.log
	}
	log := r.newLog(c.ErrOrStderr())
	defer func() {
		if !r.lines.close() && err != nil { // then nobody reads what main would print about err either
			err = errors.Join(errReported, err)
		}
	}()
	r.systemd = newSystemd(log)
	defer r.systemd.relay.close()
	if l.unbounded != nil {
		log.Warn("the log cannot be bounded, and grows (--log-bytes)", "error", l.unbounded)
	}
	self := mempool.Self()
	r.creators.Store(&p.creators)
	took, err := r.begin(held, service.Config{Log: log, Limits: p.limits.Limits, MayCreate: func(peer mempool.Peer) bool {
		return peer.UID == self.UID || slices.Contains(*r.creators.Load(), peer.UID)
	}})
	if err != nil {
		return err
	}
	defer func() {
		if !r.adopted || r.server.Load() != nil { // otherwise the guard tries another service, which needs the books
			r.svc.Close()
		}
	}()
	close(r.made)
	made, err := r.createPools()
	if err != nil && !r.adopted {
		return err
	} else if err != nil {
		r.svc.Impaired(err.Error())
	}
	r.leave()
	failpoint.At("serve/pools")
	serving := server.Config{Mode: p.mode, MaxSessions: p.limits.sessions, MaxWaits: p.limits.waits, Unused: l.unused, Log: log}
	web, err := p.web.serve(r.svc, &serving, bounded(r.healthy), bounded(r.ready))
	if err != nil && r.adopted {
		r.svc.Impaired(fmt.Sprintf("no page and no metrics: %v", err))
	} else if err != nil {
		srv, used := took.listen(socket, p, l, r.svc, serving) // say first that another service runs
		if used != nil {
			return &socketError{used}
		}
		return errors.Join(err, srv.Close())
	}
	defer web.close(log)
	srv, err := took.listen(socket, p, l, r.svc, serving)
	if err != nil {
		return &socketError{err}
	}
	r.server.Store(srv)
	failpoint.At("serve/listening")
	for _, say := range made {
		say()
	}
	log.Info("serving", "socket", srv.Path(), "version", version, "epoch", r.svc.Epoch().String())
	if web.server != nil {
		log.Info("serving a page and metrics", "address", web.server.Addr())
	}
	ctx, end := context.WithCancel(c.Context())
	defer end()
	r.systemd.tell(daemon.SdNotifyReady, "STATUS=serving "+srv.Path())
	failpoint.At("serve/ready")
	l.live(end, srv, srv.Path(), log)
	if err := startWatchdog(ctx, log, r.systemd, bounded(r.answers)); err != nil {
		log.Warn("the service cannot notify systemd's watchdog", "error", err)
	}
	go r.reloadOn(ctx, hups)
	looks := time.NewTicker(upkeep.Rest)
	defer looks.Stop()
	upkeep.Run(ctx, r.svc, looks.C)
	log.Info("shutting down")
	r.systemd.tell(daemon.SdNotifyStopping)
	r.svc.Unkeep(socketName)
	r.svc.Unkeep(settingsName)
	failpoint.At("serve/ending")
	return srv.Close()
}

// limits are the limits of --limit: the limits of the service and the limits of its server.
type limits struct {
	service.Limits
	sessions, waits int
}

func limitNames() []string { return append([]string{"sessions", "waits"}, service.LimitNames()...) }

// set reads a limit of the form NAME=N.
func (most *limits) set(text string) (name string, err error) {
	name, value, _ := strings.Cut(text, "=")
	n, err := strconv.Atoi(value)
	switch {
	case !slices.Contains(limitNames(), name):
		return name, fmt.Errorf("there is no limit %q: expected one of %s", name, strings.Join(limitNames(), ", "))
	case err != nil || n < 1:
		return name, fmt.Errorf("the limit %s must be 1 or more, not %q", name, value)
	case name == "sessions":
		most.sessions = n
	case name == "waits":
		most.waits = n
	default:
		return name, most.Set(name, n)
	}
	return name, nil
}

// list returns the limits that the user has set.
func (most *limits) list() (said []string) {
	for _, one := range []struct {
		name string
		n    int
	}{{"sessions", most.sessions}, {"waits", most.waits}} {
		if one.n > 0 {
			said = append(said, fmt.Sprintf("%s=%d", one.name, one.n))
		}
	}
	return append(said, most.List()...)
}

// poolText is a pool as the user describes it on the command line or in the configuration file.
type poolText struct {
	said               mempool.PoolSpec
	max, session, user byteSize
}

// poolKeys are the keys of a pool.
var poolKeys = []string{"name", "kind", "device", "max", "session", "user", "uid", "gid"}

func (p *poolText) set(key, value string) (err error) {
	switch key {
	case "name":
		p.said.Name = value
	case "kind":
		p.said.Kind = mempool.Kind(value)
	case "device":
		p.said.Device = value
	case "max":
		err = p.max.Set(value)
	case "session":
		err = p.session.Set(value)
	case "user":
		err = p.user.Set(value)
	case "uid":
		p.said.Access.UIDs, err = appendID(p.said.Access.UIDs, value)
	case "gid":
		p.said.Access.GIDs, err = appendID(p.said.Access.GIDs, value)
	default:
		return fmt.Errorf("unknown key %q: expected one of %s", key, strings.Join(poolKeys, ", "))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (p *poolText) spec() (mempool.PoolSpec, error) {
	spec := p.said
	if spec.Kind == "" {
		spec.Kind = mempool.Host
	}
	spec.MaxBytes, spec.SessionBytes, spec.UserBytes = uint64(p.max), uint64(p.session), uint64(p.user)
	return spec, spec.Validate()
}

// poolExample is an example of a value of --pool.
const poolExample = "name=frames,kind=host,max=1GiB"

// parsePool reads a value of --pool.
func parsePool(text string) (mempool.PoolSpec, error) {
	var pool poolText
	said := make(map[string]bool)
	for field := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(field, "=")
		if err := pool.set(key, value); err != nil {
			return mempool.PoolSpec{}, fmt.Errorf("pool %q: %w, as in %s", text, err, poolExample)
		}
		said[key] = true
	}
	for _, key := range []string{"name", "max"} {
		if !said[key] {
			return mempool.PoolSpec{}, fmt.Errorf("pool %q: %s is missing: write, for example, %s", text, key, poolExample)
		}
	}
	spec, err := pool.spec()
	if err != nil {
		return spec, fmt.Errorf("pool %q: %w", text, err)
	}
	return spec, nil
}

func appendID(ids []uint32, text string) ([]uint32, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%q is no user or group id: expected a number", text)
	}
	return append(ids, uint32(id)), nil
}
