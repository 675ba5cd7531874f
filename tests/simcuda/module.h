// Functions of modules, between module.c and launch.c.
#ifndef SIMCUDA_MODULE_H
#define SIMCUDA_MODULE_H

#include "kernel.h"

struct function {
    void *handle, *module;
    const struct kernel *kernel;
};

#endif
