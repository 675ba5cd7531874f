package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
)

// members is what a channel and its members were at one moment.
type members struct {
	at      time.Time
	channel mempool.ChannelInfo
	all     []mempool.MemberInfo
}

// rateTime is the time between the two looks that give the frames per second.
const rateTime = time.Second

func newChannelShow() *cobra.Command {
	var v view
	c := &cobra.Command{
		Use:   "show NAME",
		Short: "Show the producers and consumers of a channel",
		Long: `Show the producers and consumers of a channel. It looks twice, a second apart, for FRAMES/S; with --watch, the rate is that since the update before.

LAG is how many frames a consumer has still to take; in a queue, how many it has taken and not acknowledged. LAST is the number of the frame that
the member published or took last, and how long ago that frame was published. A consumer that blocks the producers stands in colour on a terminal, and
also one whose session has ended: other workers get the frames of its LAG when its process is gone.`,
		Args: arguments(1, 1),
	}
	v.flags(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		var before *members
		return v.show(c, func(ctx context.Context, client *bridge.Client, out io.Writer) error {
			if before == nil {
				first, err := lookAt(ctx, client, args[0])
				if err != nil {
					return err
				}
				before = first
				select {
				case <-time.After(rateTime):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			now, err := lookAt(ctx, client, args[0])
			if err != nil {
				return err
			}
			defer func() { before = now }()
			if v.json {
				return v.writeJSON(out, now.json(before))
			}
			return now.print(out, before)
		})
	}
	return c
}

// lookAt asks the service for a channel and its members. An open channel of this name comes before a closed one.
func lookAt(ctx context.Context, client *bridge.Client, name string) (*members, error) {
	now := &members{at: time.Now()}
	channels, err := display.All(client.Channels(ctx))
	if err != nil {
		return nil, err
	}
	for _, ch := range channels {
		if ch.Name == name && (now.channel.ID == 0 || !ch.Closed) {
			now.channel = ch
		}
	}
	if now.channel.ID == 0 {
		return nil, unknown("channel", name, slices.Values(channels), nameOfChannel)
	}
	if now.all, err = display.All(client.Members(ctx, now.channel.ID)); err != nil {
		return nil, err
	}
	slices.SortStableFunc(now.all, func(a, b mempool.MemberInfo) int { // producers, then the consumers that are furthest behind
		return cmp.Or(cmp.Compare(b.Role, a.Role), cmp.Compare(b.Lag, a.Lag))
	})
	return now, nil
}

func nameOfChannel(ch mempool.ChannelInfo) string { return ch.Name }

// rate returns the frames per second of a member since an earlier look; known is false if the member was not there.
func (now *members) rate(of mempool.MemberInfo, before *members) (rate float64, known bool) {
	i := slices.IndexFunc(before.all, func(m mempool.MemberInfo) bool { return m.ID == of.ID })
	seconds := now.at.Sub(before.at).Seconds()
	if i < 0 || before.channel.ID != now.channel.ID || seconds <= 0 || of.Frames < before.all[i].Frames {
		return 0, false
	}
	return float64(of.Frames-before.all[i].Frames) / seconds, true
}

func (now *members) json(before *members) map[string]any {
	l, all := &listed{}, []any{}
	for _, m := range now.all {
		one := jsonMemberInfo(m, l)
		if rate, known := now.rate(m, before); known {
			one["frames_per_second"] = rate
		}
		all = append(all, one)
	}
	ch := now.channel
	return map[string]any{"channel": ch.Name, "id": ch.ID, "mode": ch.Mode, "capacity": ch.Capacity, "full": ch.Full, "state": state(ch), "members": all}
}

func (now *members) print(out io.Writer, before *members) error {
	ch := now.channel
	fmt.Fprintf(display.Safe(out), "%s: %s of %d frames, %s when it is full; %s\n\n", ch.Name, ch.Mode, ch.Capacity, ch.Full, display.State(ch))
	t := table{head: "PROGRAM\tPID\tUSER\tROLE\tLAG\tFRAMES/S\tFRAMES\tLAST\tBLOCKS"}
	for _, m := range now.all {
		rate, lag, last, blocks := "-", "-", "-", "-"
		if r, known := now.rate(m, before); known {
			rate = fmt.Sprintf("%.1f", r)
		}
		if m.Role == "consumer" {
			lag = fmt.Sprint(m.Lag)
		}
		if m.Last > 0 {
			last = fmt.Sprint(m.Last)
		}
		if !m.LastAt.IsZero() {
			last += " (" + display.Age(max(0, now.at.Sub(m.LastAt))) + " ago)"
		}
		if !m.Since.IsZero() {
			blocks = "for " + display.Age(max(0, now.at.Sub(m.Since)))
		}
		role := m.Role
		if m.Ended {
			role += ", ended"
		}
		t.add(m.Ended || !m.Since.IsZero(), "%s (%d)\t%d\t%d\t%s\t%s\t%s\t%d\t%s\t%s", short(m.Program), m.Session, m.PID, m.UID, role, lag, rate, m.Frames, last, blocks)
	}
	return t.print(out)
}
