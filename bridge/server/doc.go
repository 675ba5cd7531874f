// Package server serves a [service.Service] to other processes on a Unix socket. Their clients are those of package bridge and of the Python
// package poolbridge. docs/protocol.md describes the protocol.
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
// The server reads requests, has the service carry them out, and sends the answers. It keeps no state of pools, buffers or channels: that is in
// package service, which does not know the protocol.
package server
