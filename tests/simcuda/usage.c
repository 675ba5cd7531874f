// Counts the used memory of a device. Every memory object says in its header how many bytes it counts for, and lives as long as
// a process has it. So the sum over all objects of all processes is exact, also after a SIGKILL. It is
// computed from the descriptors of the processes that this one may inspect.
#include "sim.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static uint64_t of_descriptor(int dir, const char *name, const char *wanted, struct seen *seen) {
    char link[96];
    ssize_t n = readlinkat(dir, name, link, sizeof link - 1);
    if (n <= 0) return 0;
    link[n] = 0;
    size_t length = strlen(wanted);
    if (strncmp(link, wanted, length) != 0 || (link[length] != ' ' && link[length] != 0)) return 0;
    struct stat st;
    if (fstatat(dir, name, &st, 0) != 0 || !first_time(seen, st.st_ino)) return 0;
    struct shared_header h;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    uint64_t bytes = pread(fd, &h, sizeof h, 0) == sizeof h ? h.reserved : 0;
    close(fd);
    return bytes;
}

uint64_t usage_of_device(int device) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "/memfd:simcuda:%s:gpu%d", config.machine, config.ordinal[device]);
    DIR *proc = opendir("/proc");
    struct seen *seen = calloc(1, sizeof *seen);
    if (!proc || !seen) abort();
    uint64_t total = 0;
    for (struct dirent *p; (p = readdir(proc)) != NULL;) {
        if (!isdigit((unsigned char)p->d_name[0])) continue;
        char path[300];
        snprintf(path, sizeof path, "/proc/%s/fd", p->d_name);
        DIR *fds = opendir(path);
        if (!fds) continue;
        for (struct dirent *d; (d = readdir(fds)) != NULL;) {
            if (d->d_name[0] != '.') total += of_descriptor(dirfd(fds), d->d_name, wanted, seen);
        }
        closedir(fds);
    }
    closedir(proc);
    free(seen);
    return total;
}
