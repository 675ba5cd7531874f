// Package shmchannel carries the frames of a channel through memory that its members share, as docs/streams.md describes.
//
// A [Host] makes the files of a channel and decides who takes part. A [Producer] publishes records, and gets its blocks back.
// A [Consumer] takes frames, in the order of their numbers. The host is not needed for a frame: it works only when a member
// joins, leaves or dies.
//
// The package knows no sessions, no sockets and no GPU. File descriptors reach it by other means, a block is a number, and so
// is a fence: its owner knows what they stand for.
//
// # Trust
//
// Members can write what they like into the memory that they share. Every number from there is checked before it is used. A
// member that lies can spoil frames, and can end the stream of those who find the contradiction ([ErrCorrupt]); it cannot
// crash them, and it cannot make them wait for ever.
//
// # Byte order
//
// The layout is little-endian, and words are read in place: the package is for little-endian machines.
package shmchannel
