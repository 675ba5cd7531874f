// Package bridge lets other processes use the memory of a [service.Service]. It has a server and a Go client that speak the protocol of
// docs/protocol.md over a Unix socket. It contains no CUDA: package mempool maps memory, and package service does the server's work. The
// client does not need package service.
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
