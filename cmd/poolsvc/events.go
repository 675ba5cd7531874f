package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
)

// eventFilter says which events to show.
type eventFilter struct {
	kinds   []string
	pool    string
	session uint64
	after   uint64
	from    time.Time
}

func newEvents() *cobra.Command {
	var (
		f      eventFilter
		since  string
		follow bool
		asJSON bool
	)
	c := dialing(bridge.Dialer{Watch: true}, &cobra.Command{
		Use:   "events",
		Short: "Show what happened to a running service",
		Long: `Show the events of a running service, the oldest first. The service's own user sees all; others see those of their own sessions and of
pools that they may use. The service keeps the newest 4,096 events.

  poolsvc events --since 10m
  poolsvc events --follow --kind session-ended --kind writer-died

The kinds are in docs/operating.md. With --json each line is one event.`,
		Args: arguments(0, 0),
	}, func(c *cobra.Command, client *bridge.Client, _ []string) error {
		if err := f.check(c, since, time.Now()); err != nil {
			return err
		}
		return f.show(c, client, follow, asJSON)
	})
	c.Flags().BoolVarP(&follow, "follow", "f", false, "wait for new events and show them, until interrupted")
	c.Flags().StringVar(&since, "since", "", "only events of the last time span, such as 10m, or those after the event of this number")
	c.Flags().StringArrayVar(&f.kinds, "kind", nil, "only events of this kind, may be repeated")
	c.Flags().StringVar(&f.pool, "pool", "", "only events of the pool of this name")
	c.Flags().Uint64Var(&f.session, "session", 0, "only events of the session of this id")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, one document a line")
	return c
}

func (f *eventFilter) check(c *cobra.Command, since string, now time.Time) error {
	for _, kind := range f.kinds {
		if !slices.Contains(mempool.EventKinds(), mempool.EventKind(kind)) {
			return misused(c, "--kind %q is no kind of event: expected one of %v", kind, mempool.EventKinds())
		}
	}
	if since == "" {
		return nil
	}
	if number, err := strconv.ParseUint(since, 10, 64); err == nil {
		f.after = number
		return nil
	}
	age, err := time.ParseDuration(since)
	if err != nil || age < 0 {
		return misused(c, "--since %q is neither a time span such as 90s, 10m or 2h, nor the number of an event", since)
	}
	f.from = now.Add(-age)
	return nil
}

func (f *eventFilter) passes(c *cobra.Command, e mempool.HistoryEvent) bool {
	given := c.Flags().Changed
	return (len(f.kinds) == 0 || slices.Contains(f.kinds, string(e.Kind))) && (!given("pool") || e.Pool == f.pool) &&
		(!given("session") || e.Session == f.session) && !e.At.Before(f.from)
}

// show prints the events. If follow is true, show also prints new events when they occur.
func (f *eventFilter) show(c *cobra.Command, client *bridge.Client, follow, asJSON bool) error {
	ask, shown := client.TryEvents, false
	for after := f.after; ; {
		page, err := ask(c.Context(), after)
		switch {
		case follow && c.Context().Err() != nil && errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return err
		}
		if after > 0 && page.Lost > 0 {
			fmt.Fprintf(c.ErrOrStderr(), "the service does not keep %d events after number %d any more\n", page.Lost, after)
		}
		for _, e := range page.Events {
			if !f.passes(c, e) {
				continue
			}
			if err := printEvent(c.OutOrStdout(), e, asJSON); err != nil {
				return err
			}
			shown = true
		}
		after = page.Next
		if len(page.Events) == 0 {
			if !follow {
				if !shown {
					fmt.Fprintln(c.ErrOrStderr(), "no events")
				}
				return nil
			}
			ask = client.Events
		}
	}
}

func printEvent(out io.Writer, e mempool.HistoryEvent, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(display.SafeJSON(out)).Encode(jsonHistoryEvent(e, nil))
	}
	_, err := fmt.Fprintf(display.Safe(out), "%6d  %s  %-16s  %s\n", e.Number, e.At.Format(time.DateTime), e.Kind, display.Happened(e))
	return err
}
