package anomaly

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// stage is a service in this process, with three clients. The clients neighbour and guest must not notice the failures of
// the third client and of its pool.
type stage struct {
	kind   mempool.Kind
	svc    *service.Service
	server *server.Server
	client *remote
	admin  *service.Session

	neighbour *remote        // has memory of GPU 0, whose calls never fail
	guest     *bridge.Client // has memory of the host
	host      *bridge.Pool
	down      bool
}

// set makes a stage whose client has begun a session. The pool "p" does not exist yet; it will be on the client's
// device.
func set(dir string, k mempool.Kind, client *remote, neighbour *process) (s *stage, err error) {
	s = &stage{kind: k, client: client, svc: service.New(service.Config{Log: slog.New(slog.NewTextHandler(io.Discard, nil))})}
	client.path, client.pool, client.kind = filepath.Join(dir, "s.sock"), "p", k
	s.neighbour = &remote{process: neighbour, path: client.path, pool: "steady", kind: mempool.Device, device: "0"}
	if s.server, err = server.Listen(client.path, s.svc, server.Config{}); err != nil {
		return nil, err
	}
	if s.admin, err = s.svc.OpenSession(mempool.Self(), "", nil); err != nil {
		return nil, err
	}
	if _, err = s.neighbour.do("dial", "create", "alloc kept", "fill kept"); err != nil {
		return nil, err
	}
	if s.guest, err = bridge.Dial(context.Background(), client.path); err != nil {
		return nil, err
	}
	s.host, err = s.guest.CreatePool(context.Background(), mempool.PoolSpec{Name: "host", Kind: mempool.Host, MaxBytes: 64 << 20})
	if err != nil {
		return nil, err
	}
	_, err = client.do("dial")
	return s, err
}

func fill(l *bridge.Lease, name string) error {
	return errors.Join(l.Fill(context.Background(), 0, bufferBytes, name[0]), l.CopyFrom(context.Background(), bufferBytes-8, pattern(name)))
}

// neighbours checks the buffer that the neighbour keeps, and makes both neighbours transfer a buffer.
func (s *stage) neighbours() error {
	if s.down {
		return nil
	}
	_, err := s.neighbour.do("check kept", "alloc n", "fill n", "publish n", "get n", "check n'", "release n'", "unpublish n", "release n")
	if err != nil {
		return fmt.Errorf("a neighbour with memory of another GPU: %w", err)
	}
	return s.guests()
}

// guests makes the guest transfer a buffer in memory of the host.
func (s *stage) guests() error {
	ctx := context.Background()
	l, err := s.host.TryAllocate(ctx, mempool.Bytes(bufferBytes))
	if err != nil {
		return fmt.Errorf("a neighbour's memory of the host: %w", err)
	}
	var got *bridge.Lease
	err = fill(l, "guest")
	if err == nil {
		err = l.Publish(ctx, mempool.Publication{Name: "guest"})
	}
	if err == nil {
		got, err = s.guest.TryGet(ctx, "guest", bridge.LeaseOptions{})
	}
	if err == nil {
		err = errors.Join(check(got, "guest"), got.Release(false), s.guest.Unpublish(ctx, "guest"))
	}
	if err = errors.Join(err, l.Release(false)); err != nil {
		return fmt.Errorf("a transfer of a neighbour's memory of the host: %w", err)
	}
	return nil
}

// shutDown ends the service in the same order as poolsvc.
func (s *stage) shutDown() error {
	if s.down {
		return nil
	}
	s.down = true
	_, err := s.neighbour.do("close") // otherwise the service would free memory that the neighbour maps
	err = errors.Join(err, s.server.Close())
	s.svc.Close()
	if gone := s.guest.Close(); !errors.Is(gone, bridge.ErrDisconnected) {
		err = errors.Join(err, gone)
	}
	return err
}

// pool returns the accounting of the client's pool; false: the pool does not exist.
func (s *stage) pool() (mempool.PoolStats, bool) {
	for _, p := range s.svc.Stats().Pools {
		if p.Pool.Name == "p" {
			return p, true
		}
	}
	return mempool.PoolStats{}, false
}

// eventually calls its parameter wrong, a function, until the function returns nil, for at most the time patience. The
// function may return an error at first, because the service
// may do some work only after it has answered a request.
func eventually(wrong func() error) error {
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		err := wrong()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
