// Package shmchannel carries the frames of a channel through memory that its members share, as docs/streams.md describes.
//
// A [Host] makes the files of a channel and decides which members take part. A [Producer] publishes records and gets its blocks back. A
// [Consumer] takes frames in the order of their numbers. The host does nothing for a single frame: the host works only when a member joins,
// leaves or dies.
//
// The package knows nothing of sessions, sockets and GPUs. The caller passes file descriptors in. In this package blocks and fences are
// only numbers. The caller knows what the numbers mean.
//
// # Trust
//
// A member can write anything into the memory that it shares. The package checks every number from shared memory before it uses the number.
// A member that writes nonsense can spoil frames, and can end the stream of a member that finds the contradiction ([ErrCorrupt]). A member
// that writes nonsense cannot crash another member, and cannot make another member wait for ever.
//
// # Byte order
//
// The layout is little-endian, and the package reads words in place: it works only on little-endian machines.
package shmchannel
