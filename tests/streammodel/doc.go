// Package streammodel explores the protocol of docs/streams.md for small channels: one or two producers, two consumers and the
// service take turns in all possible ways, each turn one access to shared memory, and a member may die at any step.
//
// The model is sequentially consistent. It says whether the order of the steps is right, not whether an implementation uses the right
// barriers. It knows no time: nobody wakes up because a time has passed, so a wake-up that is lost is a fault.
//
// Steps are one in the model, and several in an implementation, where that makes no difference:
//
//   - An access that is tried until it succeeds, and does nothing else if it fails, takes effect at one moment: to set bit 0 of a futex
//     word, to move it on, to store an entry if it is older, to store the version of the tail.
//   - Floors only grow, so that loads of several floors say what one look at the moment of the last (all have passed) or of the first
//     that has not passed would say. The same goes for the slots of the roster, whose version is loaded again, for version and state,
//     and for the N slots of a queue, which do not come into use while the tail stands still.
//   - The entry of a slot and its claim: a newer entry comes only after the older frame was done.
//   - A frame is in use from the moment in which the consumer has found it sound to the moment before it lets go.
//
// The method alone says which other steps need no interleaving. Mutations are explored with the same reductions.
package streammodel
