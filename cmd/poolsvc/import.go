package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

func newImport() *cobra.Command {
	var (
		device string
		bytes  byteSize
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "import FILE [OUTPUT]",
		Short: "Read the buffer that an exported file names",
		Long: `Map the buffer that FILE names and copy it to OUTPUT (- for standard output). Without OUTPUT, describe the buffer.

FILE is the JSON of poolsvc export, or the 64 bytes of a driver's handle (cuIpcGetMemHandle), which 8 bytes of offset may follow.
For kinds other than legacy, the service that the JSON names must be running.`,
		Example: `  poolsvc import frame.json frame.bin
  poolsvc import handle.bin - --device 0 --bytes 4096 | xxd`,
		Args: arguments(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			content, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			saved, err := mempool.ParseSaved(content)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if saved.Kind == mempool.Legacy && saved.Device == "" {
				saved.Device = device
			}
			if saved.Bytes == 0 {
				saved.Bytes = uint64(bytes)
			}
			data, err := read(c.Context(), saved)
			switch {
			case err != nil:
				return fmt.Errorf("%s: %w", args[0], err)
			case len(args) > 1:
				return writeFile(c, args[1], data)
			case asJSON:
				saved.Bytes = uint64(len(data))
				return writeJSON(c.OutOrStdout(), saved)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%d bytes of kind %s%s, beginning with % x\n", len(data), saved.Kind, about(saved),
				data[:min(len(data), 16)])
			return err
		},
	}
	c.Flags().StringVar(&device, "device", "0", "GPU of a bare handle, an ordinal or a UUID")
	c.Flags().Var(&bytes, "bytes", "how many bytes to read through a bare handle; 0 for all that it opens")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// about returns a text about the device, the type and the shape of a buffer.
func about(s mempool.Saved) (text string) {
	switch {
	case s.Kind == mempool.Legacy && !strings.HasPrefix(s.Device, "GPU-"):
		text = " on GPU " + s.Device
	case s.Device != "":
		text = " on " + s.Device
	}
	if s.DType != "" {
		text += fmt.Sprintf(", %s %v", s.DType, s.Shape)
	}
	return text
}

// read returns the bytes of a saved buffer.
func read(ctx context.Context, s mempool.Saved) ([]byte, error) {
	if s.Kind == mempool.Legacy {
		return readHandle(s)
	}
	return readLease(ctx, s)
}

// readHandle reads the bytes of a buffer through its handle, without a service.
func readHandle(s mempool.Saved) (data []byte, err error) {
	d, err := mempool.FindDevice(s.Device)
	if err != nil {
		return nil, err
	}
	gpu, err := d.Retain()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, gpu.Close()) }()
	opened, err := s.Open(gpu)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	data = make([]byte, opened.Size())
	return data, copyOut(gpu, data, opened.Ptr())
}

func copyOut(gpu *cuda.Context, data []byte, ptr cuda.DevicePtr) error {
	if len(data) == 0 {
		return nil
	}
	return gpu.CopyDtoH(data, ptr)
}

// readLease reads the bytes of a buffer through a lease of its service.
func readLease(ctx context.Context, s mempool.Saved) (data []byte, err error) {
	client, err := bridge.Dial(ctx, s.Socket)
	if errors.Is(err, bridge.ErrNotRunning) {
		return nil, fmt.Errorf("%w: %w: %w", mempool.ErrUnavailable, mempool.ErrOwnerDead, err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if epoch := client.Epoch().String(); epoch != s.Epoch {
		return nil, fmt.Errorf("%w: %w: the service was restarted (epoch %s, not %s)", mempool.ErrStale, mempool.ErrOwnerDead, epoch, s.Epoch)
	}
	l, err := client.TryGet(ctx, s.Name, bridge.LeaseOptions{})
	if err != nil {
		return nil, err
	}
	data = make([]byte, l.Grant().Bytes)
	return data, errors.Join(l.CopyTo(ctx, data, 0), l.Release(false))
}
