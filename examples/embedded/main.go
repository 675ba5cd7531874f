// Command embedded is a program that owns memory itself. It does not need poolsvc, because it contains the whole service. It connects to
// its own socket as a client, writes a buffer, and publishes the buffer. Clients in other processes use the buffer without a copy.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func main() {
	socket := flag.String("socket", bridge.DefaultSocket(), "where clients find this program")
	kind := flag.String("kind", string(bridge.Host), "where the memory is: host, device, vmm or pinned")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := serve(ctx, *socket, bridge.Kind(*kind), func() { log.Printf("reading.txt is published; clients find it at %s", *socket) })
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// serve publishes the buffer "reading.txt", and runs the service until ctx ends. When clients can use the buffer, it calls the function
// `published`.
func serve(ctx context.Context, socket string, kind bridge.Kind, published func()) (err error) {
	svc := service.New(service.Config{})
	defer svc.Close()
	srv, err := server.Listen(socket, svc, server.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Close()) }()

	client, err := bridge.Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	pool, err := client.CreatePool(ctx, bridge.PoolSpec{Name: "library", Kind: kind, MaxBytes: 16 << 20})
	if err != nil {
		return err
	}
	text := []byte("one buffer, many readers, no copy")
	lease, err := pool.Allocate(ctx, bridge.Bytes(uint64(len(text))))
	if err != nil {
		return err
	}
	if err := lease.CopyFrom(ctx, 0, text); err != nil {
		return err
	}
	if err := lease.Publish(ctx, bridge.Publication{Name: "reading.txt"}); err != nil {
		return err
	}
	published()
	<-ctx.Done()
	return nil
}
