// Package wire holds the messages of protocol version 1: one Go struct for each structure, request, reply and notice
// of docs/protocol.md, and their byte-exact encoding. It knows nothing of sockets, sessions or memory. The structs stand in
// messages.go, from which the rest is generated, the messages of the Python client and the tables of the page too.
//
// Nothing that came from a peer is decoded before [Check] has walked it: Check allocates nothing and believes no length
// beyond the bytes that are there. Decoding a checked packet allocates no more than a small multiple of its size.
// A decoded message keeps nothing of the packet, whose buffer may be used again.
//
// The wire package checks form: types, limits of encoding, required keys. Whether a name, a shape or an id makes sense
// is for the receiver to decide; [MaxDims] and [MaxNameBytes] are here so that all agree on the numbers.
package wire
