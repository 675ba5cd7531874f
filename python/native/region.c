// Divides memory of an arena for PyTorch's CUDAPluggableAllocator. PyTorch calls the functions with a lock of its own, which a thread may wait
// for that has Python's lock. So they run without Python.
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define DEVICES 64
#define ALIGN 512

struct span { // spans of a region lie side by side, in the order of their addresses
    uint64_t at, size;
    bool used;
};

struct region { // memory of one GPU; without spans, there is none
    struct span *spans;
    size_t count, room;
    int (*synchronize)(void *stream); // cuStreamSynchronize
};

static struct region regions[DEVICES];
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static struct region *find(int device) {
    return device >= 0 && device < DEVICES && regions[device].spans ? &regions[device] : NULL;
}

static void merge(struct region *r, size_t i) { // joins the span with the next one, if both are free
    if (i + 1 >= r->count || r->spans[i].used || r->spans[i + 1].used) return;
    r->spans[i].size += r->spans[i + 1].size;
    memmove(&r->spans[i + 1], &r->spans[i + 2], (r->count - i - 2) * sizeof *r->spans);
    r->count--;
}

// Gives a GPU a region. Returns 0; -1: the number of the GPU is not possible; -2: it has a region; -3: no memory.
EXPORT int poolbridge_torch_begin(int device, uint64_t at, uint64_t size, int (*synchronize)(void *)) {
    if (device < 0 || device >= DEVICES) return -1;
    pthread_mutex_lock(&guard);
    int result = regions[device].spans ? -2 : 0;
    struct span *spans = result ? NULL : malloc(16 * sizeof *spans);
    if (!result && !spans) result = -3;
    if (!result) {
        spans[0] = (struct span){at, size, false};
        regions[device] = (struct region){spans, 1, 16, synchronize};
    }
    pthread_mutex_unlock(&guard);
    return result;
}

// Takes a region back. Returns false if parts of it are in use.
EXPORT bool poolbridge_torch_end(int device) {
    pthread_mutex_lock(&guard);
    struct region *r = find(device);
    bool empty = !r || (r->count == 1 && !r->spans[0].used);
    if (r && empty) {
        free(r->spans);
        *r = (struct region){0};
    }
    pthread_mutex_unlock(&guard);
    return empty;
}

// Returns NULL if no part of the region is large enough; PyTorch then frees what it keeps, and tries again.
EXPORT void *poolbridge_torch_alloc(size_t size, int device, void *stream) {
    (void)stream;
    void *result = NULL;
    if (size > SIZE_MAX - ALIGN) return NULL;
    uint64_t wanted = size ? (size + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    pthread_mutex_lock(&guard);
    struct region *r = find(device);
    for (size_t i = 0; r && i < r->count && !result; i++) {
        struct span *s = &r->spans[i];
        if (s->used || s->size < wanted) continue;
        if (s->size > wanted) {
            if (r->count == r->room) {
                struct span *more = realloc(r->spans, 2 * r->room * sizeof *more);
                if (!more) break;
                r->spans = more, r->room *= 2, s = &r->spans[i];
            }
            memmove(s + 1, s, (r->count++ - i) * sizeof *s);
            s[1].at += wanted, s[1].size -= wanted, s->size = wanted;
        }
        s->used = true;
        result = (void *)(uintptr_t)s->at;
    }
    pthread_mutex_unlock(&guard);
    return result;
}

// Frees a part when the stream's work is done, as cudaFree does. If the driver cannot say that, the part stays in use.
EXPORT void poolbridge_torch_free(void *part, size_t size, int device, void *stream) {
    (void)size;
    pthread_mutex_lock(&guard);
    struct region *r = find(device);
    int (*synchronize)(void *) = r ? r->synchronize : NULL;
    pthread_mutex_unlock(&guard);
    if (!synchronize || synchronize(stream)) return;
    pthread_mutex_lock(&guard);
    r = find(device);
    for (size_t i = 0; r && i < r->count; i++) {
        if (r->spans[i].at != (uintptr_t)part || !r->spans[i].used) continue;
        r->spans[i].used = false;
        merge(r, i);
        if (i) merge(r, i - 1);
        break;
    }
    pthread_mutex_unlock(&guard);
}
