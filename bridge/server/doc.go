// Package server serves a [service.Service] to other processes on a Unix socket. These processes use package bridge or the Python package
// poolbridge as their client. docs/protocol.md describes the protocol.
//
// A program that owns memory makes a service and serves it:
//
//	svc := service.New(service.Config{}) // package github.com/poolbridge/poolbridge/mempool/service
//	defer svc.Close()
//	srv, err := server.Listen(bridge.DefaultSocket(), svc, server.Config{})
//	if err != nil {
//		return err
//	}
//	defer srv.Close()
//
// The server reads requests, calls the service to carry out the requests, and sends the answers. The server keeps no state of pools,
// buffers or channels. Package service keeps this state and does not know the protocol.
package server
