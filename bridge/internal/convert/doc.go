// Package convert converts between the types of package wire and the types of package mempool, and between errors and the codes of the
// protocol. The Go client and the server use package convert. A function WireX returns a type of package wire, and the function X returns
// the type of package mempool.
package convert
