// Package top shows, live in a terminal, who holds what of a running service.
package top

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
)

// snapshot is what a service had at one time.
type snapshot struct {
	at       time.Time
	epoch    mempool.Epoch
	stats    mempool.Stats
	sessions []mempool.SessionInfo
	channels []mempool.ChannelStatus
	held     []mempool.BufferInfo // by the session that details are shown of, as far as maxScanned buffers show them
}

// maxScanned is how many buffers a look at a session's own goes through at most.
const maxScanned = 4096

// Source is where snapshots come from. It dials again after a connection was lost.
type Source struct {
	Socket string
	client *bridge.Client
}

// Close ends the connection.
func (s *Source) Close() error {
	if s.client == nil {
		return nil
	}
	return s.client.Close()
}

// read takes a snapshot; of is the session whose buffers are wanted, 0: of none.
func (s *Source) read(ctx context.Context, of uint64) (now snapshot, err error) {
	if s.client == nil {
		if s.client, err = bridge.Dial(ctx, s.Socket); err != nil {
			return now, err
		}
	}
	if now, err = s.ask(ctx, of); err != nil {
		err = errors.Join(err, s.client.Close())
		s.client = nil
	}
	return now, err
}

func (s *Source) ask(ctx context.Context, of uint64) (now snapshot, err error) {
	now.at, now.epoch = time.Now(), s.client.Epoch()
	if now.stats, err = s.client.Stats(ctx); err != nil {
		return now, err
	}
	for one, err := range s.client.Sessions(ctx) {
		if err != nil {
			return now, err
		}
		now.sessions = append(now.sessions, one)
	}
	for one, err := range s.client.Channels(ctx) {
		if err != nil {
			return now, err
		}
		now.channels = append(now.channels, one)
	}
	if of == 0 {
		return now, nil
	}
	seen := 0
	for one, err := range s.client.Buffers(ctx) {
		if err != nil {
			return now, err
		}
		if seen++; seen > maxScanned {
			break
		}
		if holds(one, of) {
			now.held = append(now.held, one)
		}
	}
	return now, nil
}

func holds(b mempool.BufferInfo, session uint64) bool {
	if b.Writer == session {
		return true
	}
	for _, reader := range b.Readers {
		if reader == session {
			return true
		}
	}
	return false
}

// pool names a pool.
func (s *snapshot) pool(id uint64) string {
	for _, p := range s.stats.Pools {
		if p.Pool.ID == id {
			return p.Pool.Name
		}
	}
	return fmt.Sprint("#", id)
}

// change is something that happened between two snapshots.
type change struct {
	at   time.Time
	text string
}

// changes are what happened since an earlier snapshot, as far as both show it.
func (s *snapshot) changes(before *snapshot) (list []change) {
	add := func(format string, args ...any) { list = append(list, change{s.at, fmt.Sprintf(format, args...)}) }
	compare(before.stats.Pools, s.stats.Pools, func(p mempool.PoolStats) uint64 { return p.Pool.ID },
		func(p mempool.PoolStats) { add("pool %s was made", p.Pool.Name) },
		func(p mempool.PoolStats) { add("pool %s was destroyed", p.Pool.Name) })
	compare(before.sessions, s.sessions, func(o mempool.SessionInfo) uint64 { return o.ID },
		func(o mempool.SessionInfo) { add("%s began", describe(o)) },
		func(o mempool.SessionInfo) { add("%s ended; it had %s", describe(o), size(o.Bytes)) })
	compare(before.channels, s.channels, func(ch mempool.ChannelStatus) uint64 { return ch.ID },
		func(ch mempool.ChannelStatus) { add("channel %s was made", ch.Name) },
		func(ch mempool.ChannelStatus) { add("channel %s is gone", ch.Name) })
	was := make(map[uint64]bool)
	for _, ch := range before.channels {
		was[ch.ID] = ch.Closed
	}
	for _, ch := range s.channels {
		if closed, known := was[ch.ID]; known && ch.Closed && !closed {
			add("channel %s was closed", ch.Name)
		}
	}
	return list
}

func describe(o mempool.SessionInfo) string {
	return fmt.Sprintf("session %d (%s, pid %d)", o.ID, display.Printable(o.Program), o.PID)
}

// compare calls came for what only after has, and went for what only before has.
func compare[T any](before, after []T, id func(T) uint64, came, went func(T)) {
	had, has := index(before, id), index(after, id)
	for _, one := range after {
		if _, ok := had[id(one)]; !ok {
			came(one)
		}
	}
	for _, one := range before {
		if _, ok := has[id(one)]; !ok {
			went(one)
		}
	}
}

func index[T any](list []T, id func(T) uint64) map[uint64]T {
	out := make(map[uint64]T, len(list))
	for _, one := range list {
		out[id(one)] = one
	}
	return out
}

// rates are the frames a second of each channel since an earlier snapshot.
func (s *snapshot) rates(before *snapshot) map[uint64]float64 {
	out := make(map[uint64]float64)
	seconds := s.at.Sub(before.at).Seconds()
	had := index(before.channels, func(ch mempool.ChannelStatus) uint64 { return ch.ID })
	for _, ch := range s.channels {
		if old, ok := had[ch.ID]; ok && seconds > 0 && ch.Published >= old.Published {
			out[ch.ID] = float64(ch.Published-old.Published) / seconds
		}
	}
	return out
}
