package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/config"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/guard"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// running is a running service, with the settings that can change while it runs.
type running struct {
	flags    *pflag.FlagSet
	plan     *plan // the current settings
	log      *slog.Logger
	level    slog.LevelVar
	lines    *relay  // writes the log
	systemd  systemd // hears what the service does
	creators atomic.Pointer[[]uint32]
	svc      *service.Service
	adopted  bool          // the service has taken over from another process
	store    *guard.Store  // nil: the service ends with this process
	settings *os.File      // the settings in the store; nil: it has none yet
	made     chan struct{} // closed when svc is set
	server   atomic.Pointer[server.Server]
}

// newLog makes the log, which a goroutine writes to w. So nobody waits for the reader of the log.
func (r *running) newLog(w io.Writer) *slog.Logger {
	r.level.Set(r.plan.log.level)
	format := r.plan.log
	r.lines = (&relay{to: w, most: maxWaiting, missing: func(n int) []byte {
		var text bytes.Buffer
		slog.New(format.handler(&text, slog.LevelWarn)).Warn("lines of the log were left out here, because it could not be written", "lines", n)
		return text.Bytes()
	}, impaired: func(err error) {
		<-r.made
		r.svc.Impaired(fmt.Sprintf("the log cannot be written: %v; the service goes on, and lines are missing in the log", err))
	}}).start()
	r.log = slog.New(format.handler(r.lines, &r.level))
	return r.log
}

// createPools makes the pools that the plan lists. It makes no pool that the service before has made: if the pool is gone, somebody has destroyed
// it. `said` logs what was made, when the service listens. A service that took over goes on without a pool that cannot be made: the plan does not
// list it any more, so that the next reload tries again.
func (r *running) createPools() (said []func(), err error) {
	return said, r.inSession(func(session *service.Session) error {
		var there []mempool.PoolSpec
		for _, spec := range r.plan.pools {
			if !r.adopted || !slices.Contains(r.plan.made, spec.Name) {
				say, err := r.createPool(session, spec)
				if err != nil {
					err = fmt.Errorf("%s: pool %q: %w", r.plan.from["pool "+spec.Name], spec.Name, err)
					if !r.adopted {
						return err
					}
					r.svc.Impaired(err.Error())
					continue
				}
				said = append(said, say)
			}
			there = append(there, spec)
		}
		r.plan.pools = there
		return nil
	})
}

// inSession calls do with a session of the service's own, and then ends the session: people see only sessions of programs.
func (r *running) inSession(do func(*service.Session) error) error {
	session, err := r.svc.OpenSession(mempool.Self(), "poolsvc serve", nil)
	if err != nil {
		return err
	}
	defer session.End(mempool.SessionLeft, "", nil)
	return do(session)
}

func (r *running) createPool(session *service.Session, spec mempool.PoolSpec) (say func(), err error) {
	if r.adopted { // it may be there; EnsurePool would start the driver, and clients wait
		if _, err := session.OpenPool(context.Background(), spec.Name, 0); !errors.Is(err, mempool.ErrNotFound) {
			return func() {}, err
		}
	}
	p, err := session.CreatePool(spec)
	if err != nil {
		return nil, err
	}
	info := p.Info()
	said := "made a pool"
	if r.adopted {
		said = "has a pool"
	}
	return func() {
		r.log.Info(said, "name", info.Name, "kind", info.Kind, "device", info.Device.UUID, "max_bytes", info.MaxBytes)
	}, nil
}

// healthy returns nil if the service answers. It blocks while the service blocks.
func (r *running) healthy() error {
	r.svc.Stats()
	return nil
}

var errNotListening = errors.New("the service does not listen yet")

// answers returns nil if the service answers clients.
func (r *running) answers() error {
	server := r.server.Load()
	if server == nil {
		return errNotListening
	}
	return errors.Join(r.healthy(), server.Check())
}

// ready returns nil if the service answers clients and new clients can connect.
func (r *running) ready() error {
	if err := r.answers(); err != nil {
		return err
	}
	return r.server.Load().Reachable()
}

// reloadOn reads the configuration again at each signal from hups, until ctx ends. It begins with that if the settings are those of the service
// before, because the file may have changed.
func (r *running) reloadOn(ctx context.Context, hups <-chan os.Signal) {
	if r.plan.made != nil && r.plan.file != "" {
		r.reload()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-hups:
		}
		var now unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
		r.systemd.tell(daemon.SdNotifyReloading, fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
		r.reload()
		r.systemd.tell(daemon.SdNotifyReady)
	}
}

// reload applies the changes of the configuration that a running service can apply, and logs the changes that it cannot apply.
func (r *running) reload() {
	if r.plan.file == "" {
		r.log.Info("SIGHUP changes nothing: the service was started without a configuration file (--config)")
		return
	}
	next, err := resolve(r.flags, nil)
	if err != nil {
		var problems config.Problems
		if !errors.As(err, &problems) {
			r.log.Error("the configuration was not reloaded", "error", err)
		}
		for _, p := range problems {
			r.log.Error("the configuration was not reloaded", "error", p)
		}
		r.svc.Impaired(fmt.Sprintf("the configuration was not reloaded, and the service goes on with the settings that it had: `poolsvc config check %s` "+
			"says what is wrong; mend it, and send SIGHUP", r.plan.file))
		return
	}
	was := r.plan
	if r.level.Level() != next.log.level {
		r.level.Set(next.log.level)
		r.log.Info("reloaded", "log.level", next.log.level)
	}
	if !slices.Equal(was.creators, next.creators) {
		r.creators.Store(&next.creators)
		r.log.Info("reloaded", "access.creators", next.creators)
	}
	if was.limits != next.limits {
		r.svc.SetLimits(next.limits.Limits)
		if err := r.server.Load().SetLimits(next.limits.sessions, next.limits.waits); err != nil {
			r.log.Error("the limits sessions and waits stay: this process may not open so many files (LimitNOFILE, ulimit -n)", "error", err)
			next.limits.sessions, next.limits.waits = was.limits.sessions, was.limits.waits
		}
		r.log.Info("reloaded", "limits", strings.Join(next.limits.list(), ","))
	}
	next.pools = r.reloadPools(was.pools, next.pools)
	for _, s := range settings() {
		if s.fixed && s.show(was) != s.show(next) {
			r.log.Warn("this setting changes only when the service starts again: a restart ends all sessions", "setting", s.key, "now", s.show(was), "configured", s.show(next))
		}
	}
	next.socket, next.mode, next.web, next.log.json = was.socket, was.mode, was.web, was.log.json
	r.plan = next
	r.leave()
	r.log.Info("the configuration was reloaded", "file", next.file)
}

// reloadPools makes the new pools of the configuration, and returns all pools that the service then has.
func (r *running) reloadPools(was, next []mempool.PoolSpec) (now []mempool.PoolSpec) {
	named := func(name string) func(mempool.PoolSpec) bool {
		return func(spec mempool.PoolSpec) bool { return spec.Name == name }
	}
	for _, spec := range was {
		now = append(now, spec)
		i := slices.IndexFunc(next, named(spec.Name))
		switch {
		case i < 0:
			r.log.Warn("a pool is not in the configuration any more, and stays: poolsvc pool destroy ends it", "name", spec.Name)
		case !reflect.DeepEqual(spec, next[i]):
			r.log.Warn("an existing pool cannot change: restart the service, or destroy it with poolsvc pool destroy and give the new one another name",
				"name", spec.Name, "now", formatPool(spec), "configured", formatPool(next[i]))
		}
	}
	for _, spec := range next {
		if slices.ContainsFunc(was, named(spec.Name)) {
			continue
		}
		var say func()
		if err := r.inSession(func(session *service.Session) (err error) {
			say, err = r.createPool(session, spec)
			return err
		}); err != nil {
			r.log.Error("a pool of the configuration could not be made", "name", spec.Name, "error", err)
			continue
		}
		say()
		now = append(now, spec)
	}
	return now
}
