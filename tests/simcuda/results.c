// The table of results: names and texts.
#include "sim.h"

#include <string.h>

static const struct { CUresult value; const char *name, *text; } results[] = {
#define E(name, value, text) {value, #name, text},
#include "results.def"
#undef E
};

const char *result_name(CUresult r) {
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (results[i].value == r) return results[i].name;
    }
    return NULL;
}

CUresult result_parse(const char *name) {
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (strcmp(results[i].name, name) == 0) return results[i].value;
        if (strncmp(results[i].name, "CUDA_ERROR_", 11) == 0 && strcmp(results[i].name + 11, name) == 0) {
            return results[i].value;
        }
    }
    return -1;
}

SIM_API CUresult cuGetErrorName(CUresult error, const char **out) {
    ENTER(cuGetErrorName, NEED_NOTHING);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = result_name(error);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuGetErrorString(CUresult error, const char **out) {
    ENTER(cuGetErrorString, NEED_NOTHING);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (results[i].value == error) *out = results[i].text;
    }
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
