// Package top shows the pools, sessions, channels and events of a running service in a terminal, and keeps them up to date.
package top

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
)

// snapshot is the state of a service at one moment.
type snapshot struct {
	at       time.Time
	epoch    mempool.Epoch
	stats    mempool.ServiceStats
	sessions []mempool.SessionInfo
	channels []mempool.ChannelInfo
	jams     []display.Jam
	events   []mempool.HistoryEvent // events since the last snapshot
	held     []mempool.BufferInfo   // buffers that count for the session whose details are shown, or that it uses, among the first maxScanned buffers
	// If the screen has a filter, these are the names of each session's channels, and the texts of each channel's members, of the first
	// maxScanned channels.
	channelsOf, membersOf map[uint64][]string
}

// maxScanned is how many buffers of the service are searched for the buffers of one session, and how many channels for their members.
const maxScanned = 4096

// Source reads snapshots from a service. If the connection is lost, the next read connects again.
type Source struct {
	Socket string
	client *bridge.Client
	epoch  mempool.Epoch
	seen   uint64 // number of the last event that the source has read in this epoch
}

// Close ends the connection.
func (s *Source) Close() error {
	if s.client == nil {
		return nil
	}
	return s.client.Close()
}

// read asks the service for a snapshot. If `of` is not 0, it is the id of a session, and the snapshot also has the buffers of this session;
// if filtered is true, also what the filter needs.
func (s *Source) read(ctx context.Context, of uint64, filtered bool) (now snapshot, err error) {
	if s.client == nil {
		if s.client, err = (bridge.Dialer{Watch: true}).Dial(ctx, s.Socket); err != nil {
			return now, err
		}
	}
	if now, err = s.ask(ctx, of, filtered); err != nil {
		err = errors.Join(err, s.client.Close())
		s.client = nil
	}
	return now, err
}

func (s *Source) ask(ctx context.Context, of uint64, filtered bool) (now snapshot, err error) {
	now.at, now.epoch = time.Now(), s.client.Epoch()
	if now.stats, err = s.client.Stats(ctx); err != nil {
		return now, err
	}
	if now.sessions, err = display.All(display.Users(s.client.Session(), s.client.Sessions(ctx))); err != nil {
		return now, err
	}
	if now.channels, err = display.All(s.client.Channels(ctx)); err != nil {
		return now, err
	}
	if now.jams, err = display.Jams(ctx, now.channels, s.client.Members); err != nil {
		return now, err
	}
	if filtered {
		if err = s.relate(ctx, &now); err != nil {
			return now, err
		}
	}
	if now.events, err = s.news(ctx); err != nil || of == 0 {
		return now, err
	}
	seen := 0
	for one, err := range s.client.Buffers(ctx) {
		if err != nil {
			return now, err
		}
		if seen++; seen > maxScanned {
			break
		}
		if one.Session == of || one.Writer == of || slices.Contains(one.Readers, of) {
			now.held = append(now.held, one)
		}
	}
	return now, nil
}

// relate finds out which sessions are members of which channels.
func (s *Source) relate(ctx context.Context, now *snapshot) error {
	now.channelsOf, now.membersOf = make(map[uint64][]string), make(map[uint64][]string)
	for _, ch := range now.channels[:min(len(now.channels), maxScanned)] {
		members, err := display.All(s.client.Members(ctx, ch.ID))
		if err != nil && !errors.Is(err, bridge.ErrClosed) { // the channel has ended meanwhile
			return err
		}
		for _, one := range members {
			now.channelsOf[one.Session] = append(now.channelsOf[one.Session], ch.Name)
			now.membersOf[ch.ID] = append(now.membersOf[ch.ID], texts(one.Program, one.PID, one.UID, one.Session)...)
		}
	}
	return nil
}

// news returns the events since the last call of news.
func (s *Source) news(ctx context.Context) (events []mempool.HistoryEvent, err error) {
	if epoch := s.client.Epoch(); s.epoch != epoch {
		s.epoch, s.seen = epoch, 0
	}
	for {
		page, err := s.client.TryEvents(ctx, s.seen)
		if errors.Is(err, bridge.ErrUnsupported) {
			return nil, nil // an older service cannot report events
		}
		if err != nil || len(page.Events) == 0 {
			return events, err
		}
		events, s.seen = append(events, page.Events...), page.Next
	}
}

// useOf says what a buffer is used for, seen from a session.
func useOf(b mempool.BufferInfo, session uint64) string {
	use := display.Use(b)
	if (use == "written" || use == "read") && b.Writer != session && !slices.Contains(b.Readers, session) {
		return use + " by others"
	}
	return use
}

// pool returns the name of the pool with an id.
func (s *snapshot) pool(id uint64) string {
	for _, p := range s.stats.Pools {
		if p.Pool.ID == id {
			return display.Printable(p.Pool.Name)
		}
	}
	return fmt.Sprint("#", id)
}

// who returns the id and the program of a session. The id comes first, because a narrow column cuts the end.
func (s *snapshot) who(session uint64) string {
	for _, one := range s.sessions {
		if one.ID == session {
			return fmt.Sprintf("%d %s", session, display.Printable(one.Program))
		}
	}
	return strconv.FormatUint(session, 10)
}

func index[T any](list []T, id func(T) uint64) map[uint64]T {
	out := make(map[uint64]T, len(list))
	for _, one := range list {
		out[id(one)] = one
	}
	return out
}

// rates returns, for each channel, the frames per second since an earlier snapshot.
func (s *snapshot) rates(before *snapshot) map[uint64]float64 {
	out := make(map[uint64]float64)
	seconds := s.at.Sub(before.at).Seconds()
	had := index(before.channels, func(ch mempool.ChannelInfo) uint64 { return ch.ID })
	for _, ch := range s.channels {
		if old, ok := had[ch.ID]; ok && seconds > 0 && ch.Published >= old.Published {
			out[ch.ID] = float64(ch.Published-old.Published) / seconds
		}
	}
	return out
}
