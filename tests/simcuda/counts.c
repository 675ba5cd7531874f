// Counts the calls of each function, and the living objects of each sort. Each process has a mapped file with its
// counts, so a test can read them while the process runs and after it was killed.
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct entry {
    char name[48];
    _Atomic uint64_t calls;
    uint64_t zero;
};
struct file {
    char magic[8]; // "SIMCOUNT"
    uint32_t version, entries;
    int64_t pid;
    uint64_t zero[5];
    struct entry entry[];
};
_Static_assert(sizeof(struct entry) == 64 && sizeof(struct file) == 64, "counts layout");

enum { ALL = 0, FIRST_CALL = 1, FIRST_GAUGE = FIRST_CALL + FN_COUNT, ENTRIES = FIRST_GAUGE + LIVE_COUNT };
static struct { struct file file; struct entry room[ENTRIES]; } own;
static struct file *counts = &own.file;

const char *const gauge_names[LIVE_COUNT] = {
    [LIVE_CONTEXT] = "context", [LIVE_STREAM] = "stream", [LIVE_EVENT] = "event", [LIVE_POOL] = "pool",
    [LIVE_POOL_IMPORT] = "imported pool", [LIVE_POINTER] = "pool allocation",
    [LIVE_POINTER_IMPORT] = "imported pointer", [LIVE_LINEAR] = "device allocation",
    [LIVE_IPC] = "opened legacy handle", [LIVE_PHYSICAL] = "physical allocation", [LIVE_MAPPING] = "mapping",
    [LIVE_RESERVATION] = "address reservation", [LIVE_HOST_ALLOC] = "pinned host allocation",
    [LIVE_HOST_REGISTERED] = "registered host memory", [LIVE_MODULE] = "module",
};

void counts_open(void) {
    const char *dir = getenv("SIMCUDA_COUNTS");
    if (dir && *dir) {
        char path[512];
        snprintf(path, sizeof path, "%s/%d.counts", dir, getpid());
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        size_t size = sizeof own;
        if (fd >= 0 && ftruncate(fd, (off_t)size) == 0) {
            void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (at != MAP_FAILED) counts = at;
        }
        if (fd >= 0) close(fd);
        if (counts == &own.file) fprintf(stderr, "simcuda: cannot write counts to %s\n", path);
    }
    counts->version = 1;
    counts->entries = ENTRIES;
    counts->pid = getpid();
    strcpy(counts->entry[ALL].name, "*");
    for (int i = 0; i < FN_COUNT; i++) snprintf(counts->entry[FIRST_CALL + i].name, 48, "%s", fn_names[i]);
    for (int i = 0; i < LIVE_COUNT; i++) snprintf(counts->entry[FIRST_GAUGE + i].name, 48, "live:%s", gauge_names[i]);
    memcpy(counts->magic, "SIMCOUNT", 8);
}

static atomic_bool stale;

// A child that was forked before any use of the driver has its own counts, from its first call on.
void counts_forked(void) { stale = true; }

void counts_call(enum fn fn) {
    if (atomic_load_explicit(&stale, memory_order_relaxed) && atomic_exchange(&stale, false)) {
        counts = &own.file;
        counts_open();
    }
    atomic_fetch_add_explicit(&counts->entry[ALL].calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&counts->entry[FIRST_CALL + fn].calls, 1, memory_order_relaxed);
}

void counts_live(enum gauge gauge, int delta) {
    atomic_fetch_add_explicit(&counts->entry[FIRST_GAUGE + gauge].calls, (uint64_t)(int64_t)delta,
                              memory_order_relaxed);
}

int64_t counts_live_now(enum gauge gauge) { return (int64_t)counts->entry[FIRST_GAUGE + gauge].calls; }
