package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/mempool/service"
	"github.com/poolbridge/poolbridge/mempool/service/books"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

func newBooks() *cobra.Command {
	c := &cobra.Command{Use: "books", Short: "Look at the books of a service", Args: arguments(0, 0), RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Check that the books of a service can be taken over",
		Long: `Check that the books of a service can be taken over: that they were not overwritten, and that every rule of the ledger holds.

The books of a running service are a descriptor of its guard and of the service itself, such as /proc/PID/fd/N, which links to "memfd:poolbridge:books".`,
		Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			content, err := books.Read(f)
			if err != nil {
				return err
			}
			l, err := ledger.Read(&content.Records, service.Limits{})
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "ok: %d records in %d transactions, %d bytes; epoch %v; %d sessions, %d pools, %d buffers, %d leases, %d names, %d channels\n", content.Records.Len(),
				content.Transactions, content.Bytes, content.Epoch, l.Sessions.Len(), len(l.Pools), l.Buffers.Len(), l.Leases.Len(), l.Names.Len(), l.Channels.Len())
			return nil
		},
	})
	return c
}
