// The kernels that the simulation can run. Two tables, in kernel.c and kernels_pattern.c, have the name and the C function of each kernel.
#ifndef SIMCUDA_KERNEL_H
#define SIMCUDA_KERNEL_H

#include "access.h"

enum { MAX_PARAMS = 8 };

struct launch {
    struct stream *stream;
    uint64_t threads; // threads of the whole grid
    uint64_t param[MAX_PARAMS]; // the low bytes of each entry have the value
};

struct kernel {
    const char *name;
    int params;
    unsigned char size[MAX_PARAMS]; // bytes of each parameter
    CUresult (*run)(const struct launch *l); // an error becomes the sticky error of the context
};

const struct kernel *kernel_find(const char *name);
extern const struct kernel pattern_kernels[]; // the last entry has the name NULL

// Calls fn on each piece of the `size` bytes at `address`, if the context of the launch l has access to them. If this function returns an
// error, the kernel must return this error.
CUresult kernel_memory(const struct launch *l, uint64_t address, uint64_t size, enum access access,
                       void (*fn)(uint8_t *at, uint64_t size, void *arg), void *arg);
uint64_t kernel_now(void); // the time in nanoseconds
CUresult kernel_spin(const struct launch *l); // keeps the stream busy; the parameter is the time in nanoseconds

#endif
