// Package streams has the service's end of what processes share with each other: the memory of channels and their members, and the pages of
// timelines. The records of these things are in package ledger: a [Stream] and [Timelines] find them there, and change them together with
// the memory. Members write this memory, so nothing in it is trusted. The package has no locks, and knows nothing of the service: the caller
// of its methods holds the lock that guards the ledger.
package streams
