// The blocks of plain device memory: the interface between memory.c and ipcmem.c.
#ifndef SIMCUDA_SLAB_H
#define SIMCUDA_SLAB_H

#include "sim.h"

struct slab {
    struct slab *next;
    struct backing *backing;
    struct context *ctx;
    uint64_t va, size;
    int used;
};

void ipc_close(struct range *g); // the caller holds sim_mu

#endif
