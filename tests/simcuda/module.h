// Functions of modules: the interface between module.c and launch.c.
#ifndef SIMCUDA_MODULE_H
#define SIMCUDA_MODULE_H

#include "kernel.h"

struct function {
    void *handle, *module;
    const struct kernel *kernel;
};

// Returns whether the text can be PTX. If it cannot, the function writes the reason into `log`.
bool ptx_check(const char *text, char *log, size_t size);

#endif
