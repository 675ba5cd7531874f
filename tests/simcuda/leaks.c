// Reports what a process leaves behind: objects that it did not free, and descriptors of shared memory that it did not close.
#include "sim.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void report_descriptors(void) {
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) return;
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        char link[96];
        ssize_t n = readlinkat(dirfd(dir), d->d_name, link, sizeof link - 1);
        if (n <= 0) continue;
        link[n] = 0;
        int fd = atoi(d->d_name);
        if (strncmp(link, "/memfd:simcuda:", 15) != 0 || backing_is_internal(fd)) continue;
        misuse_report("forgotten-fd", "descriptor %d of shared memory is still open at exit", fd);
    }
    closedir(dir);
}

void leaks_report(void) {
    if (!misuse_on()) return;
    for (int i = 0; i < LIVE_COUNT; i++) {
        int64_t n = counts_live_now(i);
        if (n > 0) misuse_report("leak", "%lld %s%s not given back at exit", (long long)n, gauge_names[i], n > 1 ? "s" : "");
    }
    report_descriptors();
}

// A program that ends without running destructors, for example a Go program, calls this function before it ends.
SIM_API void simcuda_report_leaks(void);
SIM_API void simcuda_report_leaks(void) { leaks_report(); }
