// Package pattern fills memory with recognisable values, changes them and finds what differs, at the speed of the memory.
//
// A [Pattern] says what every element ought to be: its Go code is the definition, bit by bit. [Fill], [Verify] and
// [Transform.Apply] do the work on memory of the host with all cores. [Load] brings kernels for the same onto a GPU; they are PTX, kept
// in the binary, which the driver compiles for the GPU that it finds (Volta and newer). Their source is kernels.cu, and
// `make ptx` makes kernels.ptx of it.
//
// [Affine] computes in float64. A data-centre GPU does so at the speed of its memory; one with few float64 units may not.
package pattern
