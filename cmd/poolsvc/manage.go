package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
)

func newPool() *cobra.Command {
	c := &cobra.Command{
		Use:   "pool",
		Short: "Make, destroy and trim pools of a running service",
		Long:  `Make, destroy and trim pools of a running service. docs/protocol.md, "Operations", says which users may do so.`,
		Args:  arguments(0, 0),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newPoolCreate(), newPoolDestroy(), newPoolTrim())
	return c
}

func newPoolCreate() *cobra.Command {
	return withClient(&cobra.Command{
		Use:   "create SPEC",
		Short: "Make a pool",
		Long: `Make a pool, which lives until it is destroyed or the service ends. SPEC is that of poolsvc serve --pool:

  poolsvc pool create name=frames,kind=host,max=256MiB`,
		Args: arguments(1, 1),
	}, func(c *cobra.Command, client *bridge.Client, args []string) error {
		spec, err := parsePool(args[0])
		if err != nil {
			return err
		}
		p, err := client.CreatePool(c.Context(), spec)
		if err != nil {
			return err
		}
		info := p.Info()
		_, err = fmt.Fprintf(c.OutOrStdout(), "made pool %s of kind %s, at most %s\n", info.Name, info.Kind, formatBytes(info.MaxBytes))
		return err
	})
}

func newPoolDestroy() *cobra.Command {
	return withClient(&cobra.Command{
		Use:   "destroy NAME",
		Short: "Destroy a pool",
		Long: `Destroy a pool. Nothing new can be allocated in it, and its names are removed at once. Its memory is freed when no lease and no mapping
needs it any more: poolsvc buffers shows which sessions have leases.`,
		Args: arguments(1, 1),
	}, func(c *cobra.Command, client *bridge.Client, args []string) error {
		return client.DestroyPool(c.Context(), args[0])
	})
}

func newPoolTrim() *cobra.Command {
	var keep byteSize
	c := withClient(&cobra.Command{
		Use:   "trim NAME",
		Short: "Free memory that a pool does not use",
		Args:  arguments(1, 1),
	}, func(c *cobra.Command, client *bridge.Client, args []string) error {
		p, err := client.TryOpenPool(c.Context(), args[0])
		if err != nil {
			return err
		}
		n, err := p.Trim(c.Context(), uint64(keep))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "%s were freed at once\n", formatBytes(n))
		return err
	})
	c.Flags().Var(&keep, "keep", "how much unused memory the pool keeps")
	return c
}

func newChannel() *cobra.Command {
	c := &cobra.Command{
		Use:   "channel",
		Short: "Show the members of a channel, or close it",
		Args:  arguments(0, 0),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newChannelShow(), newChannelClose())
	return c
}

func newChannelClose() *cobra.Command {
	var discard bool
	c := withClient(&cobra.Command{
		Use:   "close NAME",
		Short: "Close a channel",
		Long: `Close a channel. Nothing more can be published. Consumers get the frames that were published, and then the end. A closed queue waits until its
frames are acknowledged. With --discard, the frames that are left in closed queues of this name are lost; an open channel of this name stays.`,
		Args: arguments(1, 1),
	}, func(c *cobra.Command, client *bridge.Client, args []string) error {
		if discard {
			return discardChannels(c.Context(), client, args[0])
		}
		ch, err := client.TryOpenChannel(c.Context(), args[0])
		if err != nil {
			return err
		}
		return ch.Close(c.Context())
	})
	c.Flags().BoolVar(&discard, "discard", false, "end closed queues of this name, and lose their frames")
	return c
}

func discardChannels(ctx context.Context, client *bridge.Client, name string) error {
	channels, err := display.All(client.Channels(ctx))
	if err != nil {
		return err
	}
	found := unknown("channel", name, slices.Values(channels), nameOfChannel)
	for _, ch := range channels {
		switch {
		case ch.Name != name:
		case ch.Closed && ch.Mode == bridge.WorkQueue:
			found = nil
			if err := client.DiscardChannel(ctx, ch.ID); err != nil && !errors.Is(err, bridge.ErrClosed) { // a worker has acknowledged the last frame
				return err
			}
		case found == nil:
		case ch.Mode != bridge.WorkQueue:
			found = fmt.Errorf("channel %q is a broadcast: --discard is for closed queues; a closed broadcast ends when its consumers have left", name)
		default:
			found = fmt.Errorf("channel %[1]q is open: close it first, by poolsvc channel close %[1]s", name)
		}
	}
	return found
}

func newSession() *cobra.Command {
	c := &cobra.Command{
		Use:   "session",
		Short: "End sessions of a running service",
		Args:  arguments(0, 0),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(withClient(&cobra.Command{
		Use:   "end ID",
		Short: "End the session of a client",
		Long: `End the session of a client, and tell the client so. The session's leases end, and its names are removed. The service uses memory that the session had
leased again only once the client's process is gone, because the process may still touch it: poolsvc pools counts that memory as HELD, and poolsvc events
--kind memory-reclaimed says when it is free. Frames of a queue that the session has not acknowledged go to other workers then: poolsvc channel show names it
until then. Only the user that the service runs as may end sessions.`,
		Args: arguments(1, 1),
	}, func(c *cobra.Command, client *bridge.Client, args []string) error {
		id, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil || id == 0 {
			return misused(c, "%q is no session id: expected a number that poolsvc sessions shows", args[0])
		}
		return client.EndSession(c.Context(), id)
	}))
	return c
}

// withClient makes a command connect to the service before it calls run.
func withClient(c *cobra.Command, run func(c *cobra.Command, client *bridge.Client, args []string) error) *cobra.Command {
	return dialing(bridge.Dialer{}, c, run)
}

func dialing(d bridge.Dialer, c *cobra.Command, run func(c *cobra.Command, client *bridge.Client, args []string) error) *cobra.Command {
	var socket string
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		client, err := d.Dial(c.Context(), socket)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, client.Close()) }()
		return run(c, client, args)
	}
	socketFlag(c, &socket)
	return c
}
