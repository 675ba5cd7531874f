package display

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// Blocks says whether producers of a channel wait, and somebody should act. A full queue is in order while it has consumers, because they
// take its frames in turn.
func Blocks(ch mempool.ChannelInfo) bool {
	return ch.Blocked && (ch.Mode != mempool.WorkQueue || ch.Consumers == 0)
}

// Jam is a channel that blocks producers, with its members.
type Jam struct {
	mempool.ChannelInfo
	Members []mempool.MemberInfo
}

// Jams returns those of the channels that block producers. `members` asks the service for the members of a channel; a channel that has ended
// meanwhile has none.
func Jams(ctx context.Context, channels []mempool.ChannelInfo, members func(context.Context, uint64) iter.Seq2[mempool.MemberInfo, error]) (jams []Jam, err error) {
	for _, ch := range channels {
		if !Blocks(ch) {
			continue
		}
		of, err := All(members(ctx, ch.ID))
		if err != nil && !errors.Is(err, mempool.ErrClosed) {
			return nil, err
		}
		jams = append(jams, Jam{ch, of})
	}
	return jams, nil
}

// Part is what a session or a channel has to do with producers that wait. Lists show those with the greatest part first.
type Part int

// These are the parts.
const (
	NoPart   Part = iota
	Waiting       // the session is a producer that waits
	Blocking      // producers wait for the session, or in the channel, or nobody takes what they send
)

// PartOf returns the part of a channel.
func PartOf(ch mempool.ChannelInfo) Part {
	if Blocks(ch) || ch.Untaken() {
		return Blocking
	}
	return NoPart
}

// Parts returns the parts of all sessions that have one.
func Parts(jams []Jam) map[uint64]Part {
	parts := make(map[uint64]Part)
	for _, j := range jams {
		for _, m := range j.Members {
			if m.Role == "producer" {
				parts[m.Session] = max(parts[m.Session], Waiting)
			}
		}
		if j.Slowest != 0 {
			parts[j.Slowest] = Blocking
		}
	}
	return parts
}

// Harm says whom the slowest consumer of the channel blocks, for example "blocks camera.py for 46s".
func (j Jam) Harm(now time.Time) string {
	var producers []string
	since := now
	for _, m := range j.Members {
		if program := Printable(m.Program); m.Role == "producer" && !slices.Contains(producers, program) {
			producers = append(producers, program)
		} else if m.Session == j.Slowest && !m.Since.IsZero() && m.Since.Before(since) {
			since = m.Since
		}
	}
	whom := "producers"
	switch n := len(producers); {
	case n == 1:
		whom = producers[0]
	case n > 1:
		whom = fmt.Sprintf("%s and %d more", producers[0], n-1)
	}
	return fmt.Sprintf("blocks %s for %s", whom, Age(now.Sub(since)))
}

// Doing says what a session waits for, or else whom it blocks.
func Doing(s mempool.SessionInfo, jams []Jam, now time.Time) string {
	if i := slices.IndexFunc(jams, func(j Jam) bool { return j.Slowest == s.ID }); s.WaitsFor == "" && i >= 0 {
		return jams[i].Harm(now)
	}
	return Waits(s.WaitsFor, now.Sub(s.Since))
}

// Behind says how far the slowest consumer of a channel is behind.
func Behind(ch mempool.ChannelInfo) string {
	name, capacity := Printable(ch.Name), uint64(ch.Capacity)
	switch {
	case ch.Mode == mempool.WorkQueue:
		return "has the oldest frame of queue " + name
	case ch.Waiting > capacity:
		return fmt.Sprintf("%d frames behind in %s, which keeps %d: it misses frames", ch.Waiting, name, capacity)
	case ch.Used > ch.Waiting:
		return fmt.Sprintf("%d of %d frames behind in %s, and %d more in hand", ch.Waiting, capacity, name, ch.Used-ch.Waiting)
	}
	return fmt.Sprintf("%d of %d frames behind in %s", ch.Waiting, capacity, name)
}
