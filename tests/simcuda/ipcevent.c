// Events between processes. The state of an event is a file in /dev/shm that belongs to one user, because real events
// have the same limit: another user, or a process with a private /dev/shm, cannot open an event (CUDA_ERROR_MAP_FAILED).
#include "event.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char magic[8] = "simevent";
static const char prefix[] = "simcuda-event-";

struct handle_bytes { char magic[8]; int64_t pid; char name[48]; };
_Static_assert(sizeof(struct handle_bytes) == sizeof(CUipcEventHandle), "event handle");

// Every process that uses the file has a shared lock on it. So if a process can lock the file exclusively, the file was
// left behind by a killed process.
static void sweep(void) {
    DIR *dir = opendir("/dev/shm");
    if (!dir) return;
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        if (strncmp(d->d_name, prefix, strlen(prefix)) != 0) continue;
        int fd = openat(dirfd(dir), d->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(dir), d->d_name, 0);
        close(fd);
    }
    closedir(dir);
}

static struct shared_event *map(int fd) {
    void *at = mmap(NULL, sizeof(struct shared_event), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

CUresult shared_event_create(struct event *e) {
    static bool swept;
    if (!swept) sweep();
    swept = true;
    uint64_t unique;
    if (getrandom(&unique, sizeof unique, 0) != sizeof unique) return CUDA_ERROR_OPERATING_SYSTEM;
    snprintf(e->name, sizeof e->name, "/dev/shm/%s%016llx", prefix, (unsigned long long)unique);
    int fd = open(e->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    if (flock(fd, LOCK_SH) != 0 || ftruncate(fd, sizeof(struct shared_event)) != 0 || !(e->shared = map(fd))) {
        unlink(e->name);
        close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    e->fd = fd;
    memcpy(e->shared->magic, magic, sizeof magic);
    return CUDA_SUCCESS;
}

// Does not unmap the state of the event: queued operations may still use it, and it is only one page long.
void shared_event_close(struct event *e) {
    if (!e->shared) return;
    // Measured: while a process has the event open, other processes can open it, even after the process that made the
    // event has destroyed it.
    if (flock(e->fd, LOCK_EX | LOCK_NB) == 0) unlink(e->name);
    close(e->fd);
    e->shared = NULL;
}

static void futex(_Atomic uint32_t *word, int call, uint32_t value, const struct timespec *timeout) {
    syscall(SYS_futex, word, call, value, timeout, NULL, 0);
}

void shared_event_complete(struct shared_event *shared, uint32_t count) {
    uint32_t before = shared->completed;
    while ((int32_t)(count - before) > 0 && !atomic_compare_exchange_weak(&shared->completed, &before, count)) {
    }
    futex(&shared->completed, FUTEX_WAKE, INT32_MAX, NULL);
}

bool shared_event_reached(struct shared_event *shared, uint32_t count) {
    return (int32_t)(shared->completed - count) >= 0;
}

void shared_event_wait(struct shared_event *shared, uint32_t count, bool (*stop)(void *arg), void *arg) {
    // The completion of the recording ends a pause at once. Only the call of stop may come late, by at most one pause.
    const struct timespec pause = {.tv_nsec = 2000000};
    while (!shared_event_reached(shared, count) && !stop(arg)) {
        uint32_t seen = shared->completed;
        if ((int32_t)(seen - count) < 0) futex(&shared->completed, FUTEX_WAIT, seen, &pause);
    }
}

SIM_API CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent handle) {
    ENTER(cuIpcGetEventHandle, NEED_CTX);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct event *e = handle_get(KIND_EVENT, handle);
    CUresult r = CUDA_SUCCESS;
    if (!e) r = CUDA_ERROR_INVALID_HANDLE;
    else if (!(e->flags & CU_EVENT_INTERPROCESS) || e->opened) r = CUDA_ERROR_INVALID_HANDLE;
    else if (!e->shared) r = shared_event_create(e);
    if (r == CUDA_SUCCESS) {
        struct handle_bytes bytes = {0};
        memcpy(bytes.magic, magic, sizeof magic);
        bytes.pid = getpid();
        snprintf(bytes.name, sizeof bytes.name, "%s", e->name + strlen("/dev/shm/"));
        memcpy(out, &bytes, sizeof bytes);
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle) {
    ENTER(cuIpcOpenEventHandle, NEED_CTX);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    struct handle_bytes bytes;
    memcpy(&bytes, &handle, sizeof bytes);
    bool named = bytes.name[sizeof bytes.name - 1] == 0 && strncmp(bytes.name, prefix, strlen(prefix)) == 0;
    if (memcmp(bytes.magic, magic, sizeof magic) != 0 || !named || strchr(bytes.name, '/')) {
        return CUDA_ERROR_MAP_FAILED;
    }
    if (bytes.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT; // the process that made the event cannot open it
    char path[96];
    snprintf(path, sizeof path, "/dev/shm/%s", bytes.name);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (fd < 0) return CUDA_ERROR_MAP_FAILED;
    // Root may open the files of all users, so the simulation checks the user, like the real driver.
    struct shared_event *shared = NULL;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && st.st_size == sizeof(struct shared_event) &&
        flock(fd, LOCK_SH) == 0) {
        shared = map(fd);
    }
    if (!shared) {
        close(fd);
        return CUDA_ERROR_MAP_FAILED;
    }
    LOCK();
    struct event *e = event_new(ctx_current(), CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    e->shared = shared;
    e->fd = fd;
    e->opened = true;
    snprintf(e->name, sizeof e->name, "%s", path);
    UNLOCK();
    *out = e->handle;
    return CUDA_SUCCESS;
}
