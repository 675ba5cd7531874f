// Device memory is a memfd: a header that every process can read, and then the data. The memory lives as long as any
// process has a descriptor or a mapping of it, so it survives the death of the process that made it.
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = "simcuda";
enum { VERSION = 1, LOWEST_FD = 400, MAX_FD = 65536 };

static unsigned char internal[MAX_FD / 8];

static void set_internal(int fd, bool on) {
    if (fd >= MAX_FD) return;
    if (on) internal[fd / 8] |= (unsigned char)(1 << fd % 8);
    else internal[fd / 8] &= (unsigned char)~(1 << fd % 8);
}

bool backing_is_internal(int fd) { return fd < MAX_FD && (internal[fd / 8] >> fd % 8 & 1); }

// The simulation's own descriptors have high numbers, so that the low numbers stay free for programs that expect low numbers.
int backing_keep(int fd) {
    int kept = fcntl(fd, F_DUPFD_CLOEXEC, LOWEST_FD);
    if (kept < 0) kept = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (kept >= 0) set_internal(kept, true);
    return kept;
}

static void drop(int fd) {
    set_internal(fd, false);
    close(fd);
}

static struct backing *map(int fd, uint64_t header_size, uint64_t capacity) {
    struct backing *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->mapped = header_size + capacity;
    b->capacity = capacity;
    uint8_t *at = mmap(NULL, b->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) {
        free(b);
        return NULL;
    }
    b->refs = 1;
    b->fd = fd;
    b->header = (struct shared_header *)(void *)at;
    b->data = at + header_size;
    return b;
}

CUresult backing_create(enum memory_kind kind, int device, bool host, uint64_t capacity, struct backing **out) {
    char name[64];
    snprintf(name, sizeof name, "simcuda:%s:%s%d", config.machine, host ? "host" : "gpu",
             host ? 0 : config.ordinal[device]);
    uint64_t header_size = kind == MEMORY_POOL ? MIB : 4096;
    int made = memfd_create(name, MFD_CLOEXEC);
    if (made < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    int fd = backing_keep(made);
    close(made);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    struct backing *b = ftruncate(fd, (off_t)(header_size + capacity)) == 0 ? map(fd, header_size, capacity) : NULL;
    if (!b) {
        drop(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct shared_header *h = b->header;
    memcpy(h->magic, magic, sizeof magic);
    h->version = VERSION;
    h->kind = kind;
    h->device = host ? -1 : config.ordinal[device];
    h->exporter = getpid();
    h->header_size = header_size;
    h->capacity = capacity;
    if (getrandom(&h->cookie, sizeof h->cookie, 0) != sizeof h->cookie) h->cookie = (uint64_t)getpid() << 32 | made;
    b->device = host ? -1 : device;
    b->host = host;
    *out = b;
    return CUDA_SUCCESS;
}

// Returns the ordinal that this process uses for a device of the machine, or -1 if this process does not see the device.
static int visible(int ordinal) {
    for (int i = 0; i < config.devices; i++) {
        if (config.ordinal[i] == ordinal) return i;
    }
    return -1;
}

CUresult backing_import(int given, enum memory_kind kind, struct backing **out) {
    struct shared_header h;
    struct stat st;
    if (fstat(given, &st) != 0 || !S_ISREG(st.st_mode)) return CUDA_ERROR_UNKNOWN;
    if (pread(given, &h, sizeof h, 0) != sizeof h) return CUDA_ERROR_UNKNOWN;
    if (memcmp(h.magic, magic, sizeof magic) != 0 || h.version != VERSION) return CUDA_ERROR_UNKNOWN;
    if (h.kind != kind) return CUDA_ERROR_NOT_SUPPORTED;
    if ((uint64_t)st.st_size != h.header_size + h.capacity) return CUDA_ERROR_UNKNOWN;
    int device = h.device < 0 ? -1 : visible(h.device);
    if (h.device >= 0 && device < 0) return CUDA_ERROR_INVALID_DEVICE;
    int fd = backing_keep(given);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    struct backing *b = map(fd, h.header_size, h.capacity);
    if (!b) {
        drop(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    b->device = device;
    b->host = device < 0;
    *out = b;
    return CUDA_SUCCESS;
}

// Makes a second mapping of shared memory of the program. So a stream that waits for a word in this memory can continue even
// if the program unmaps its own mapping. (A real device pins the pages instead.) Returns NULL for memory that is not shared.
struct backing *backing_of_host(uint64_t start, uint64_t size) {
    uint64_t page = start / 4096 * 4096, mapped = (start + size - page + 4095) / 4096 * 4096;
    void *at = mremap((void *)page, 0, mapped, MREMAP_MAYMOVE);
    if (at == MAP_FAILED) return NULL;
    struct backing *b = calloc(1, sizeof *b);
    if (!b) abort();
    *b = (struct backing){.refs = 1, .fd = -1, .device = -1, .host = true, .header = at, .mapped = mapped};
    b->data = (uint8_t *)at + (start - page);
    return b;
}

void backing_ref(struct backing *b) { b->refs++; }

void backing_unref(struct backing *b) {
    if (--b->refs) return;
    munmap(b->header, b->mapped);
    if (b->fd >= 0) drop(b->fd);
    free(b);
}

void backing_discard(struct backing *b, uint64_t offset, uint64_t size) {
    off_t at = (off_t)(b->header->header_size + offset);
    if (fallocate(b->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, (off_t)size) != 0) {
        memset(b->data + offset, 0, size);
    }
}
