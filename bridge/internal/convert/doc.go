// Package convert converts between the types of package wire and those of package mempool, and between errors and the codes of the protocol.
// The Go client and the server use it. A function WireX returns the form of the wire, and X returns mempool's.
package convert
