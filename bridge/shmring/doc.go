// Package shmring carries packets between two processes through shared memory, one direction in each of two files.
//
// Each file has one writer, who owns it, and one reader, who maps it read-only: nothing that the one does can corrupt
// what the other relies on. A reader copies a packet before it looks at it, and trusts no number that it finds.
//
// The layout is in docs/protocol.md. Nothing here sleeps or wakes anybody: a reader says that it is about to sleep, and
// the writer is told that the reader has to be woken, by whatever means the two have.
package shmring
