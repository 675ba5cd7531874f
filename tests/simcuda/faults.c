// Makes driver calls fail, as rules say. The rules come from SIMCUDA_FAULTS and from the control file. The control file may change while
// the process runs.
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RULES = 64 };

struct rule {
    char call[64]; // "*": any call; empty: the device is lost at once
    CUresult error;
    uint64_t nth, every, after, times;
    double probability;
    uint64_t random, seen, hits;
    unsigned delay_ms;
    int device; // the device that is lost; -1: none
    bool sticky, fixed; // fixed: the rule comes from the environment
};

static struct rule rules[MAX_RULES];
static atomic_int rule_count;
static const char *control, *log_path; // log_path: one line for each failure: pid, call, error
static pthread_mutex_t faults_mu = PTHREAD_MUTEX_INITIALIZER;
static uint64_t control_hash;
static char program[32];
static _Atomic CUresult lost[MAX_DEVICES];

static double next_random(struct rule *r) {
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(r->random >> 11) / 9007199254740992.0;
}

static void complain(const char *text) { fprintf(stderr, "simcuda: cannot understand the fault rule: %s\n", text); }

static void note(const char *call, CUresult error) {
    char line[128];
    int n = snprintf(line, sizeof line, "%d %s %s\n", getpid(), call, result_name(error) ? result_name(error) : "?");
    int fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, (size_t)n) != n) fprintf(stderr, "simcuda: cannot write to %s\n", log_path);
    if (fd >= 0) close(fd);
}

// Reads one word of a rule: key or key=value. Returns false if the key is unknown.
static bool word(struct rule *r, const char *text, bool *applies) {
    const char *value = strchr(text, '=');
    size_t key = value ? (size_t)(value++ - text) : strlen(text);
#define IS(name) (key == strlen(name) && strncmp(text, name, key) == 0)
    if (!value) {
        if (IS("sticky")) r->sticky = true;
        else if (IS("lost")) r->error = r->error ? r->error : CUDA_ERROR_UNKNOWN;
        else return false;
        return true;
    }
    if (IS("call")) snprintf(r->call, sizeof r->call, "%s", value);
    else if (IS("error")) r->error = result_parse(value);
    else if (IS("nth")) r->nth = strtoull(value, NULL, 10);
    else if (IS("every")) r->every = strtoull(value, NULL, 10);
    else if (IS("after")) r->after = strtoull(value, NULL, 10);
    else if (IS("times")) r->times = strtoull(value, NULL, 10);
    else if (IS("probability")) r->probability = strtod(value, NULL);
    else if (IS("seed")) r->random = strtoull(value, NULL, 10);
    else if (IS("delay_ms")) r->delay_ms = (unsigned)strtoul(value, NULL, 10);
    else if (IS("device")) r->device = atoi(value);
    else if (IS("program")) *applies = *applies && strcmp(value, program) == 0;
    else if (IS("pid")) *applies = *applies && atoi(value) == getpid();
    else return false;
#undef IS
    return r->error >= 0;
}

static void parse(const char *text, bool fixed) {
    char line[256];
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, ";\n");
        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), at);
        at += n + (at[n] != 0);
        struct rule r = {.device = -1, .fixed = fixed, .probability = -1, .random = 1};
        bool good = true, applies = true, any = false;
        char *rest = line, *part;
        while ((part = strsep(&rest, " \t\r")) != NULL) {
            if (*part == '#') break;
            if (!*part) continue;
            any = true;
            good = good && word(&r, part, &applies);
        }
        if (!any) continue;
        bool device_rule = r.device >= 0;
        if (!good || (!r.call[0] && !device_rule) || (!r.error && !r.delay_ms)) {
            complain(line);
            continue;
        }
        if (!applies) continue;
        if (rule_count == MAX_RULES) {
            complain("too many rules");
            return;
        }
        rules[rule_count] = r;
        rule_count++;
    }
}

static void find_lost(void) {
    CUresult now[MAX_DEVICES] = {0};
    for (int i = 0; i < rule_count; i++) {
        if (!rules[i].call[0] && rules[i].device >= 0 && rules[i].device < MAX_DEVICES) now[rules[i].device] = rules[i].error;
    }
    for (int i = 0; i < config.devices; i++) lost[i] = now[config.ordinal[i]];
}

static uint64_t hash(const char *text) {
    uint64_t h = 14695981039346656037u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h;
}

// Reads the file at each call, and not only when the time of the file has changed: tests make two changes within one
// tick of the file's clock, and the file is small.
static void read_control(void) {
    char text[8192];
    ssize_t n = 0;
    int fd = open(control, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, text, sizeof text - 1);
        close(fd);
    }
    text[n > 0 ? n : 0] = 0;
    uint64_t h = hash(text);
    if (h == control_hash) return;
    control_hash = h;
    int keep = 0;
    for (int i = 0; i < rule_count; i++) {
        if (rules[i].fixed) rules[keep++] = rules[i];
    }
    rule_count = keep;
    parse(text, false);
    find_lost();
}

void faults_load(void) {
    int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, program, sizeof program - 1);
        program[n > 0 ? n - 1 : 0] = 0;
        close(fd);
    }
    control_hash = hash("");
    const char *text = getenv("SIMCUDA_FAULTS");
    if (text) parse(text, true);
    log_path = getenv("SIMCUDA_FAULT_LOG");
    if (log_path && !*log_path) log_path = NULL;
    control = getenv("SIMCUDA_CONTROL");
    if (control && !*control) control = NULL;
    find_lost();
}

// Marks a device as lost. From then on, calls on this device fail with the rule's error.
static void lose(int device, CUresult error) {
    for (int i = 0; i < config.devices; i++) {
        if (config.ordinal[i] == device) lost[i] = error;
    }
}

static bool due(struct rule *r) {
    r->seen++;
    if (r->times && r->hits >= r->times) return false;
    if (r->nth && r->seen != r->nth) return false;
    if (r->every && r->seen % r->every) return false;
    if (r->seen <= r->after) return false;
    if (r->probability >= 0 && next_random(r) >= r->probability) return false;
    r->hits++;
    return true;
}

CUresult faults_apply(enum fn fn) {
    if (!control && !rule_count) return CUDA_SUCCESS;
    unsigned delay_ms = 0;
    CUresult error = CUDA_SUCCESS;
    bool sticky = false;
    pthread_mutex_lock(&faults_mu);
    if (control) read_control();
    for (int i = 0; i < rule_count; i++) {
        struct rule *r = &rules[i];
        if (!r->call[0] || (strcmp(r->call, "*") != 0 && strcmp(r->call, fn_names[fn]) != 0) || !due(r)) continue;
        delay_ms += r->delay_ms;
        if (r->error && log_path) note(fn_names[fn], r->error);
        if (r->device >= 0) lose(r->device, r->error);
        else if (!error) {
            error = r->error;
            sticky = r->sticky || (error >= CUDA_ERROR_ILLEGAL_ADDRESS && error <= CUDA_ERROR_LAUNCH_TIMEOUT) ||
                error == CUDA_ERROR_LAUNCH_FAILED || error == CUDA_ERROR_ECC_UNCORRECTABLE;
        }
    }
    pthread_mutex_unlock(&faults_mu);
    if (delay_ms) {
        struct timespec t = {delay_ms / 1000, (long)(delay_ms % 1000) * 1000000};
        nanosleep(&t, NULL);
    }
    struct context *ctx = sticky ? ctx_current() : NULL;
    if (ctx) {
        LOCK();
        ctx_fail(ctx, error);
        UNLOCK();
    }
    return error;
}

CUresult faults_device(int device) { return lost[device]; }
