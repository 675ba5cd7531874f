// Package pattern fills memory with known values, transforms the values, and finds elements with
// wrong values. This takes about as long as it takes to read or write the memory once.
//
// A [Pattern] defines the value of every element, bit by bit, in Go. [Fill], [Verify] and
// [Transform.Apply] work on host memory, and use all cores of the CPU. [Load] loads kernels that do
// the same on a GPU. The program contains the kernels as PTX code, and the driver compiles this
// code for the GPU (Volta or newer). The source of the kernels is kernels.cu, and `make ptx`
// compiles it to kernels.ptx.
//
// [Affine] computes in float64. A data-centre GPU computes this as fast as it reads or writes its
// memory. A GPU with few float64 units may be slower.
package pattern
