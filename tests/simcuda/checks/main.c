// The harness: runs every check in its own process.
#include "checks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const char *folder = "";

void fail(const char *file, int line, const char *format, ...) {
    va_list args;
    fprintf(stderr, "%s:%d: ", file, line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    exit(1);
}

void expect_result(const char *file, int line, const char *what, CUresult got, CUresult wanted) {
    const char *a = "?", *b = "?";
    if (got == wanted) return;
    cuGetErrorName(got, &a);
    cuGetErrorName(wanted, &b);
    fail(file, line, "%s: %s, not %s", what, a, b);
}

CUcontext start(int device) {
    CUcontext ctx;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, device));
    OK(cuCtxSetCurrent(ctx));
    return ctx;
}

void stop(int device) {
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease_v2(device));
}

CUmemoryPool make_pool(size_t max) {
    CUmemPoolProps props = {1, 1, {1, 0}, NULL, max, 0, {0}};
    CUmemoryPool pool;
    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}

CUdeviceptr take(CUmemoryPool pool, size_t size) {
    CUdeviceptr p;
    OK(cuMemAllocFromPoolAsync(&p, size, pool, NULL));
    return p;
}

double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct child child_start(void (*fn)(struct child *parent)) {
    int down[2], up[2];
    EXPECT(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    int pid = fork();
    if (pid == 0) {
        struct child parent = {getppid(), down[0], up[1]};
        close(down[1]);
        close(up[0]);
        fn(&parent);
        exit(0);
    }
    close(down[0]);
    close(up[1]);
    return (struct child){pid, up[0], down[1]};
}

void put(struct child *c, const void *bytes, size_t size) {
    EXPECT(write(c->out, bytes, size) == (ssize_t)size);
}

void get(struct child *c, void *bytes, size_t size) {
    ssize_t n = read(c->in, bytes, size);
    if (n != (ssize_t)size) fail(__FILE__, __LINE__, "the other process ended early");
}

int borrow(int pid, int fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    int own = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(own >= 0);
    return own;
}

void child_kill(struct child *c) {
    kill(c->pid, SIGKILL);
    waitpid(c->pid, NULL, 0);
}

void child_wait(struct child *c) {
    int status;
    waitpid(c->pid, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void clear(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d)) != NULL;) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(dir);
}

static void set_environment(const char *words) {
    char copy[512], value[512];
    snprintf(copy, sizeof copy, "%s", words ? words : "");
    char *rest = copy, *word;
    while ((word = strsep(&rest, "|")) != NULL) {
        char *text = strchr(word, '=');
        if (!text) continue;
        *text++ = 0;
        char *at = strchr(text, '@');
        if (at) snprintf(value, sizeof value, "%.*s%s%s", (int)(at - text), text, folder, at + 1);
        setenv(word, at ? value : text, 1);
    }
}

static bool look(const struct check *c) {
    char path[256], text[4096] = "";
    snprintf(path, sizeof path, "%s/misuse", folder);
    FILE *f = fopen(path, "r");
    if (f) {
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
    }
    bool good = !c->report || (*c->report ? strstr(text, c->report) != NULL : !*text);
    if (!good) fprintf(stderr, "the report should hold \"%s\" and is:\n%s\n", c->report, text);
    return good;
}

// Executes this program again for the case, because the simulated driver reads the environment only when it is loaded.
static int run(const char *program, const struct check *c) {
    char dir[] = "/tmp/simcuda-check-XXXXXX";
    folder = mkdtemp(dir);
    fflush(stdout);
    int pid = fork(), status;
    if (pid == 0) {
        alarm(300);
        set_environment(c->environment);
        setenv("SIMCUDA_MACHINE", folder + strlen("/tmp/"), 1);
        if (c->report) {
            char path[256];
            snprintf(path, sizeof path, "%s/misuse", folder);
            if (!getenv("SIMCUDA_MISUSE")) setenv("SIMCUDA_MISUSE", path, 1);
        }
        execl(program, program, "--case", c->name, folder, (char *)NULL);
        _exit(9);
    }
    waitpid(pid, &status, 0);
    bool good = c->signal ? WIFSIGNALED(status) && WTERMSIG(status) == c->signal
                          : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!good) fprintf(stderr, "ended with %s %d\n", WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    good = look(c) && good;
    printf("%s %s\n", good ? "ok  " : "FAIL", c->name);
    clear(folder);
    return good ? 0 : 1;
}

int main(int argc, char **argv) {
    const struct check *lists[] = {misuse_checks, fault_checks, life_checks};
    int bad = 0;
    for (int i = 0; i < 3; i++) {
        for (const struct check *c = lists[i]; c->name; c++) {
            if (argc == 4 && strcmp(argv[1], "--case") == 0) {
                if (strcmp(c->name, argv[2]) != 0) continue;
                folder = argv[3];
                c->run();
                return 0;
            }
            if (argc == 2 && !strstr(c->name, argv[1])) continue;
            bad += run("/proc/self/exe", c);
        }
    }
    return bad != 0;
}
