// Package wire holds the messages of protocol version 1: one Go struct for each structure, request, reply and notice
// of docs/protocol.md, and their byte-exact encoding. The package knows nothing of sockets, sessions or memory. The structs are in
// messages.go. A generator makes messages_gen.go, the messages of the Python client, the public types of the entries of lists and the lists
// of docs/protocol.md from messages.go.
//
// The package decodes a packet from a peer only after [Check] has accepted the packet. Check allocates no memory, and never reads past the
// packet's end, even if the packet states greater lengths. Decoding a checked packet allocates no more than a small multiple of the
// packet's size. A decoded message does not refer to the packet, so the caller may use the packet's buffer again.
//
// This package checks the form of a packet: types, limits of the encoding, required keys. The receiver checks whether a name, a shape or an
// id is valid. limits.go is the source of limits that Go, Python and C share.
package wire
