package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// serve starts a service in this process. A program usually uses a service that runs already, at [bridge.DefaultSocket].
func serve() (socket string, stop func()) {
	dir, err := os.MkdirTemp("", "pb")
	check(err)
	socket = filepath.Join(dir, "poolsvc.sock")
	svc := service.New(service.Config{})
	srv, err := server.Listen(socket, svc, server.Config{Log: slog.New(slog.DiscardHandler)})
	check(err)
	return socket, func() {
		check(srv.Close())
		svc.Close()
		check(os.RemoveAll(dir))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// One program allocates a buffer, writes to the buffer and publishes it. Another program leases the buffer by its name and uses the same
// memory.
func Example() {
	ctx := context.Background()
	socket, stop := serve() // a program uses bridge.DefaultSocket(), and `poolsvc serve` runs the service
	defer stop()

	producer, err := bridge.Dial(ctx, socket)
	check(err)
	defer producer.Close()
	pool, err := producer.EnsurePool(ctx, bridge.PoolSpec{Name: "demo", Kind: bridge.Host, MaxBytes: 1 << 20}) // bridge.Device: of a GPU
	check(err)
	written, err := pool.Allocate(ctx, bridge.Tensor{DType: bridge.Uint8, Shape: []uint64{5}})
	check(err)
	check(written.CopyFrom(ctx, 0, []byte("hello")))
	check(written.Publish(ctx, bridge.Publication{Name: "greeting"}))

	consumer, err := bridge.Dial(ctx, socket)
	check(err)
	defer consumer.Close()
	lease, err := consumer.Get(ctx, "greeting", bridge.LeaseOptions{}) // waits until it is published
	check(err)
	data, err := lease.Bytes(ctx) // must not be used after Release
	check(err)
	fmt.Printf("%s, %v\n", data, lease.Tensor().Shape)
	check(lease.Release(false))
	// Output: hello, [5]
}

// A deadline limits how long a call waits. The error says that the deadline has passed, and what the call waited for.
func ExampleClient_Get() {
	socket, stop := serve()
	defer stop()
	client, err := bridge.Dial(context.Background(), socket)
	check(err)
	defer client.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err = client.Get(ctx, "weights", bridge.LeaseOptions{})
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}

// Calls that begin with Try do not wait.
func ExampleClient_TryGet() {
	ctx := context.Background()
	socket, stop := serve()
	defer stop()
	client, err := bridge.Dial(ctx, socket)
	check(err)
	defer client.Close()

	lease, err := client.TryGet(ctx, "weights", bridge.LeaseOptions{})
	switch {
	case errors.Is(err, bridge.ErrNotFound):
		fmt.Println("nothing is published as weights")
	case errors.Is(err, bridge.ErrBusy):
		fmt.Println("another client writes it")
	case err == nil:
		check(lease.Release(false))
	}
	// Output: nothing is published as weights
}

// Dial returns an error at once if no service runs. Dialer.Wait makes it wait for the service.
func ExampleDial() {
	_, err := bridge.Dial(context.Background(), filepath.Join(os.TempDir(), "no-such-folder", "poolsvc.sock"))
	fmt.Println(errors.Is(err, bridge.ErrNotRunning))
	// Output: true
}

// A program that outlives its service connects again, and begins again.
func ExampleDialer() {
	socket, stop := serve()
	work := func(ctx context.Context, client *bridge.Client) error { // opens what it needs, and uses it
		stop() // here, the service ends meanwhile
		_, err := client.Stats(ctx)
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	for {
		client, err := bridge.Dialer{Wait: true}.Dial(ctx, socket)
		if err == nil {
			err = errors.Join(work(ctx, client), client.Close())
		}
		if !errors.Is(err, bridge.ErrDisconnected) { // the work is done, or the context ended while no service ran
			fmt.Println(errors.Is(err, context.DeadlineExceeded))
			return
		}
	}
	// Output: true
}

// A producer publishes frames, and a consumer takes them. A channel may have many producers and consumers, in different processes.
func ExampleChannel_Frames() {
	ctx := context.Background()
	socket, stop := serve()
	defer stop()
	producer, err := bridge.Dial(ctx, socket)
	check(err)
	defer producer.Close()
	pool, err := producer.EnsurePool(ctx, bridge.PoolSpec{Name: "frames", Kind: bridge.Host, MaxBytes: 1 << 20})
	check(err)
	camera, err := producer.CreateChannel(ctx, bridge.ChannelSpec{Name: "camera", Pool: pool.Info().ID, Mode: bridge.WorkQueue, Capacity: 4})
	check(err)
	publisher, err := camera.Publisher(ctx, bridge.Bytes(16))
	check(err)
	defer publisher.Close()
	for n := range byte(3) {
		lease, err := publisher.Loan(ctx) // waits for memory that consumers release
		check(err)
		check(lease.Fill(ctx, 0, 16, n))
		_, err = publisher.Publish(ctx, lease, bridge.FrameOptions{}) // waits for room; the loan has ended
		check(err)
	}

	consumer, err := bridge.Dial(ctx, socket)
	check(err)
	defer consumer.Close()
	frames, err := consumer.OpenChannel(ctx, "camera") // waits for the channel
	check(err)
	for frame, err := range frames.Frames(ctx, bridge.SubscribeOptions{}) { // ends when the channel is closed
		check(err)
		data, err := frame.Lease.Bytes(ctx)
		check(err)
		fmt.Println(frame.Seq, data[0])
		check(frame.Release()) // its memory may be used again
		if frame.Seq == 3 {
			check(camera.Close(ctx))
		}
	}
	// Output:
	// 1 0
	// 2 1
	// 3 2
}

// A producer that must not wait for its consumers drops a frame if the channel is full.
func ExampleChannel_TryPublish() {
	ctx := context.Background()
	socket, stop := serve()
	defer stop()
	client, err := bridge.Dial(ctx, socket)
	check(err)
	defer client.Close()
	pool, err := client.EnsurePool(ctx, bridge.PoolSpec{Name: "frames", Kind: bridge.Host, MaxBytes: 1 << 20})
	check(err)
	jobs, err := client.CreateChannel(ctx, bridge.ChannelSpec{Name: "jobs", Pool: pool.Info().ID, Mode: bridge.WorkQueue, Capacity: 1})
	check(err)
	for range 2 {
		lease, err := pool.Allocate(ctx, bridge.Bytes(16))
		check(err)
		if _, err = jobs.TryPublish(ctx, lease, bridge.FrameOptions{}); errors.Is(err, bridge.ErrLimit) {
			fmt.Println("the channel is full")
			err = lease.Release(true) // the buffer was not published, so its lease is still valid
		}
		check(err)
	}
	// Output: the channel is full
}

// A program publishes a buffer before its content is complete. Readers wait for the fence that the program passes to Publish. If the
// program cannot complete the content, it calls Clock.Fail instead of Clock.Reach, and readers get [bridge.ErrContentFailed].
func ExampleClient_Clock() {
	ctx := context.Background()
	socket, stop := serve()
	defer stop()
	client, err := bridge.Dial(ctx, socket)
	check(err)
	defer client.Close()
	pool, err := client.CreatePool(ctx, bridge.PoolSpec{Name: "demo", Kind: bridge.Host, MaxBytes: 1 << 20})
	check(err)
	lease, err := pool.Allocate(ctx, bridge.Bytes(4))
	check(err)
	memory, err := lease.Bytes(ctx)
	check(err)

	clock, err := client.Clock(ctx)
	check(err)
	word, err := clock.Word(ctx)
	check(err)
	ready := clock.Next(word)
	check(lease.Publish(ctx, bridge.Publication{Name: "result", Completion: bridge.Completion{Ready: &ready}}))

	reader, err := client.Get(ctx, "result", bridge.LeaseOptions{})
	check(err)
	go func() {
		copy(memory, "done")
		check(clock.Reach(ready)) // the content is complete
	}()
	text := make([]byte, 4)
	check(reader.CopyTo(ctx, text, 0)) // waits for the fence
	fmt.Println(string(text))
	// Output: done
}

// A program compares errors with errors.Is. The text of an error says what was expected, what came instead and what the user can do.
func ExampleCode() {
	ctx := context.Background()
	socket, stop := serve()
	defer stop()
	client, err := bridge.Dial(ctx, socket)
	check(err)
	defer client.Close()
	_, err = client.TryGet(ctx, "nothing", bridge.LeaseOptions{})
	fmt.Println(bridge.Code(err))
	// Output: not-found
}
