package display

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// Blocks says whether producers of a channel wait, and somebody should act. A full queue is in order while its consumers take frames in turn.
func Blocks(ch mempool.ChannelInfo) bool {
	return ch.Blocked && (ch.Mode != mempool.WorkQueue || ch.Untaken)
}

// NobodyTakes says why nobody takes the frames of a queue.
func NobodyTakes(ch mempool.ChannelInfo) string {
	if ch.Consumers == 0 {
		return "it has 0 consumers"
	}
	return fmt.Sprintf("none of its consumers (%d) takes a frame", ch.Consumers)
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
	if Blocks(ch) || ch.Untaken {
		return Blocking
	}
	return NoPart
}

// PartIn returns the part of a session in one of its channels.
func PartIn(ch mempool.ChannelInfo, session uint64, producer bool) Part {
	switch {
	case Blocks(ch) && session == ch.Slowest:
		return Blocking
	case Blocks(ch) && producer:
		return Waiting
	}
	return NoPart
}

// Parts returns the parts of sessions, the greatest of each.
func Parts(jams []Jam) map[uint64]Part {
	parts := make(map[uint64]Part)
	for _, j := range jams {
		for _, m := range j.Members {
			parts[m.Session] = max(parts[m.Session], PartIn(j.ChannelInfo, m.Session, m.Role == "producer"))
		}
	}
	return parts
}

// Victims names the producers of the channel, for example "camera.py and 1 more".
func (j Jam) Victims() string {
	whom, others := "", 0
	for _, m := range j.Members {
		switch {
		case m.Role == "producer" && whom == "":
			whom = Printable(m.Program)
		case m.Role == "producer":
			others++
		}
	}
	if others > 0 {
		whom += fmt.Sprintf(" and %d more", others)
	}
	return cmp.Or(whom, "producers")
}

// Harm says whom the slowest consumer of the channel blocks, for example "blocks camera.py for 46s".
func (j Jam) Harm(now time.Time) string {
	since := now
	for _, m := range j.Members {
		if m.Session == j.Slowest && !m.Since.IsZero() {
			since = m.Since
		}
	}
	return fmt.Sprintf("blocks %s for %s", j.Victims(), Age(now.Sub(since)))
}

// Behind says how far the slowest consumer of the channel is behind.
func (j Jam) Behind() string {
	text := fmt.Sprintf("%d of %d frames behind in %s", j.Waiting, j.Capacity, Printable(j.Name))
	if j.Used > j.Waiting {
		text += fmt.Sprintf(", and %d more in hand", j.Used-j.Waiting)
	}
	return text
}

// Doing says what a session waits for, or else whom it blocks.
func Doing(s mempool.SessionInfo, jams []Jam, now time.Time) string {
	if i := slices.IndexFunc(jams, func(j Jam) bool { return j.Slowest == s.ID }); s.WaitsFor == "" && i >= 0 {
		return jams[i].Harm(now)
	}
	return Waits(s.WaitsFor, now.Sub(s.Since))
}
