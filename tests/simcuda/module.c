// Modules: PTX text that names kernels of the simulation. Nothing is compiled. A program cannot find kernels that are
// not in the table in kernel.c or in the table in kernels_pattern.c.
#include "kernel.h"
#include "module.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENTRIES = 64 };

struct module {
    void *handle;
    struct function *entry[MAX_ENTRIES];
    int entries;
    bool library;
};

// PTX begins with a comment or with the directive .version. Any other content (ELF, fat binaries) is for real devices.
static bool is_ptx(const char *image) {
    while (isspace((unsigned char)*image)) image++;
    return (image[0] == '/' && (image[1] == '/' || image[1] == '*')) || strncmp(image, ".version", 8) == 0;
}

static void add_entry(struct module *m, const char *name, size_t length) {
    char copy[128];
    if (length >= sizeof copy || m->entries == MAX_ENTRIES) return;
    memcpy(copy, name, length);
    copy[length] = 0;
    const struct kernel *k = kernel_find(copy);
    if (!k) return;
    struct function *f = calloc(1, sizeof *f);
    if (!f) abort();
    f->kernel = k;
    f->module = m->handle;
    f->handle = handle_new(KIND_FUNCTION, f);
    m->entry[m->entries++] = f;
}

// The load options for the compiler's error log.
enum { ERROR_LOG_BUFFER = 5, ERROR_LOG_BUFFER_SIZE = 6 };
struct options { unsigned int count; const int *keys; void *const *values; };

static void tell(const char *log, struct options o) {
    char *buffer = NULL;
    size_t size = 0;
    for (unsigned i = 0; i < o.count; i++) {
        if (o.keys[i] == ERROR_LOG_BUFFER) buffer = o.values[i];
        if (o.keys[i] == ERROR_LOG_BUFFER_SIZE) size = (size_t)o.values[i];
    }
    if (buffer && size) snprintf(buffer, size, "%s", log);
}

static CUresult load(const char *image, bool library, struct options options, void **out) {
    if (!image || !out) return CUDA_ERROR_INVALID_VALUE;
    if (!is_ptx(image)) return strncmp(image, "\177ELF", 4) == 0 ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_ERROR_INVALID_IMAGE;
    char log[256] = "";
    if (!ptx_check(image, log, sizeof log)) {
        tell(log, options);
        return CUDA_ERROR_INVALID_PTX;
    }
    struct module *m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    m->library = library;
    LOCK();
    m->handle = handle_new(KIND_MODULE, m);
    for (const char *at = image; (at = strstr(at, ".entry")) != NULL;) {
        at += strlen(".entry");
        while (isspace((unsigned char)*at)) at++;
        size_t n = 0;
        while (isalnum((unsigned char)at[n]) || at[n] == '_' || at[n] == '$') n++;
        add_entry(m, at, n);
        at += n;
    }
    bool unknown = m->entries == 0 && strstr(image, ".entry");
    if (unknown) {
        handle_drop(m->handle);
        free(m);
    } else {
        counts_live(LIVE_MODULE, 1);
        *out = m->handle;
    }
    UNLOCK();
    return unknown ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static CUresult unload(void *handle, bool library) {
    LOCK();
    struct module *m = handle_get(KIND_MODULE, handle);
    if (m && m->library != library) m = NULL;
    if (m) {
        for (int i = 0; i < m->entries; i++) {
            handle_drop(m->entry[i]->handle);
            free(m->entry[i]);
        }
        handle_drop(m->handle);
        free(m);
        counts_live(LIVE_MODULE, -1);
    }
    UNLOCK();
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult find(void *handle, const char *name, void **out) {
    if (!name || !out) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct module *m = handle_get(KIND_MODULE, handle);
    CUresult r = m ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; m && i < m->entries; i++) {
        if (strcmp(m->entry[i]->kernel->name, name) != 0) continue;
        *out = m->entry[i]->handle;
        r = CUDA_SUCCESS;
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    ENTER(cuModuleLoadData, NEED_CTX);
    return load(image, false, (struct options){0}, (void **)out);
}

SIM_API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int n, int *options, void **values) {
    ENTER(cuModuleLoadDataEx, NEED_CTX);
    return load(image, false, (struct options){n, options, values}, (void **)out);
}

SIM_API CUresult cuModuleLoad(CUmodule *out, const char *path) {
    ENTER(cuModuleLoad, NEED_CTX);
    if (!out || !path) return CUDA_ERROR_INVALID_VALUE;
    FILE *f = fopen(path, "re");
    if (!f) return CUDA_ERROR_FILE_NOT_FOUND;
    char *text = calloc(1, MIB);
    size_t n = text ? fread(text, 1, MIB - 1, f) : 0;
    fclose(f);
    CUresult r = n ? load(text, false, (struct options){0}, (void **)out) : CUDA_ERROR_INVALID_IMAGE;
    free(text);
    return r;
}

SIM_API CUresult cuModuleUnload(CUmodule module) {
    ENTER(cuModuleUnload, NEED_CTX);
    return unload(module, false);
}

SIM_API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    ENTER(cuModuleGetFunction, NEED_CTX);
    return find(module, name, (void **)out);
}

SIM_API CUresult cuModuleGetLoadingMode(int *mode) {
    ENTER(cuModuleGetLoadingMode, NEED_INIT);
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    *mode = 2; // lazy loading
    return CUDA_SUCCESS;
}

SIM_API CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *jit, void **jit_values, unsigned int jits,
                                   int *options, void **option_values, unsigned int count) {
    ENTER(cuLibraryLoadData, NEED_INIT);
    (void)options, (void)option_values, (void)count;
    return load(image, true, (struct options){jits, jit, jit_values}, (void **)out);
}

SIM_API CUresult cuLibraryUnload(CUlibrary library) {
    ENTER(cuLibraryUnload, NEED_INIT);
    return unload(library, true);
}

SIM_API CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
    ENTER(cuLibraryGetKernel, NEED_INIT);
    return find(library, name, (void **)out);
}

SIM_API CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library) {
    ENTER(cuLibraryGetModule, NEED_CTX);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUmodule)library;
    return CUDA_SUCCESS;
}

// A kernel of a library and its function are one object here, because a caller may use either of them in place of the
// other.
SIM_API CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
    ENTER(cuKernelGetFunction, NEED_CTX);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUfunction)kernel;
    return CUDA_SUCCESS;
}
