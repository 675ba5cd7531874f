// Looks up functions. cuGetProcAddress finds a function by its base name and a CUDA version.
#include "sim.h"
#include "symbols.h"

#include <string.h>

const char *const fn_names[FN_COUNT] = {
#define B(base) #base,
#define S(base, symbol, since)
#define F(base, since) B(base)
#include "functions.def"
#undef F
#undef S
#undef B
};

enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };
enum { NEWEST = 13000 };

static int look_up(const char *name, int version, void **out) {
    const struct symbol *best = NULL;
    bool known = false;
    for (int i = 0; i < symbol_count; i++) {
        const struct symbol *s = &symbols[i];
        if (strcmp(s->base, name) != 0) continue;
        known = true;
        if (s->since <= version && (!best || s->since > best->since)) best = s;
    }
    *out = best ? best->address : NULL;
    return best ? FOUND : known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
}

static CUresult get(const char *name, void **out, int version, int *status) {
    if (!name || !out || version > NEWEST) return CUDA_ERROR_INVALID_VALUE;
    int found = look_up(name, version, out);
    if (status) *status = found;
    return found == FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SIM_API CUresult cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags) {
    ENTER(cuGetProcAddress, NEED_NOTHING);
    (void)flags;
    return get(symbol, out, version, NULL);
}

SIM_API CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags, int *status) {
    ENTER(cuGetProcAddress, NEED_NOTHING);
    (void)flags;
    CUresult r = get(symbol, out, version, status);
    // Measured: if a function is missing, the call still succeeds. Only the null pointer and the status say that it is missing.
    return r == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : r;
}

// NVIDIA's own libraries ask for tables of functions without names. The simulation has no such tables. Some libraries (libnvrtc)
// then call a null pointer, and do not report an error.
SIM_API CUresult cuGetExportTable(const void **out, const CUuuid *id) {
    ENTER(cuGetExportTable, NEED_NOTHING);
    if (!out || !id) return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
