// Device addresses. All of them are in one large part of the address space, which the CPU cannot touch. So a program that
// dereferences a device pointer on the CPU crashes, as it would with a GPU (SIMCUDA_HOST_ACCESS=1 allows the access).
// The program's own memory never gets an address that device memory had.
#include "sim.h"

#include <stdlib.h>
#include <sys/mman.h>

#ifndef ARENA_BYTES
#define ARENA_BYTES ((uint64_t)16 << 40)
#endif

struct taken { struct taken *next; uint64_t start, size; };
static struct taken *first, *spoiled;
static uint64_t arena, arena_size, cursor;

static void open_arena(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (arena_size = ARENA_BYTES; arena_size >= 1024 * MIB; arena_size /= 2) {
        void *at = mmap(NULL, arena_size, PROT_NONE, flags, -1, 0);
        if (at == MAP_FAILED) continue;
        arena = cursor = (uint64_t)at;
        return;
    }
    abort();
}

bool va_is_device(uint64_t address) { return arena && address - arena < arena_size; }

// Returns the first address, from `from` on, at which `size` bytes are free; 0: there is no such address.
static uint64_t fit(uint64_t from, uint64_t size, uint64_t align) {
    uint64_t at = (from + align - 1) / align * align;
    for (struct taken *t = first; t; t = t->next) {
        if (t->start + t->size <= at) continue;
        if (t->start >= at + size) break;
        at = (t->start + t->size + align - 1) / align * align;
    }
    return at + size <= arena + arena_size ? at : 0;
}

uint64_t va_reserve(uint64_t size, uint64_t align, uint64_t hint) {
    if (!arena) open_arena();
    if (align < 2 * MIB) align = 2 * MIB;
    uint64_t at = 0;
    if (va_is_device(hint) && hint % align == 0 && fit(hint, size, align) == hint) at = hint;
    // The search begins after the range that was reserved last, so that a freed address is not used again soon.
    if (!at) at = fit(cursor, size, align);
    if (!at) at = fit(arena, size, align);
    if (!at) return 0;
    struct taken *t = malloc(sizeof *t);
    if (!t) abort();
    struct taken **link = &first;
    while (*link && (*link)->start < at) link = &(*link)->next;
    *t = (struct taken){*link, at, size};
    *link = t;
    cursor = at + size;
    return at;
}

void va_release(uint64_t at, uint64_t size) {
    va_hide(at, size);
    for (struct taken **link = &first; *link; link = &(*link)->next) {
        if ((*link)->start != at) continue;
        struct taken *t = *link;
        *link = t->next;
        free(t);
        return;
    }
}

void va_spoil(uint64_t at, uint64_t size) {
    struct taken *t = malloc(sizeof *t);
    if (!t) abort();
    *t = (struct taken){spoiled, at, size};
    spoiled = t;
    cursor = at;
}

bool va_is_spoiled(uint64_t at, uint64_t size) {
    for (struct taken *t = spoiled; t; t = t->next) {
        if (t->start < at + size && at < t->start + t->size) return true;
    }
    return false;
}

// Lets the CPU access host memory at its device address, as on any machine with unified addressing.
bool va_expose(uint64_t at, struct backing *b, uint64_t offset, uint64_t size) {
    if (!b->host && !config.host_access) return true;
    off_t in_file = (off_t)(b->header->header_size + offset);
    int protection = PROT_READ | (b->readonly ? 0 : PROT_WRITE);
    int flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
    return mmap((void *)at, size, protection, flags, b->fd, in_file) != MAP_FAILED;
}

void va_hide(uint64_t at, uint64_t size) {
    mmap((void *)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
