package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/upkeep"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// heapGrowth is how much the heap may grow between collections, in percent. A request leaves little garbage, and with
// many live buffers the heap is most of what the service weighs.
const heapGrowth = 50

func newServe() *cobra.Command {
	var (
		socket   string
		mode     string
		specs    []string
		creators []uint
		bounds   []string
		verbose  bool
		l        life
		web      web
	)
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the service until it is interrupted",
		Long: `Run the service until SIGINT or SIGTERM.

The exit status is 3 if another service listens at the socket already, and 4 if it cannot listen there.

A pool can be made at the start, so that clients only have to open it:

  poolsvc serve --pool name=frames,kind=device,device=0,max=8GiB
  poolsvc serve --pool name=frames,kind=host,max=256MiB,session=64MiB,user=128MiB,uid=1000,uid=1001,gid=44

Sizes are in bytes, KiB, MiB, GiB or TiB; without kind it is device, without device the first. session and user bound what
one session and one user may have of the pool.

Users and groups on a pool's access list can reach all of the pool's memory; the default is only the user that the service
runs as. Other users also need to be able to open the socket: see --mode.

What clients can make the service remember is bounded, and --limit says by how much, for example --limit sessions=100: see
"Limits" in docs/protocol.md for what there is and its default.

Programs that start a service for themselves say with --ready-fd where it is to say that it listens, and with --end-fd and
--end-unused when it ends by itself.`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			log := slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(heapGrowth)
			}
			perm, err := strconv.ParseUint(mode, 8, 9)
			if err != nil {
				return fmt.Errorf("--mode %q is no file mode: expected octal digits such as 0660", mode)
			}
			most, err := parseLimits(bounds)
			if err != nil {
				return err
			}
			if err := l.check(c); err != nil {
				return err
			}
			if l.private {
				if socket, err = privateSocket(); err != nil {
					return &socketError{err}
				}
				defer os.RemoveAll(filepath.Dir(socket))
			}
			self := mempool.Self()
			svc := service.New(service.Config{Log: log, Limits: most.Limits, MayCreate: func(p mempool.Peer) bool {
				return p.UID == self.UID || slices.Contains(creators, uint(p.UID))
			}})
			defer svc.Close()
			if err := createPools(svc, specs, log); err != nil {
				return err
			}
			serving := bridge.ServerConfig{Mode: os.FileMode(perm), MaxSessions: most.sessions, MaxWaits: most.waits, Unused: l.unused, Log: log}
			web, err := web.serve(svc, &serving)
			if err != nil {
				return err
			}
			defer web.close(log)
			server, err := bridge.Listen(socket, svc, serving)
			if err != nil {
				return &socketError{err}
			}
			log.Info("serving", "socket", socket, "version", version, "epoch", svc.Epoch())
			ctx, end := context.WithCancel(c.Context())
			defer end()
			l.live(end, server, socket, log)
			looks := time.NewTicker(upkeep.Rest)
			defer looks.Stop()
			upkeep.Run(ctx, svc, looks.C)
			log.Info("shutting down")
			return server.Close()
		},
	}
	socketFlag(c, &socket)
	c.Flags().StringVar(&mode, "mode", "0600", "file mode of the socket, octal")
	c.Flags().StringArrayVar(&specs, "pool", nil, "make a pool, may be repeated: name=NAME,max=SIZE[,kind=device|vmm|legacy|pinned|host][,device=N|UUID][,session=SIZE][,user=SIZE][,uid=N][,gid=N]")
	c.Flags().UintSliceVar(&creators, "creator", nil, "ids of other users who may make pools, and destroy those that they may use")
	c.Flags().StringArrayVar(&bounds, "limit", nil, "bound what clients can make the service remember, may be repeated: NAME=N, of "+
		strings.Join(limitNames(), ", "))
	l.flags(c)
	web.flags(c)
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "log sessions too")
	return c
}

// limits are what --limit sets: of the service, and of its server.
type limits struct {
	service.Limits
	sessions, waits int
}

func limitNames() []string { return append([]string{"sessions", "waits"}, service.LimitNames()...) }

// parseLimits reads the values of --limit.
func parseLimits(texts []string) (most limits, err error) {
	for _, text := range texts {
		name, value, _ := strings.Cut(text, "=")
		n, err := strconv.Atoi(value)
		switch {
		case !slices.Contains(limitNames(), name):
			return most, fmt.Errorf("--limit %s: there is no limit %q: expected one of %s", text, name, strings.Join(limitNames(), ", "))
		case err != nil || n < 1:
			return most, fmt.Errorf("--limit %s: a limit is 1 or more, not %q", text, value)
		case name == "sessions":
			most.sessions = n
		case name == "waits":
			most.waits = n
		default:
			if err := most.Set(name, n); err != nil {
				return most, fmt.Errorf("--limit %s: %w", text, err)
			}
		}
	}
	return most, nil
}

// createPools makes the pools that --pool asked for, held by a session that lasts as long as the service.
func createPools(svc *service.Service, specs []string, log *slog.Logger) error {
	session, err := svc.OpenSession(mempool.Self(), nil)
	if err != nil {
		return err
	}
	session.Introduce("poolsvc serve")
	for _, text := range specs {
		spec, err := parsePool(text)
		if err != nil {
			return err
		}
		p, err := session.CreatePool(spec)
		if err != nil {
			return fmt.Errorf("--pool %q: %w", text, err)
		}
		info := p.Info()
		log.Info("made a pool", "name", info.Name, "kind", info.Kind, "device", info.Device.UUID, "max_bytes", info.MaxBytes)
	}
	return nil
}

// parsePool reads the value of --pool.
func parsePool(text string) (mempool.PoolSpec, error) {
	spec := mempool.PoolSpec{Kind: mempool.Device}
	var max, session, user byteSize
	for field := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(field, "=")
		var err error
		switch key {
		case "name":
			spec.Name = value
		case "kind":
			spec.Kind = mempool.Kind(value)
		case "device":
			spec.Device = value
		case "max":
			err = max.Set(value)
		case "session":
			err = session.Set(value)
		case "user":
			err = user.Set(value)
		case "uid":
			spec.Access.UIDs, err = appendID(spec.Access.UIDs, value)
		case "gid":
			spec.Access.GIDs, err = appendID(spec.Access.GIDs, value)
		default:
			err = fmt.Errorf("unknown key %q: expected name, kind, device, max, session, user, uid or gid", key)
		}
		if err != nil {
			return spec, fmt.Errorf("--pool %q: %w", text, err)
		}
	}
	spec.MaxBytes, spec.SessionBytes, spec.UserBytes = uint64(max), uint64(session), uint64(user)
	if err := spec.Validate(); err != nil {
		return spec, fmt.Errorf("--pool %q: %w", text, err)
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
