// Command transfer puts an array into GPU memory or, with -kind host, into host memory,
// and publishes the array. Any process can then use it: consumer.py in this folder gets
// it as a CuPy, PyTorch or NumPy array, without a copy.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
)

func main() {
	kind := flag.String("kind", "device", "or vmm, legacy, pinned, host")
	flag.Parse()
	// no call waits longer than this; Dial does not wait for a service to start
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	err := transfer(ctx, bridge.Kind(*kind))
	cancel()
	if err != nil {
		log.Fatal(err)
	}
}

func transfer(ctx context.Context, kind bridge.Kind) error {
	client, err := bridge.Dial(ctx, bridge.DefaultSocket())
	if err != nil {
		return err
	}
	defer client.Close()
	spec := bridge.PoolSpec{Name: "transfer", Kind: kind, MaxBytes: 64 << 20}
	pool, err := client.EnsurePool(ctx, spec)
	if err != nil {
		return err
	}
	array := bridge.Tensor{DType: bridge.Float32, Shape: []uint64{2, 3}}
	lease, err := pool.Allocate(ctx, array)
	if err != nil {
		return err
	}
	data, _ := binary.Append(nil, binary.NativeEndian, []float32{1, 2, 3, 4, 5, 6})
	if err := lease.CopyFrom(ctx, 0, data); err != nil {
		return err
	}
	name := bridge.Publication{Name: "weights", Keep: true, Replace: true}
	if err := lease.Publish(ctx, name); err != nil {
		return err
	}
	fmt.Println("published", name.Name) // Keep: the name outlives this program
	return nil
}
