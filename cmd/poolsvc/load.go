package main

import (
	"context"
	"errors"
	"fmt"
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
		name, pool string
		replace    bool
	)
	c := withClient(&cobra.Command{
		Use:   "load PATH --name NAME --pool POOL",
		Short: "Load a model from safetensors files into a pool, under a name",
		Long: `Load all tensors of a model into one buffer, and publish it under a name, which stays when this command ends (poolsvc unpublish
removes it). Python programs then get all tensors without a copy: client.get_dict(NAME, "torch").

PATH is a file, the index of a model of several files (*.index.json), or a folder with an index or *.safetensors.`,
		Example: `  poolsvc pool create name=models,kind=device,max=24GiB
  poolsvc load llama/ --name llama --pool models`,
		Args: arguments(1, 1),
	}, func(c *cobra.Command, client *bridge.Client, args []string) (err error) {
		if name == "" || pool == "" {
			return misused(c, "load needs --name and --pool")
		}
		ctx := c.Context()
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
			if err := checkFree(ctx, client, name); err != nil {
				return err
			}
		}
		began := time.Now()
		l, err := open.TryAllocate(ctx, files.Tensor)
		if err != nil {
			return err
		}
		var done atomic.Uint64
		stop := follow(display.NewProgress(c.ErrOrStderr()), &done, files.Bytes, args[0])
		err = files.Load(ctx, l, &done)
		if err == nil {
			err = l.Publish(ctx, mempool.Publication{Name: name, Keep: true, Replace: replace})
		}
		err = errors.Join(err, l.Release(err != nil))
		took := time.Since(began)
		stop()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "loaded %d arrays of %s as %s in %s (%s a second)\n", len(files.Tensor.Arrays), display.Size(files.Bytes),
			name, took.Round(time.Millisecond), display.Size(uint64(float64(files.Bytes)/took.Seconds())))
		return err
	})
	c.Flags().StringVar(&name, "name", "", "name to publish the model under")
	c.Flags().StringVar(&pool, "pool", "", "pool for the model")
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

// checkFree returns an error if the name exists, before a model is loaded for minutes.
func checkFree(ctx context.Context, client *bridge.Client, name string) error {
	l, err := client.TryGet(ctx, name, bridge.LeaseOptions{})
	switch {
	case err == nil:
		err = l.Release(false)
	case errors.Is(err, bridge.ErrNotFound):
		return nil
	case errors.Is(err, bridge.ErrDisconnected):
		return err
	}
	return errors.Join(fmt.Errorf("%w: there is a buffer %q already: --replace lets the name refer to the new one", bridge.ErrExists, name), err)
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
