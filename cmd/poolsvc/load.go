package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/safetensors"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
)

func newLoad() *cobra.Command {
	var (
		name, pool      string
		replace, verify bool
		whileUsed       bool
		digests         bool
	)
	c := withClient(&cobra.Command{
		Use:   "load PATH --name NAME --pool POOL",
		Short: "Load a model from safetensors files into a pool, under a name",
		Long: `Load all tensors of a model into one buffer, and publish it under a name, which stays when this command ends (poolsvc unpublish
removes it). Python programs then get all tensors without a copy: client.get_dict(NAME, "torch").

PATH is a file, the index of a model of several files (*.index.json), or a folder with an index or *.safetensors.

With --while-used the name is there at once, and readers wait for the content. The name goes with the last program that uses the model; this command
uses it until its standard input has a line or ends. Python's load_dict does this for you.`,
		Example: `  poolsvc pool create name=models,kind=vmm,max=24GiB
  poolsvc load llama/ --name llama --pool models`,
		Args: arguments(1, 1),
	}, func(c *cobra.Command, client *bridge.Client, args []string) (err error) {
		if name == "" || pool == "" {
			return misused(c, "load needs --name and --pool")
		}
		if verify && whileUsed {
			return misused(c, "--while-used gives readers the model before --verify could read it again: use one of them")
		}
		ctx := c.Context()
		if whileUsed {
			defer func() { // for the client in Python, which started this command; if it is gone, other programs still want the model
				if err != nil {
					_, _ = fmt.Fprintln(c.OutOrStdout(), "error", bridge.Code(err))
				}
			}()
		}
		files, err := safetensors.Open(args[0])
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, files.Close()) }()
		open, err := client.TryOpenPool(ctx, pool)
		if err != nil {
			return err
		}
		if !replace {
			if err := checkFree(ctx, client.TryGet, name); err != nil {
				return err
			}
		}
		if digests {
			if err := files.Digest(ctx); err != nil {
				return err
			}
		}
		began := time.Now()
		l, err := open.TryAllocate(ctx, files.Tensor)
		if err != nil {
			err = fmt.Errorf("%s: %w", args[0], err)
			if whileUsed { // another program may have just allocated memory for this model
				soon, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				err = cmp.Or(checkFree(soon, client.Get, name), err)
			}
			return err
		}
		var done atomic.Uint64
		stop := follow(display.NewProgress(c.ErrOrStderr()), &done, files.Bytes, args[0])
		p := mempool.Publication{Name: name, Keep: !whileUsed, WhileUsed: whileUsed, Replace: replace}
		if whileUsed {
			err = files.Share(ctx, client, l, p, func() { _, _ = fmt.Fprintln(c.OutOrStdout(), "published") }, &done)
		} else {
			err = files.Load(ctx, l, &done)
		}
		took := time.Since(began)
		if err == nil && verify {
			err = files.Verify(ctx, l)
		}
		if err == nil && !whileUsed {
			err = l.Publish(ctx, p)
		}
		stop() // it may wait for the terminal
		if whileUsed && err == nil {
			awaitEnd(ctx, c.InOrStdin())
		}
		if err = errors.Join(err, l.Release(err != nil)); err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "loaded %d arrays of %s as %s in %s (%s a second)\n", len(files.Tensor.Arrays), display.Size(files.Bytes),
			name, took.Round(time.Millisecond), display.Size(uint64(float64(files.Bytes)/took.Seconds())))
		return err
	})
	c.Flags().StringVar(&name, "name", "", "name to publish the model under")
	c.Flags().StringVar(&pool, "pool", "", "pool for the model")
	c.Flags().BoolVar(&verify, "verify", false, "read the files again, and compare them with what was loaded")
	c.Flags().BoolVar(&digests, "digests", false, "add the SHA-256 digest of each tensor of the files to the metadata, for verify() of a lease")
	c.Flags().BoolVar(&whileUsed, "while-used", false, "let the name go with the last program that uses the model")
	c.Flags().BoolVar(&replace, "replace", false, "replace a model of this name; programs that have it keep its memory")
	return c
}

// follow shows how many bytes of a file are loaded, until the caller calls stop. A terminal that takes no output does not hold up the load.
func follow(progress *display.Progress, done *atomic.Uint64, total uint64, path string) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer progress.Done()
		for tick := time.Tick(time.Second / 10); ; {
			select {
			case <-end:
				return
			case <-tick:
				progress.Step(int(done.Load()>>20), int(total>>20), "MiB of "+path)
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// awaitEnd waits until the standard input of `load --while-used` has a byte or ends, which says that the model is needed no longer, or the
// context ends. Then the goroutine that reads stays.
func awaitEnd(ctx context.Context, r io.Reader) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = r.Read(make([]byte, 1))
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// checkFree returns an error if a buffer has the name, so that the command fails at once, and not after loading for minutes.
func checkFree(ctx context.Context, get func(context.Context, string, bridge.LeaseOptions) (*bridge.Lease, error), name string) error {
	l, err := get(ctx, name, bridge.LeaseOptions{})
	switch {
	case err == nil:
		err = l.Release(false)
	case errors.Is(err, bridge.ErrNotFound), errors.Is(err, context.DeadlineExceeded):
		return nil
	case errors.Is(err, bridge.ErrDisconnected), errors.Is(err, bridge.ErrInvalid), errors.Is(err, context.Canceled):
		return err
	}
	return errors.Join(fmt.Errorf("%w: there is a buffer %q already: --replace lets the name refer to the new one", bridge.ErrExists, name), err)
}

func newSave() *cobra.Command {
	return withClient(&cobra.Command{
		Use:     "save NAME PATH",
		Short:   "Save the arrays of a buffer as a safetensors file",
		Long:    "Save the buffer of several arrays that is published under a name as a safetensors file. A file that is there is replaced when the new one is complete.",
		Example: "  poolsvc save llama llama.safetensors",
		Args:    arguments(2, 2),
	}, func(c *cobra.Command, client *bridge.Client, args []string) (err error) {
		l, err := client.TryGet(c.Context(), args[0], bridge.LeaseOptions{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.Release(false)) }()
		return safetensors.Save(c.Context(), l, args[1])
	})
}

func newUnpublish() *cobra.Command {
	return withClient(&cobra.Command{
		Use:   "unpublish NAME",
		Short: "Remove a name",
		Long:  "Remove the name of a buffer. Its memory is free when no program has a lease of it.",
		Args:  arguments(1, 1),
	}, func(c *cobra.Command, client *bridge.Client, args []string) error {
		return client.Unpublish(c.Context(), args[0])
	})
}
