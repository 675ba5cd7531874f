// Package streammodel explores the protocol of docs/streams.md for small channels: one or two producers, two consumers and the
// service take turns in all possible ways; each turn is one access to shared memory. A member may die at any step.
//
// The model is sequentially consistent. It says whether the order of the steps is right, not whether an implementation uses the right
// barriers. It has no time: no member wakes up because time has passed, so a lost wake-up is a fault.
//
// Some steps of an implementation are one step in the model, where that makes no difference:
//
//   - An access that is tried until it succeeds, and does nothing else if it fails, takes effect at one moment: setting bit 0 of a futex
//     word, changing its counter, storing an entry if it is older, storing the version of the tail.
//   - Floors only grow. So loads of several floors have the same result as one look at all of them, at the moment of the last load if all
//     have passed, or of the first that has not. The same is true for the slots of the roster, whose version is loaded again, for version and state,
//     and for the N slots of a queue, which no frame enters while the tail does not change.
//   - The entry of a slot and its claim: a newer entry comes only after the older frame was done.
//   - A frame is in use from the moment at which the consumer has checked it until the moment before it releases it.
//
// The comment of alone, in explore.go, lists other steps that need no interleaving. Mutations are explored with the same reductions.
package streammodel
