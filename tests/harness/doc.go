// Package harness has what the tests of package bridge and of package server share: a client that sends any request, a log that tests can
// wait on, and paths for sockets.
package harness
