// Package streammodel explores the protocol of docs/streams.md for small channels: one or two producers, two consumers and the
// service take turns in all possible ways. Each turn is one access to shared memory. A member may die at any step.
//
// The model is sequentially consistent. It says whether the order of the steps is right, not whether an implementation uses the right
// barriers. It has no time: no member wakes up because time has passed, so a lost wake-up is a fault.
//
// Some groups of steps of an implementation are one step in the model, if the result is the same:
//
//   - An access that an implementation repeats until it succeeds, and that has no effect if it fails, takes effect at one moment: setting
//     bit 0 of a futex word, changing its counter, storing an entry if it is newer, storing the version of the tail.
//   - Floors only grow. So loads of several floors have the same result as one look at all floors: at the moment of the last load if all
//     floors have passed the number, or else at the moment of the first load of a floor that has not. The same is true for the slots of
//     the roster (an implementation loads its version again), for version and state, and for the N slots of a queue: no frame enters the
//     slots while the tail does not change.
//   - The entry of a slot and its claim: a newer entry comes only after the older frame was done.
//   - A frame is in use from the moment at which the consumer has checked the frame until the moment before the consumer releases it.
//
// The comment of alone, in explore.go, lists other steps that need no interleaving. The mutations are explored with these reductions too.
package streammodel
