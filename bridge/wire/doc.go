// Package wire holds the messages of protocol version 1: one Go struct for each structure, request, reply and notice
// of docs/protocol.md, and their byte-exact encoding. The package knows nothing of sockets, sessions or memory. The structs are in
// messages.go. A generator makes messages_gen.go, the messages of the Python client and the tables of docs/protocol.md from messages.go.
//
// A packet from a peer is decoded only after [Check] has accepted it. Check allocates nothing, and reads no further than the packet's end,
// even if the packet states greater lengths. Decoding a checked packet allocates no more than a small multiple of its size. A decoded
// message does not refer to the packet, so the packet's buffer may be used again.
//
// This package checks the form: types, limits of encoding, required keys. The receiver checks whether a name, a shape or an id
// is valid; [MaxDims] and [MaxNameBytes] are here so that all receivers use the same numbers.
package wire
