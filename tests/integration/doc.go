// Package integration tests the built poolsvc with real Python workers: black box, over the socket.
package integration
