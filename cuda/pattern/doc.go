// Package pattern fills memory with known values, transforms the values, and finds elements with wrong values. Each of these steps takes about
// as long as reading or writing the memory once.
//
// A [Pattern] defines the value of every element, bit by bit, in Go. [Fill], [Verify] and [Transform.Apply] work on host memory, and use all
// cores of the CPU. [Load] loads kernels that do the same on a GPU. This package contains the kernels as PTX code, and the driver compiles this
// code for the GPU (of the Volta generation or a later one). The source of the kernels is kernels.cu, and `make ptx` compiles it to kernels.ptx.
//
// [Affine] computes in float64. A data-centre GPU does this computation as fast as it reads or writes its memory. A GPU with few float64 units
// may need more time for the computation than for the memory.
package pattern
