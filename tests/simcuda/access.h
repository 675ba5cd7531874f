// Lets streams access memory, piece by piece. While a stream accesses a piece, the piece is pinned: it stays mapped even if the program
// frees it.
#ifndef SIMCUDA_ACCESS_H
#define SIMCUDA_ACCESS_H

#include "sim.h"

// One side of a copy: an address that the driver knows, or a plain address of the host.
struct side { uint64_t address; bool host; };

CUresult copy_now(struct side dst, struct side src, uint64_t size); // ILLEGAL_ADDRESS if the memory of a side is gone
// Calls fn on each piece of the `size` bytes at `address`. No element is split between two pieces, because ranges are aligned.
CUresult touch(uint64_t address, uint64_t size, void (*fn)(uint8_t *at, uint64_t size, void *arg), void *arg);
void illegal_address(struct stream *s, const char *what, uint64_t address);

#endif
