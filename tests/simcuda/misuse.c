// The detector of misuse. It reports a mistake of the program at once. With the real driver, a mistake shows late or rarely, or
// makes the program read data of another process.
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static bool on, fatal;
static char path[512];

void misuse_load(void) {
    const char *text = getenv("SIMCUDA_MISUSE");
    if (!text || !*text) return;
    on = true;
    snprintf(path, sizeof path, "%s", text);
    char *comma = strrchr(path, ',');
    const char *last = comma ? comma + 1 : path;
    if (strcmp(last, "abort") == 0) {
        fatal = true;
        if (comma) *comma = 0;
        else path[0] = 0;
    }
}

bool misuse_on(void) { return on; }

void misuse_report(const char *kind, const char *format, ...) {
    if (!on) return;
    char text[512], line[700];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    int n = snprintf(line, sizeof line, "pid=%d tid=%ld kind=%s: %s\n", getpid(), syscall(SYS_gettid), kind, text);
    int fd = path[0] ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : dup(2);
    // One write for each line, so that the lines of several processes do not mix.
    if (fd < 0 || write(fd, line, (size_t)n) != n) fprintf(stderr, "simcuda: %s", line);
    if (fd >= 0) close(fd);
    if (fatal) {
        if (path[0]) fprintf(stderr, "simcuda: %s", line);
        abort();
    }
}

void misuse_missing_context(enum fn fn) {
    misuse_report("missing-context", "%s without a current context", fn_names[fn]);
}

enum { REMEMBERED = 4096 };
static struct { uint64_t start, size; } freed[REMEMBERED];
static unsigned freed_next;

void misuse_freed(uint64_t start, uint64_t size) {
    if (!on) return;
    freed[freed_next % REMEMBERED].start = start;
    freed[freed_next % REMEMBERED].size = size;
    freed_next++;
}

void misuse_address(const char *call, uint64_t address) {
    if (!on) return;
    struct range *now = range_find(address);
    if (now && !now->freed) return;
    for (unsigned i = 0; i < REMEMBERED; i++) {
        if (address - freed[i].start >= freed[i].size) continue;
        misuse_report("use-after-free", "%s used %#llx, which was freed or unmapped before", call,
                      (unsigned long long)address);
        return;
    }
}

// ---- calls that crash the real driver when several threads make them at once ----
static pthread_mutex_t sections_mu = PTHREAD_MUTEX_INITIALIZER;
static struct { const char *call; int inside; } sections[3];

void section_enter(enum section section, const char *call) {
    if (!on) return;
    char other[64] = "";
    pthread_mutex_lock(&sections_mu);
    // Calls on pools must not overlap each other or calls on pointers of pools. Calls on pointers may overlap each other.
    if (sections[SECTION_POOL].inside) snprintf(other, sizeof other, "%s", sections[SECTION_POOL].call);
    else if (section == SECTION_POOL && sections[SECTION_POINTER].inside) {
        snprintf(other, sizeof other, "%s", sections[SECTION_POINTER].call);
    }
    sections[section].inside++;
    sections[section].call = call;
    pthread_mutex_unlock(&sections_mu);
    if (other[0]) misuse_report("concurrent-ipc", "%s while another thread is in %s", call, other);
    // The calls are short, so the calls of two threads would rarely overlap in a test. This pause makes an overlap
    // more likely.
    struct timespec t = {.tv_nsec = config.dwell_us * 1000L};
    nanosleep(&t, NULL);
}

void section_leave(enum section section) {
    if (!on) return;
    pthread_mutex_lock(&sections_mu);
    sections[section].inside--;
    pthread_mutex_unlock(&sections_mu);
}

// ---- which processes map an object now ----
void importer_add(_Atomic int32_t *importers) {
    for (int i = 0; i < MAX_IMPORTERS; i++) {
        int32_t none = 0;
        if (atomic_compare_exchange_strong(&importers[i], &none, getpid())) return;
        // A killed process does not remove its entry. If the process is gone, this process takes the entry.
        if (kill(none, 0) != 0 && errno == ESRCH && atomic_compare_exchange_strong(&importers[i], &none, getpid())) {
            return;
        }
    }
}

void importer_remove(_Atomic int32_t *importers) {
    for (int i = 0; i < MAX_IMPORTERS; i++) {
        int32_t own = getpid();
        if (atomic_compare_exchange_strong(&importers[i], &own, 0)) return;
    }
}

// Returns whether a process lives. Returns false for a process of another PID namespace, which this process cannot see.
static bool alive(int32_t pid) {
    char file[64], state = 0;
    snprintf(file, sizeof file, "/proc/%d/stat", pid);
    FILE *f = fopen(file, "re");
    if (!f) return false;
    if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
    fclose(f);
    return state != 'Z' && state != 'X';
}

uint32_t claim_add(struct claim *claims, uint64_t offset, uint64_t size) {
    for (uint32_t i = 0; i < MAX_CLAIMS; i++) {
        int32_t none = 0;
        if (!atomic_compare_exchange_strong(&claims[i].pid, &none, getpid())) {
            if (!on || alive(none) || !atomic_compare_exchange_strong(&claims[i].pid, &none, getpid())) continue;
        }
        claims[i].offset = offset;
        claims[i].size = size;
        return i;
    }
    return MAX_CLAIMS; // the table is full: reports leave out this claim
}

void claim_remove(struct claim *claims, uint32_t index) {
    int32_t own = getpid();
    if (index < MAX_CLAIMS) atomic_compare_exchange_strong(&claims[index].pid, &own, 0);
}

int claim_other(struct claim *claims, uint64_t offset, uint64_t size) {
    if (!on) return 0;
    for (uint32_t i = 0; i < MAX_CLAIMS; i++) {
        int32_t pid = claims[i].pid;
        if (!pid || pid == getpid() || claims[i].offset >= offset + size) continue;
        if (claims[i].offset + claims[i].size > offset && alive(pid)) return pid;
    }
    return 0;
}

int importer_other(_Atomic int32_t *importers) {
    if (!on) return 0;
    for (int i = 0; i < MAX_IMPORTERS; i++) {
        int32_t pid = importers[i];
        if (pid && pid != getpid() && alive(pid)) return pid;
    }
    return 0;
}
