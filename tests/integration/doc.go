// Package integration tests the built poolsvc, in a separate process, with real Python workers. The tests use no code of the service.
package integration
