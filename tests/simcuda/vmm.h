// Virtual memory management: the interface of the files that make, map and share physical memory.
#ifndef SIMCUDA_VMM_H
#define SIMCUDA_VMM_H

#include "sim.h"

struct physical {
    void *handle; // stays the same while the memory lives, even if the handle was released and the memory is only mapped
    struct backing *backing;
    CUmemAllocationProp prop;
    uint64_t size;
    int refs, maps;
    bool imported;
};

#define VMM_GRANULARITY (2 * MIB)

struct physical *physical_get(CUmemGenericAllocationHandle handle);
bool reservation_of(uint64_t address, uint64_t *start, uint64_t *size);
void physical_settle(struct physical *p); // frees the memory if nothing uses it any more

#endif
