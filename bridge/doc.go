// Package bridge lets other processes use the memory of a [service.Service]: a server and a Go client that speak the
// protocol of docs/protocol.md over a Unix socket. It knows nothing of CUDA: package mempool maps memory, and package service
// does the work. The client does not need the latter.
//
// A program that owns memory makes a service and serves it:
//
//	svc := service.New(service.Config{})
//	server, err := bridge.Listen(bridge.DefaultSocket(), svc, bridge.ServerConfig{})
//
// A program that uses it dials:
//
//	client, err := bridge.Dial(ctx, bridge.DefaultSocket())
package bridge
