// Package convert converts between the types of package wire and those of package mempool, and between errors and the codes of the protocol.
// The Go client and the server use it. A function WireX returns a type of package wire, and X returns the type of package mempool.
package convert
