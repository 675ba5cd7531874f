package wire

// This file is the only source of the numbers on which Go, Python and C must agree. A line "//wire:limits PLACE …" says which places a group
// of numbers is for, besides this package: seqpacket (bridge/seqpacket), mempool, shmchannel (internal/shmchannel), python
// (python/poolbridge/_wire/limits.py) and c (python/native/limits.h). go generate writes the files there.

// These are the limits of protocol version 1. A packet that exceeds one of these limits is malformed. Check refuses such a packet, and the
// Append functions never make one.
//
//wire:limits python
const (
	MaxPacket  = 65536     // bytes of a packet
	MaxDepth   = 8         // nested maps and arrays, including the packet's outermost map
	MaxEntries = 64        // entries of a map
	MaxString  = 4096      // bytes of a string or a key
	MaxBinary  = 4096      // bytes of a binary
	MaxUint    = 1<<63 - 1 // greatest unsigned integer
	MaxQuery   = 1<<32 - 1 // greatest request number

	Version = 1 // the protocol version
)

// The native module reads layouts.
//
//wire:limits python c
const (
	MaxElements = 1024 // elements of an array
)

// Package seqpacket refuses a packet with more descriptors.
//
//wire:limits seqpacket python
const (
	MaxFDs = 8 // file descriptors with a packet
)

// A packet whose tensor or name exceeds its limit is well-formed, and the receiver answers with [CodeInvalid].
//
//wire:limits mempool python
const (
	MaxNameBytes   = 255 // bytes of the name of a pool, channel or buffer
	MaxDone        = 16  // fences of a release
	MaxReasonBytes = 256 // bytes of the reason for which a fence failed
	SavedVersion   = 1   // version of the file that says where a published buffer is

	MaxLayoutBytes = 1 << 25 // bytes of the layout of a buffer
)

// These are limits of the pages of lists.
const (
	MaxList   = 64 // entries of a page of a list
	MaxEvents = 32 // entries of a page of events
)

// The service leaves out further sessions.
//
//wire:limits mempool
const (
	MaxReaders = 8 // sessions in the field Readers of the entry of a buffer
)

// These are limits of frames and channels.
//
//wire:limits mempool shmchannel python c
const (
	MaxDims       = 32        // dimensions of a tensor
	TimelineWords = 512       // words of a timeline
	MaxFenceValue = 1<<62 - 1 // greatest value of a fence
	MaxCapacity   = 1024      // frames that a channel keeps
	MaxConsumers  = 1024      // consumers of a channel
	MaxDelivery   = 65535     // greatest count of deliveries of a frame; the count stops there
)

// These are limits of the meta of frames.
//
//wire:limits shmchannel python c
const (
	MaxMetaBytes = 8320 // bytes of a frame's meta, in MessagePack
	MaxMetaDepth = 8    // nested maps and arrays of a frame's meta, including the outermost map
)

// These are the numbers of docs/streams.md.
//
//wire:limits shmchannel python c
const (
	EventBytes = 64  // bytes of the handle of an interprocess event
	MaxInHand  = 256 // frames that a consumer may have in hand, and entries of its holds
	MinSlots   = 64  // least number of slots of a ring

	LayoutBytes = 65536 // bytes of the layout of a frame of several arrays
)

// These numbers of docs/streams.md are for the members' memory.
//
//wire:limits shmchannel c
const (
	MaxSlots     = 1 << 16   // greatest number of slots of a ring
	MaxProducers = 63        // producers of a channel; a producer that left counts while the channel keeps one of its frames
	MaxNumber    = 1<<48 - 1 // greatest number of a frame

	RosterBytes      = 73728 // bytes of a roster
	HeadBytes        = 8192  // bytes of a sequencer or a cursor without the part that grows with the slots
	RecordBytes      = 64    // bytes of a record in a track
	DescriptionBytes = 576   // bytes of a description in a track
	MetaBytes        = 8448  // bytes of the event and the meta of a frame in a track
)
