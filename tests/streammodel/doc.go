// Package streammodel explores every interleaving of the protocol of docs/streams.md for small channels: a few producers, consumers
// and the service take turns in all possible ways, each turn one atomic access to shared memory, and anybody may die at any step.
//
// The model is sequentially consistent. It says whether the order of the steps is right, not whether an implementation uses the right
// fences.
package streammodel
