package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/mempool"
)

// status describes the health of a running service.
type status struct {
	Epoch     string   `json:"epoch"`
	Answer    float64  `json:"answer_ms"`
	Sessions  int      `json:"sessions"` // without those that only watch, as that of this command
	Pools     int      `json:"pools"`
	Guarded   bool     `json:"guarded"`   // another service takes over if this one dies
	GuardPID  int32    `json:"guard_pid"` // the guard's process; 0: there is none, or systemd is the guard
	Takeovers uint64   `json:"takeovers"` // how often one has taken over, until this one did
	Warnings  []string `json:"warnings"`
}

func newStatus() *cobra.Command {
	var (
		socket string
		limit  time.Duration
		held   time.Duration
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "status",
		Short: "Say whether a running service is healthy",
		Long: `Say whether a service answers, and warn of pools that are nearly full, of consumers that block the producers of a channel, of queues that drop
frames because no consumer takes them, of workers that have had a frame of a queue for long, and of a lost guard. It does not count its own session.

The exit status is 0 if the service answers in time, else 1. Warnings do not change it. A service that has reached its limit of sessions gives a
warning, too.`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeoutCause(c.Context(), limit, fmt.Errorf("the service did not answer within %v", limit))
			defer cancel()
			s, err := answer(ctx, socket, held)
			if errors.Is(err, errFull) {
				if asJSON {
					return writeJSON(c.OutOrStdout(), map[string][]string{"warnings": {err.Error()}})
				}
				fmt.Fprintf(c.OutOrStdout(), "healthy: answered\nwarning: %v\n", err)
				return nil
			}
			if err != nil {
				return fmt.Errorf("not healthy: %w", err)
			}
			if asJSON {
				return writeJSON(c.OutOrStdout(), s)
			}
			guarded := ""
			if s.Guarded {
				by := strings.TrimSuffix(fmt.Sprint(" by process ", s.GuardPID), " by process 0") // that is systemd
				guarded = fmt.Sprintf("; guarded%s, %s so far", by, count.Of(s.Takeovers, "takeover"))
			}
			fmt.Fprintf(c.OutOrStdout(), "healthy: answered in %.1f ms; %s, %s%s\n", s.Answer, count.Of(s.Sessions, "session"), count.Of(s.Pools, "pool"), guarded)
			for _, w := range s.Warnings {
				fmt.Fprintln(display.Safe(c.OutOrStdout()), "warning:", w)
			}
			return nil
		},
	}
	socketFlag(c, &socket)
	c.Flags().DurationVar(&limit, "timeout", 5*time.Second, "how long the service may take")
	c.Flags().DurationVar(&held, "frame-age", 10*time.Second, "how long a worker may have a frame without a warning")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

var errFull = errors.New("the service has reached its limit of sessions and refuses more: end some, or raise --limit sessions=N")

// answer asks a service for its status. If the service has reached its limit of sessions, the error is errFull.
func answer(ctx context.Context, socket string, held time.Duration) (s status, err error) {
	client, err := bridge.Dialer{Watch: true}.Dial(ctx, socket)
	if errors.Is(err, bridge.ErrLimit) {
		return s, errFull
	}
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return askStatus(ctx, client, held)
}

func askStatus(ctx context.Context, client *bridge.Client, held time.Duration) (s status, err error) {
	begin := time.Now()
	stats, err := client.Stats(ctx)
	if err != nil {
		return s, err
	}
	s = status{Epoch: client.Epoch().String(), Answer: float64(time.Since(begin).Microseconds()) / 1000, Pools: len(stats.Pools),
		Guarded: stats.Guard == mempool.GuardWatches, GuardPID: stats.GuardPID, Takeovers: stats.Takeovers, Warnings: []string{}}
	sessions, err := display.All(display.Users(client.Session(), client.Sessions(ctx)))
	if err != nil {
		return s, err
	}
	s.Sessions = len(sessions)
	if stats.Guard == mempool.GuardLost {
		s.Warnings = append(s.Warnings, "if the service dies now, all sessions and their memory end with it (poolsvc events --kind service-impaired says why)")
	}
	for _, p := range stats.Pools {
		if used := p.Leased + p.Held; used >= p.Pool.MaxBytes-p.Pool.MaxBytes/20 { // at least 95 % of the pool
			s.Warnings = append(s.Warnings, fmt.Sprintf("pool %s: %s of %s are in use or held (poolsvc sessions and poolsvc buffers show for which sessions)",
				p.Pool.Name, display.Size(used), display.Size(p.Pool.MaxBytes)))
		}
	}
	channels, err := display.All(client.Channels(ctx))
	if err != nil {
		return s, err
	}
	for _, ch := range channels {
		warnings, err := hanging(ctx, client, ch, held)
		if err != nil {
			return s, err
		}
		s.Warnings = append(s.Warnings, warnings...)
		if ch.Untaken && !ch.Blocked {
			s.Warnings = append(s.Warnings, fmt.Sprintf("channel %s: %s; it keeps %s, and drops older ones, %d so far", ch.Name,
				display.NobodyTakes(ch), count.Of(ch.Used, "frame"), ch.Dropped))
		}
	}
	jams, err := display.Jams(ctx, channels, client.Members)
	for _, j := range jams {
		if j.Mode == mempool.WorkQueue {
			s.Warnings = append(s.Warnings, fmt.Sprintf("channel %s: %s; it keeps %s, and %s waits for room", j.Name, display.NobodyTakes(j.ChannelInfo), count.Of(j.Used, "frame"), j.Victims()))
		} else if i := slices.IndexFunc(j.Members, func(m mempool.MemberInfo) bool { return m.Session == j.Slowest }); i >= 0 {
			s.Warnings = append(s.Warnings, fmt.Sprintf("%s %s, %s", display.Session(j.Slowest, j.Members[i].Program, j.Members[i].PID), j.Harm(time.Now()), j.Behind()))
		}
	}
	return s, err
}

// hanging warns of the workers of a queue whose sessions have ended, but not their processes, and of those that have had a frame for the time
// `held`. While frames wait for a worker, every frame may be old when a worker takes it. So a worker then hangs only if another worker has
// taken a frame that was published so much later.
func hanging(ctx context.Context, client *bridge.Client, ch mempool.ChannelInfo, held time.Duration) (warnings []string, err error) {
	if ch.Mode != mempool.WorkQueue || ch.Waiting == 0 {
		return nil, nil
	}
	now := time.Now()
	var workers []mempool.MemberInfo
	var newest time.Time
	members, err := display.All(client.Members(ctx, ch.ID))
	if errors.Is(err, bridge.ErrClosed) || errors.Is(err, bridge.ErrDenied) { // the queue has ended meanwhile, or is in a pool for other users
		return nil, nil
	}
	for _, m := range members {
		switch {
		case m.Ended:
			warnings = append(warnings, fmt.Sprintf("channel %s: %s has ended, but its process still has %s, which other workers get when you end the process", ch.Name,
				display.Session(m.Session, m.Program, m.PID), count.Of(m.Lag, "frame")))
		case m.Role == "consumer" && !m.LastAt.IsZero():
			workers = append(workers, m)
			if m.LastAt.After(newest) {
				newest = m.LastAt
			}
		}
	}
	if ch.Used == 0 {
		newest = now
	}
	for _, m := range workers {
		if m.Lag > 0 && newest.Sub(m.LastAt) >= held {
			warnings = append(warnings, fmt.Sprintf("channel %s: %s may hang: it has not acknowledged %s that it took; the newest was published %s ago "+
				"(poolsvc channel show %s)", ch.Name, display.Session(m.Session, m.Program, m.PID), count.Of(m.Lag, "frame"), display.Age(now.Sub(m.LastAt)), ch.Name))
		}
	}
	return warnings, err
}
