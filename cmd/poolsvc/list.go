package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
)

// listing is a command that lists what a running service has.
type listing[T any] struct {
	name, short, long string
	entries           func(*bridge.Client, context.Context) iter.Seq2[T, error]
	head              string
	row               func(T, *listed) string
	json              func(T, *listed) any
}

// listed is what rows are made with.
type listed struct {
	now   time.Time
	pools map[uint64]string // names by id
}

func (l *listed) pool(id uint64) string {
	if name, ok := l.pools[id]; ok {
		return name
	}
	return fmt.Sprint("#", id)
}

func newLists() []*cobra.Command {
	return []*cobra.Command{
		listing[mempool.SessionInfo]{
			name:    "sessions",
			short:   "Show the sessions of a running service",
			long:    "Show the sessions of your user, this one included; to the service's own user those of all.",
			entries: (*bridge.Client).Sessions,
			head:    "SESSION\tUSER\tPID\tPROGRAM\tAGE\tLEASES\tBYTES\tBLOCKS\tMEMBERS",
			row: func(s mempool.SessionInfo, l *listed) string {
				return fmt.Sprintf("%d\t%d\t%d\t%s\t%s\t%d\t%s\t%d\t%d", s.ID, s.UID, s.PID, display.Printable(s.Program), display.Age(l.now.Sub(s.Began)), s.Leases,
					formatBytes(s.Bytes), s.Blocks, s.Members)
			},
			json: func(s mempool.SessionInfo, _ *listed) any {
				return map[string]any{"session": s.ID, "uid": s.UID, "pid": s.PID, "program": s.Program, "began": s.Began.UTC().Format(time.RFC3339Nano),
					"leases": s.Leases, "bytes": s.Bytes, "blocks": s.Blocks, "members": s.Members}
			},
		}.command(),
		listing[mempool.ChannelStatus]{
			name:    "channels",
			short:   "Show the channels of a running service",
			long:    "Show the channels that you may use, with how many producers and consumers take part now.",
			entries: (*bridge.Client).Channels,
			head:    "CHANNEL\tID\tPOOL\tMODE\tCAPACITY\tFULL\tPRODUCERS\tCONSUMERS\tSTATE",
			row: func(ch mempool.ChannelStatus, l *listed) string {
				return fmt.Sprintf("%s\t%d\t%s\t%s\t%d\t%s\t%d\t%d\t%s", ch.Name, ch.ID, l.pool(ch.Pool), ch.Mode, ch.Capacity, ch.Full, ch.Producers,
					ch.Consumers, state(ch))
			},
			json: func(ch mempool.ChannelStatus, l *listed) any {
				return map[string]any{"channel": ch.Name, "id": ch.ID, "pool": l.pool(ch.Pool), "mode": ch.Mode, "capacity": ch.Capacity, "full": ch.Full,
					"producers": ch.Producers, "consumers": ch.Consumers, "state": state(ch), "uid": ch.UID}
			},
		}.command(),
		listing[mempool.NameInfo]{
			name:    "names",
			short:   "Show the buffers that are published in a running service",
			long:    "Show the names of the buffers that you may lease. A name of session 0 is kept; the others go with their session.",
			entries: (*bridge.Client).Names,
			head:    "NAME\tPOOL\tBUFFER\tDTYPE\tSHAPE\tBYTES\tUSER\tSESSION",
			row: func(n mempool.NameInfo, l *listed) string {
				return fmt.Sprintf("%s\t%s\t%d\t%s\t%v\t%s\t%d\t%d", n.Name, l.pool(n.Pool), n.Buffer, n.Tensor.DType, n.Tensor.Shape, formatBytes(n.Bytes),
					n.UID, n.Session)
			},
			json: func(n mempool.NameInfo, l *listed) any {
				return map[string]any{"name": n.Name, "pool": l.pool(n.Pool), "buffer": n.Buffer, "dtype": n.Tensor.DType, "shape": shape(n.Tensor),
					"bytes": n.Bytes, "uid": n.UID, "session": n.Session}
			},
		}.command(),
		listing[mempool.BufferInfo]{
			name:    "buffers",
			short:   "Show the buffers of a running service and the sessions that hold them",
			long:    "Show the buffers of the pools that you may use. WRITER and READERS are sessions.",
			entries: (*bridge.Client).Buffers,
			head:    "BUFFER\tPOOL\tDTYPE\tSHAPE\tBYTES\tBLOCK\tWRITER\tREADERS\tNAMES",
			row: func(b mempool.BufferInfo, l *listed) string {
				return fmt.Sprintf("%d\t%s\t%s\t%v\t%s\t%s\t%s\t%s\t%d", b.ID, l.pool(b.Pool), b.Tensor.DType, b.Tensor.Shape, formatBytes(b.Bytes),
					formatBytes(b.BlockBytes), writer(b), readers(b), b.Names)
			},
			json: func(b mempool.BufferInfo, l *listed) any {
				return map[string]any{"buffer": b.ID, "generation": b.Generation, "pool": l.pool(b.Pool), "dtype": b.Tensor.DType, "shape": shape(b.Tensor),
					"bytes": b.Bytes, "block_bytes": b.BlockBytes, "writer": b.Writer, "readers": append([]uint64{}, b.Readers...), "reads": b.Reads,
					"names": b.Names, "in_channel": b.InChannel}
			},
		}.command(),
	}
}

func (l listing[T]) command() *cobra.Command {
	var (
		socket string
		asJSON bool
	)
	c := &cobra.Command{
		Use:   l.name,
		Short: l.short,
		Long:  l.long,
		Args:  arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) (err error) {
			client, err := bridge.Dial(c.Context(), socket)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, client.Close()) }()
			stats, err := client.Stats(c.Context())
			if err != nil {
				return err
			}
			with := &listed{now: time.Now(), pools: make(map[uint64]string)}
			for _, p := range stats.Pools {
				with.pools[p.Pool.ID] = p.Pool.Name
			}
			if asJSON {
				return l.printJSON(c.OutOrStdout(), l.entries(client, c.Context()), with)
			}
			return l.print(c.OutOrStdout(), l.entries(client, c.Context()), with)
		},
	}
	socketFlag(c, &socket)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (l listing[T]) print(out io.Writer, entries iter.Seq2[T, error], with *listed) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, l.head)
	for e, err := range entries {
		if err != nil {
			return err
		}
		fmt.Fprintln(w, l.row(e, with))
	}
	return w.Flush()
}

func (l listing[T]) printJSON(out io.Writer, entries iter.Seq2[T, error], with *listed) error {
	all := []any{}
	for e, err := range entries {
		if err != nil {
			return err
		}
		all = append(all, l.json(e, with))
	}
	return writeJSON(out, map[string]any{l.name: all})
}

func state(ch mempool.ChannelStatus) string {
	if ch.Closed {
		return "closed"
	}
	return "open"
}

// shape is never null in JSON.
func shape(t mempool.Tensor) []uint64 { return append([]uint64{}, t.Shape...) }

func writer(b mempool.BufferInfo) string {
	switch {
	case b.Writer != 0:
		return fmt.Sprint(b.Writer)
	case b.InChannel:
		return "in a channel"
	}
	return "-"
}

func readers(b mempool.BufferInfo) string {
	if b.Reads == 0 {
		return "-"
	}
	text := ""
	for i, id := range b.Readers {
		if i > 0 {
			text += " "
		}
		text += fmt.Sprint(id)
	}
	if more := b.Reads - len(b.Readers); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
