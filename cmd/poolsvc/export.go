package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

func newExport() *cobra.Command {
	var (
		socket    string
		wait      time.Duration
		raw, hold bool
	)
	c := &cobra.Command{
		Use:   "export NAME FILE",
		Short: "Save where a published buffer is, for scripts and for programs that are no clients",
		Long: `Write a file that says where the buffer published as NAME is. FILE may be - for standard output.

For memory of kind legacy the file is enough to open the buffer: it has the driver's handle for cuIpcOpenMemHandle, and the offset in
the memory that this opens. With --raw the file has only the driver's 64 bytes, followed by 8 bytes of offset if that is not 0.
Memory of other kinds needs file descriptors, which a file cannot hold: the file then names the service to ask.

The handle is valid while the service runs and the buffer lives, that is, while it has a name or a lease. --hold keeps a
lease.`,
		Example: `  poolsvc export frame frame.json
  poolsvc export frame frame.handle --raw --hold`,
		Args: arguments(2, 2),
		RunE: func(c *cobra.Command, args []string) (err error) {
			ctx := c.Context()
			client, err := bridge.Dial(ctx, socket)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, client.Close()) }()
			x, err := exported(ctx, client, args[0], wait)
			if err != nil {
				return err
			}
			file, err := fileOf(x.Saved(args[0], socket), raw)
			if err == nil {
				err = writeFile(c, args[1], file)
			}
			if err == nil && hold {
				fmt.Fprintf(c.ErrOrStderr(), "holding %q until interrupted\n", args[0])
				<-ctx.Done()
			}
			return errors.Join(err, x.Release())
		},
	}
	socketFlag(c, &socket)
	c.Flags().DurationVar(&wait, "wait", 0, "how long to wait for the name to appear")
	c.Flags().BoolVar(&raw, "raw", false, "write only the driver's handle, of kind legacy")
	c.Flags().BoolVar(&hold, "hold", false, "keep the buffer alive until interrupted")
	return c
}

// exported leases a buffer for export. If no buffer has the name yet, the function `exported` waits for such a buffer, but at most for the
// duration `wait`.
func exported(ctx context.Context, client *bridge.Client, name string, wait time.Duration) (*bridge.Exported, error) {
	if wait <= 0 {
		return client.TryExport(ctx, name)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return client.Export(ctx, name)
}

// fileOf returns the content of the file to write.
func fileOf(s mempool.Saved, raw bool) ([]byte, error) {
	if !raw {
		var text bytes.Buffer
		err := writeJSON(&text, s)
		return text.Bytes(), err
	}
	if s.Kind != mempool.Legacy {
		return nil, fmt.Errorf("%w: memory of kind %q has no handle of bytes: leave --raw out, or use a pool of kind legacy", mempool.ErrInvalid, s.Kind)
	}
	h, err := mempool.ParseLegacyHandle(s.Handle)
	if err != nil {
		return nil, err
	}
	if h.Offset != 0 {
		return h.AppendBinary(nil), nil
	}
	return h.Handle[:], nil
}

func writeFile(c *cobra.Command, path string, content []byte) error {
	if path == "-" {
		_, err := c.OutOrStdout().Write(content)
		return err
	}
	return os.WriteFile(path, content, 0o600)
}
