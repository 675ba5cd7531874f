// Functions of modules: the interface between module.c and launch.c.
#ifndef SIMCUDA_MODULE_H
#define SIMCUDA_MODULE_H

#include "kernel.h"

struct function {
    void *handle, *module;
    const struct kernel *kernel;
};

// Says whether the text could be PTX. If it could not, the log says why.
bool ptx_check(const char *text, char *log, size_t size);

#endif
