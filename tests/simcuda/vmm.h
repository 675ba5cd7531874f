// Virtual memory management: physical memory, for the files that make, map and share it.
#ifndef SIMCUDA_VMM_H
#define SIMCUDA_VMM_H

#include "sim.h"

struct physical {
    void *handle; // the same as long as it lives, also if it was released and is only mapped
    struct backing *backing;
    CUmemAllocationProp prop;
    uint64_t size;
    int refs, maps;
    bool imported;
};

#define VMM_GRANULARITY (2 * MIB)

struct physical *physical_get(CUmemGenericAllocationHandle handle);
bool reservation_of(uint64_t address, uint64_t *start, uint64_t *size);
void physical_settle(struct physical *p); // frees it if it is not used any more

#endif
