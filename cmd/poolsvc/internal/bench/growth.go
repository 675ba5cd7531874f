package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// These are the size of the transferred buffers in workload (e), and the size of the other buffers that exist during the transfers.
const (
	growthBytes  = 1 << 20
	ballastBytes = 4 << 10
)

// growth measures workload (e): how much live buffers and sessions slow down a transfer, and how much memory and CPU time they cost the
// service.
func growth(ctx context.Context, s *scene) error {
	var blocks []int
	for _, e := range s.extents() {
		blocks = append(blocks, e.buffers)
	}
	pool := s.poolSpec(uint64(s.MaxBuffers) * ballastBytes)
	driver, err := s.driverBytes(ctx, pool, slices.Compact(blocks))
	if err != nil {
		return err
	}
	return s.withService(ctx, func(svc *service) error {
		g := &grown{scene: s, svc: svc, driver: driver}
		var err error
		if g.producer, err = dial(ctx, svc.Socket); err != nil {
			return err
		}
		if err = g.producer.makePool(ctx, pool); err == nil {
			err = g.steps(ctx)
		}
		return errors.Join(err, g.close())
	})
}

// transfer measures transfers. It makes a new producer and a new pool for these transfers.
func (g *grown) transfer(ctx context.Context, w *worker, channel string) (d Durations, err error) {
	src, err := dial(ctx, g.svc.Socket)
	if err != nil {
		return d, err
	}
	spec := g.poolSpec(growthBytes)
	spec.Name = channel
	if err = g.makeRoomForOne(ctx, src, spec, growthBytes); err == nil {
		d, err = g.transferTo(ctx, src, w, growthBytes, channel, false)
		err = errors.Join(err, src.pool.Destroy(ctx))
	}
	return d, errors.Join(err, src.client.Close())
}

// grown is a service that gets more and more buffers and sessions.
type grown struct {
	*scene
	svc      *service
	producer *source
	clients  []*source
	ballast  []*bridge.Lease
	driver   map[int]uint64 // bytes of the service's memory that belong to CUDA, by the number of buffers
}

func (g *grown) close() error {
	var errs []error
	for _, c := range g.clients {
		errs = append(errs, c.client.Close())
	}
	return errors.Join(append(errs, g.producer.client.Close())...)
}

// extent is how many buffers and sessions are live.
type extent struct{ buffers, sessions int }

// extents returns the extents that growth measures. The numbers of buffers and sessions never decrease from one extent to the next.
func (o Options) extents() []extent {
	all := []extent{{10, 1}, {1000, 1}, {10_000, 1}, {100_000, 1}, {100_000, 100}, {100_000, 500}}
	for i, e := range all {
		all[i] = extent{min(e.buffers, o.MaxBuffers), min(e.sessions, o.MaxSessions)}
	}
	return slices.Compact(all)
}

func (g *grown) steps(ctx context.Context) error {
	for _, e := range g.extents() {
		if err := g.grow(ctx, e.buffers, e.sessions); err != nil {
			return fmt.Errorf("growing to %d buffers and %d sessions: %w", e.buffers, e.sessions, err)
		}
		if err := g.step(ctx, e.buffers, e.sessions); err != nil {
			return err
		}
	}
	return nil
}

// grow adds buffers and sessions until their numbers are `buffers` and `sessions`.
func (g *grown) grow(ctx context.Context, buffers, sessions int) error {
	for len(g.clients) < sessions {
		c, err := dial(ctx, g.svc.Socket)
		if err != nil {
			return err
		}
		g.clients = append(g.clients, c)
		if c.pool, err = c.client.OpenPool(ctx, poolName); err != nil {
			return err
		}
	}
	missing := make([]*bridge.Lease, max(0, buffers-len(g.ballast)))
	var eg errgroup.Group
	eg.SetLimit(pipelined)
	const part = 1000
	for from := 0; from < len(missing); from += part {
		eg.Go(func() (err error) {
			for i := from; i < min(from+part, len(missing)) && err == nil; i++ {
				missing[i], err = g.clients[0].pool.Allocate(ctx, mempool.Bytes(ballastBytes))
			}
			return err
		})
	}
	err := eg.Wait()
	g.ballast = append(g.ballast, missing...)
	return err
}

// growthName returns the name of the workload with these numbers of buffers and sessions.
func growthName(buffers, sessions int) string {
	return fmt.Sprintf("growth/%d buffers/%d sessions", buffers, sessions)
}

// step measures the service with its current buffers and sessions, first idle, then with transfers.
func (g *grown) step(ctx context.Context, buffers, sessions int) error {
	pause := min(g.Time, 300*time.Millisecond)
	time.Sleep(pause)
	if err := g.footprint("idle", buffers, sessions, func() error {
		time.Sleep(2 * g.Time)
		return nil
	}); err != nil {
		return err
	}
	w, err := startWorker(ctx, g.Python, g.svc.Socket)
	if err != nil {
		return err
	}
	var d Durations
	err = g.footprint("busy", buffers, sessions, func() (err error) {
		d, err = g.transfer(ctx, w, fmt.Sprintf("growth %d %d", buffers, sessions))
		return err
	})
	if err = errors.Join(err, w.stop()); err == nil {
		g.add(d, growthName(buffers, sessions), growthBytes)
	}
	return err
}

// footprint measures the memory and the CPU time that the service uses while f runs.
func (g *grown) footprint(state string, buffers, sessions int, f func() error) error {
	before, err := g.svc.cpu()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := f(); err != nil {
		return err
	}
	elapsed := time.Since(start)
	after, err := g.svc.cpu()
	if err != nil {
		return err
	}
	rss, err := g.svc.rss()
	if err != nil {
		return err
	}
	driver := g.driver[buffers]
	p := Footprint{Kind: string(g.kind), State: state, Buffers: buffers, Sessions: sessions, RSSBytes: rss,
		DriverBytes: driver, OwnBytes: rss - min(rss, driver),
		CPUSeconds: (after - before).Seconds(), Seconds: elapsed.Seconds()}
	if g.last() {
		g.report.Service = append(g.report.Service, p)
		p.print(g.Progress)
	}
	return nil
}
