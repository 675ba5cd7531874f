// Work on memory, as streams do it: in pieces that are pinned while they are touched.
#ifndef SIMCUDA_ACCESS_H
#define SIMCUDA_ACCESS_H

#include "sim.h"

// One side of a copy: an address that the driver knows, or a plain one of the host.
struct side { uint64_t address; bool host; };

CUresult copy_now(struct side dst, struct side src, uint64_t size); // ILLEGAL_ADDRESS if a side is gone
// Calls fn on each piece of a range; elements of `width` bytes are never split, since ranges are aligned.
CUresult touch(uint64_t address, uint64_t size, void (*fn)(uint8_t *at, uint64_t size, void *arg), void *arg);
void illegal_address(struct stream *s, const char *what, uint64_t address);

#endif
