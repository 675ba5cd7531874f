// Counts the used memory of a device. The header of every memory object says how many bytes the object counts for. An
// object lives as long as a process has it, so the sum over all objects of all processes is exact, even after a
// SIGKILL. The sum is computed from the file descriptors of the processes that this process may inspect. The
// computation takes a millisecond or two, so only calls that ask for the sum, or that may fill the device, compute it. All
// processes of a simulated machine share a ledger: for each device, a number of used bytes that is never too low.
#include "sim.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct seen { ino_t inodes[4096]; int count; };

static bool first_time(struct seen *seen, ino_t inode) {
    for (int i = 0; i < seen->count; i++) {
        if (seen->inodes[i] == inode) return false;
    }
    if (seen->count < 4096) seen->inodes[seen->count++] = inode;
    return true;
}

// Opens the file `name` in dir, a folder /proc/PID/fd, if it is a memfd with the name `wanted` that was not opened before. Otherwise
// returns -1.
static int open_memfd(int dir, const char *name, const char *wanted, struct seen *seen, bool *hidden) {
    char link[96];
    ssize_t n = readlinkat(dir, name, link, sizeof link - 1);
    *hidden = n < 0 && errno == EACCES;
    if (n <= 0) return -1;
    link[n] = 0;
    size_t length = strlen(wanted);
    if (strncmp(link, wanted, length) != 0 || (link[length] != ' ' && link[length] != 0)) return -1;
    struct stat st;
    if (fstatat(dir, name, &st, 0) != 0 || !first_time(seen, st.st_ino)) return -1;
    return openat(dir, name, O_RDWR | O_CLOEXEC);
}

// Calls visit with a new descriptor of each memfd with the name `wanted` that any process has open, until visit returns
// false. visit must close or keep the descriptor.
static void each_memfd(const char *wanted, bool (*visit)(int fd, void *arg), void *arg) {
    DIR *proc = opendir("/proc");
    struct seen *seen = calloc(1, sizeof *seen);
    if (!proc || !seen) abort();
    bool on = true;
    for (struct dirent *p; on && (p = readdir(proc)) != NULL;) {
        if (!isdigit((unsigned char)p->d_name[0])) continue;
        char path[300];
        snprintf(path, sizeof path, "/proc/%s/fd", p->d_name);
        DIR *fds = opendir(path);
        if (!fds) continue;
        bool hidden = false; // this process may not inspect the other process
        for (struct dirent *d; on && !hidden && (d = readdir(fds)) != NULL;) {
            if (d->d_name[0] == '.') continue;
            int fd = open_memfd(dirfd(fds), d->d_name, wanted, seen, &hidden);
            if (fd >= 0) on = visit(fd, arg);
        }
        closedir(fds);
    }
    closedir(proc);
    free(seen);
}

static bool add(int fd, void *total) {
    struct shared_header h;
    if (pread(fd, &h, sizeof h, 0) == sizeof h) *(uint64_t *)total += h.reserved;
    close(fd);
    return true;
}

uint64_t usage_of_device(int device) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "/memfd:simcuda:%s:gpu%d", config.machine, config.ordinal[device]);
    uint64_t total = 0;
    each_memfd(wanted, add, &total);
    return total;
}

struct ledger { _Atomic uint64_t most[MAX_DEVICES]; }; // by the ordinal on the machine: an upper limit of the used bytes

static bool keep_it(int fd, void *found) {
    *(int *)found = fd;
    return false;
}

static struct ledger *ledger;

// Finds the ledger that another process has made. If no process has a ledger, makes the ledger.
static void ledger_open(void) {
    char name[64] = "/memfd:";
    const size_t prefix = sizeof "/memfd:" - 1;
    snprintf(name + prefix, sizeof name - prefix, "simcuda:%s:ledger", config.machine);
    int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC), found = -1;
    if (proc < 0 || flock(proc, LOCK_EX) != 0) abort(); // the lock: two processes that begin at the same time make only one ledger
    each_memfd(name, keep_it, &found);
    if (found < 0) {
        found = memfd_create(name + prefix, MFD_CLOEXEC);
        if (found < 0 || ftruncate(found, sizeof *ledger) != 0) abort();
    }
    int fd = backing_keep(found); // other processes find the ledger through this descriptor
    close(found);
    void *at = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) abort();
    ledger = at;
    close(proc);
}

bool usage_take(int device, uint64_t size) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ledger_open);
    _Atomic uint64_t *most = &ledger->most[config.ordinal[device]];
    uint64_t was = *most, next;
    do {
        next = was + size;
        if (next <= config.memory) continue;
        next = usage_of_device(device) + size; // an exact count, because the ledger includes freed memory
        if (next > config.memory) return false;
    } while (!atomic_compare_exchange_strong(most, &was, next));
    return true;
}
