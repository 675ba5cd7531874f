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
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// stage is a service in this process, with neighbours that must not notice what happens to the client and its pool.
type stage struct {
	kind   mempool.Kind
	svc    *service.Service
	server *bridge.Server
	client *remote
	admin  *service.Session

	steady *service.Session // has memory of GPU 0, which is never failed
	other  *service.Session
	gpu    *service.Pool
	kept   *service.Lease
	guest  *bridge.Client // has memory of the host
	host   *bridge.Pool
	down   bool
	owed   []*service.Lease // that could not be released
}

// set makes a stage, with a client that has begun a session. The pool "p" will be on the client's device.
func set(dir string, k mempool.Kind, client *remote) (s *stage, err error) {
	s = &stage{kind: k, client: client, svc: service.New(service.Config{Log: slog.New(slog.NewTextHandler(io.Discard, nil))})}
	client.path, client.kind = filepath.Join(dir, "s.sock"), k
	if s.server, err = bridge.Listen(client.path, s.svc, bridge.ServerConfig{}); err != nil {
		return nil, err
	}
	for _, session := range []**service.Session{&s.admin, &s.steady, &s.other} {
		if *session, err = s.svc.OpenSession(mempool.Self(), nil); err != nil {
			return nil, err
		}
	}
	s.gpu, err = s.admin.CreatePool(mempool.PoolSpec{Name: "steady", Kind: mempool.Device, Device: "0", MaxBytes: 64 << 20})
	if err != nil {
		return nil, err
	}
	if s.kept, err = s.steady.Allocate(context.Background(), s.gpu.Info().ID, mempool.Bytes(bufferBytes), 0); err != nil {
		return nil, err
	}
	if err = fill(s.kept, "kept"); err != nil {
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

// filler is a lease to write, here or in a client.
type filler interface {
	CopyFrom(off uint64, src []byte) error
	Fill(off, n uint64, b byte) error
}

func fill(l filler, name string) error {
	return errors.Join(l.Fill(0, bufferBytes, name[0]), l.CopyFrom(bufferBytes-8, pattern(name)))
}

// neighbours have the neighbours look at what they have, and hand a buffer over.
func (s *stage) neighbours() error {
	if s.down {
		return nil
	}
	if err := check(s.kept, "kept"); err != nil {
		return fmt.Errorf("what a neighbour keeps: %w", err)
	}
	l, err := s.steady.Allocate(context.Background(), s.gpu.Info().ID, mempool.Bytes(bufferBytes), 0)
	if err != nil {
		return fmt.Errorf("a neighbour's memory of another GPU: %w", err)
	}
	var got *service.Lease
	err = fill(l, "neighbour")
	if err == nil {
		err = l.Publish(mempool.Publication{Name: "neighbour"})
	}
	if err == nil {
		got, err = s.other.Get(context.Background(), "neighbour", false, 0)
	}
	if err == nil {
		err = errors.Join(check(got, "neighbour"), got.Release(false), s.steady.Unpublish("neighbour"))
	}
	if err = errors.Join(err, l.Release(false)); err != nil {
		return fmt.Errorf("a transfer of a neighbour's memory of another GPU: %w", err)
	}
	return s.guests()
}

// guests transfer memory of the host.
func (s *stage) guests() error {
	ctx := context.Background()
	l, err := s.host.Allocate(ctx, mempool.Bytes(bufferBytes), 0)
	if err != nil {
		return fmt.Errorf("a neighbour's memory of the host: %w", err)
	}
	var got *bridge.Lease
	err = fill(l, "guest")
	if err == nil {
		err = l.Publish(ctx, mempool.Publication{Name: "guest"})
	}
	if err == nil {
		got, err = s.guest.Get(ctx, "guest", bridge.LeaseOptions{})
	}
	if err == nil {
		err = errors.Join(check(got, "guest"), got.Release(false), s.guest.Unpublish(ctx, "guest"))
	}
	if err = errors.Join(err, l.Release(false)); err != nil {
		return fmt.Errorf("a transfer of a neighbour's memory of the host: %w", err)
	}
	return nil
}

// shutDown ends the service, as poolsvc does.
func (s *stage) shutDown() error {
	if s.down {
		return nil
	}
	s.down = true
	err := s.server.Close()
	s.svc.Close()
	if gone := s.guest.Close(); !errors.Is(gone, bridge.ErrDisconnected) {
		err = errors.Join(err, gone)
	}
	return err
}

// pool is the accounting of the client's pool; false once it is gone.
func (s *stage) pool() (mempool.PoolStats, bool) {
	for _, p := range s.svc.Stats().Pools {
		if p.Pool.Name == "p" {
			return p, true
		}
	}
	return mempool.PoolStats{}, false
}

// eventually looks until it finds nothing wrong: what the service does by itself takes its time.
func eventually(wrong func() error) error {
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		err := wrong()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
