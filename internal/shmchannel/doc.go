// Package shmchannel passes the frames of a channel from producers to consumers through memory that the members of the channel share. See
// docs/streams.md.
//
// A [Host] makes the files of a channel and decides which members take part. A [Producer] publishes records. Each
// names the memory of a frame: a block, or a chunk of an arena in a block. The producer gets the memory back when no consumer needs it. A [Consumer] takes frames in the order of their numbers. The
// host does no work for each frame. It works only when a member joins, leaves or dies.
//
// The package does not use sessions, sockets or GPUs. The caller passes file descriptors to the package. In this package, blocks and
// fences are only numbers, and only the caller knows what the numbers mean.
//
// # Trust
//
// A member can write anything into the memory that it shares. The package checks every number from shared memory before it uses the number.
// A member that writes wrong numbers can damage frames. If another member finds that the numbers contradict each other, this other member
// returns [ErrCorrupt] and can take or publish no more frames. But a member that writes wrong numbers cannot crash another member, and
// cannot make another member wait for ever.
//
// # Byte order
//
// All words in the shared memory are little-endian, and the package reads them without a conversion. So it works only on little-endian
// machines.
package shmchannel
