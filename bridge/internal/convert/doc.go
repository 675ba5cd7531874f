// Package convert converts between the types of package wire and the types of package mempool, and between errors and the codes of the
// protocol. The Go client and the server use package convert. For a type X, the function WireX returns a value of the type in package wire,
// and the function X returns a value of the type in package mempool.
package convert
