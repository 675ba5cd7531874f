// Package streammodel explores the protocol of docs/streams.md for small channels. One or two producers, up to two consumers and the
// service take steps in all possible orders. Each step is one access to shared memory. A member may die at any step.
//
// The model is sequentially consistent. It shows whether the order of the steps is right. It does not show whether an implementation uses
// the right memory barriers. The model has no clock: no member wakes up because time has passed, so a lost wake-up is a fault.
//
// Some groups of steps of an implementation are one step in the model, if the result is the same:
//
//   - An implementation repeats some accesses until they succeed, and a failed access has no effect. Such an access takes effect at one
//     moment, so it is one step: setting bit 0 of a futex word, changing the counter of a futex word, storing an entry if it is newer than
//     the stored entry, storing the version in the tail.
//   - Loading several floors is one step, because floors only grow. If all floors have passed a number, the result is that of a single load
//     of all floors at the moment of the last load. If a floor has not passed the number, the result is that of a single load of all floors
//     at the moment at which the first such floor was loaded. Three other groups of loads are one step too: the seats of the roster,
//     because an implementation loads the version of the roster again; the version and the state of the roster; and the N slots of a queue,
//     because no frame enters the slots while the tail does not change.
//   - Loading the entry and the claim of a slot is one step, because a newer entry replaces the old entry only after
//     the frame of the old entry is done.
//   - A frame is in use from the moment at which the consumer has checked the frame until the moment before the consumer releases it.
//
// The comment of alone, in explore.go, lists other steps for which one order is enough. The tests explore mutations (changes of
// the protocol that cause a fault) with the same model.
package streammodel
