// Package pattern fills memory with known values, transforms them, and finds elements that differ,
// at the speed of the memory.
//
// A [Pattern] defines the value of every element, bit by bit, in Go. [Fill], [Verify] and
// [Transform.Apply] work on host memory with all cores. [Load] loads kernels that do the same on a
// GPU. The kernels are PTX code in the binary, which the driver compiles for the GPU (Volta or
// newer). Their source is kernels.cu, and `make ptx` compiles it to kernels.ptx.
//
// [Affine] computes in float64. A data-centre GPU does this at the speed of its memory. A GPU with
// few float64 units may be slower.
package pattern
