// Command reader waits for the array "weights", which ../main.go or the program in
// Python of README publishes in memory of the CPU, and uses it in place.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	err := read(ctx)
	cancel()
	if err != nil {
		log.Fatal(err)
	}
}

func read(ctx context.Context) error {
	client, err := bridge.Dial(ctx, bridge.DefaultSocket())
	if err != nil {
		return err
	}
	defer client.Close()
	lease, err := client.Get(ctx, "weights", bridge.LeaseOptions{})
	if err != nil {
		return err
	}
	data, err := lease.Bytes(ctx) // the same memory, which ends with the lease
	if err != nil {
		return err
	}
	fmt.Println(lease.Tensor().Shape, len(data))
	return lease.Release(false)
}
