// Asks a driver about words in memory for which streams wait, and about which calls wait while a stream waits.
#include "facts.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MB = 1 << 20 };

static CUdeviceptr vmm_memory(void) {
    CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {1, 0}};
    CUmemGenericAllocationHandle h;
    CUdeviceptr p;
    MUST(cuMemCreate(&h, 2 * MB, &prop, 0));
    MUST(cuMemAddressReserve(&p, 2 * MB, 0, 0, 0));
    MUST(cuMemMap(p, 2 * MB, 0, h, 0));
    MUST(cuMemSetAccess(p, 2 * MB, &(CUmemAccessDesc){{1, 0}, 3}, 1));
    return p;
}

static void both(const char *what, CUdeviceptr p) {
    char q[96];
    snprintf(q, sizeof q, "%s: write and wait", what);
    CUresult w = cuStreamWriteValue64_v2(NULL, p, 5, 0), r = w;
    if (w == CUDA_SUCCESS) r = cuStreamWaitValue64_v2(NULL, p, 5, 0);
    else r = cuStreamWaitValue64_v2(NULL, p, 0, 0);
    CUresult s = cuStreamSynchronize(NULL);
    say(q, "%s, %s, %s", name(w), name(r), name(s));
}

// Returns whether every thread except this thread sleeps.
static bool asleep(void) {
    DIR *threads = opendir("/proc/self/task");
    bool all = threads != NULL;
    for (struct dirent *d; all && (d = readdir(threads)) != NULL;) {
        int thread = atoi(d->d_name);
        if (thread <= 0 || thread == (int)syscall(SYS_gettid)) continue;
        char path[64], text[512];
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
        const char *state = strrchr(text, ')');
        all = state && strncmp(state, ") S", 3) == 0;
    }
    if (threads) closedir(threads);
    return all;
}

// Waits for 5 s at most, until done returns true, or until all other threads have slept for 0.3 s.
static void settle(bool (*done)(void *), void *arg) {
    for (int looks = 0, quiet = 0; looks < 200 && quiet < 12 && !done(arg); looks++) {
        nanosleep(&(struct timespec){.tv_nsec = 25000000}, NULL);
        quiet = asleep() ? quiet + 1 : 0;
    }
}

static bool idle(void *stream) { return cuStreamQuery(stream) != CUDA_ERROR_NOT_READY; }

// Asks whether a wait for `value` ends at once if the word is `now`.
static void wait_32(CUstream s, CUdeviceptr p, uint32_t now, uint32_t value, unsigned flags) {
    char q[96];
    MUST(cuMemsetD32_v2(p, now, 1));
    MUST(cuStreamSynchronize(NULL));
    CUresult r = cuStreamWaitValue32_v2(s, p, value, flags);
    settle(idle, s);
    CUresult state = cuStreamQuery(s);
    snprintf(q, sizeof q, "word %#x, wait for %#x with flags %u", now, value, flags);
    say(q, "%s, %s", name(r), name(state));
    if (state != CUDA_SUCCESS) {
        // The waiting stream does not block the stream `helper`.
        CUstream helper;
        MUST(cuStreamCreate(&helper, 1));
        for (uint32_t v = value; cuStreamQuery(s) == CUDA_ERROR_NOT_READY; v = v == value ? ~value : value) {
            MUST(cuStreamWriteValue32_v2(helper, p, v, 0));
            MUST(cuStreamSynchronize(helper));
        }
        MUST(cuStreamDestroy_v2(helper));
    }
    MUST(cuStreamSynchronize(s));
}

void section_words(void) {
    primary(0);
    CUdeviceptr plain, pinned;
    void *host, *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(cuMemAlloc_v2(&plain, 4096));
    MUST(cuMemHostAlloc(&host, 4096, 0));
    MUST(cuMemHostGetDevicePointer_v2(&pinned, host, 0));
    memset(host, 0, 4096);
    MUST(cuMemHostRegister_v2(page, 4096, 2));
    both("device memory", plain);
    both("virtual memory", vmm_memory());
    both("pinned host memory", pinned);
    both("registered host memory", (CUdeviceptr)page);
    both("pool memory", from_pool(pool_of(0, 1, 0), 4096));
    both("private pool memory", from_pool(pool_of(0, 0, 0), 4096));
    both("a host address", (CUdeviceptr)&host);
    ask("misaligned 64", cuStreamWriteValue64_v2(NULL, plain + 4, 1, 0));
    ask("misaligned 32", cuStreamWriteValue32_v2(NULL, plain + 2, 1, 0));
    ask("null", cuStreamWriteValue32_v2(NULL, 0, 1, 0));
    ask("at the end", cuStreamWriteValue64_v2(NULL, plain + 4088, 1, 0));
    ask("unknown write flags", cuStreamWriteValue32_v2(NULL, plain, 1, 4));
    ask("unknown wait flags", cuStreamWaitValue32_v2(NULL, plain, 0, 8));
    ask("wait with flush", cuStreamWaitValue32_v2(NULL, plain, 0, 1u << 30));
    ask("synchronise", cuStreamSynchronize(NULL));
    CUstream s;
    MUST(cuStreamCreate(&s, 1));
    wait_32(s, plain, 5, 5, 0);
    wait_32(s, plain, 4, 5, 0);
    wait_32(s, plain, 0x80000005u, 5, 0);
    wait_32(s, plain, 3, 0xfffffff0u, 0);
    wait_32(s, plain, 6, 5, 1);
    wait_32(s, plain, 6, 2, 2);
    wait_32(s, plain, 5, 2, 2);
    wait_32(s, plain, 6, 2, 3);
    wait_32(s, plain, 0xf0f0f0f0u, 0x0f0f0f0fu, 3);
    void *readable = mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CUresult r = cuMemHostRegister_v2(readable, 4096, 2 | 8);
    ask("register a read-only page", r);
    if (r == CUDA_SUCCESS) {
        ask("wait on it", cuStreamWaitValue64_v2(s, (CUdeviceptr)readable, 0, 0));
        ask("write to it", cuStreamWriteValue64_v2(s, (CUdeviceptr)readable, 1, 0));
        ask("synchronise", cuStreamSynchronize(s));
    }
}

// ---- calls that wait behind a stream that waits ----
static _Atomic uint64_t *word;
static _Atomic bool returned; // whether the call has returned
static bool waited;

static bool has_returned(void *arg) { (void)arg; return returned; }

static void *let_go(void *arg) {
    (void)arg;
    settle(has_returned, NULL);
    waited = !returned;
    *word = 1;
    return NULL;
}

static pthread_t helper;
static void stuck(CUstream s) {
    *word = 0;
    returned = false;
    MUST(cuStreamWaitValue64_v2(s, (CUdeviceptr)word, 1, 0));
    pthread_create(&helper, NULL, let_go, NULL);
}

static void over(const char *question, CUresult r, CUstream s) {
    returned = true;
    pthread_join(helper, NULL);
    if (s) cuStreamSynchronize(s);
    say(question, "%s, %s", name(r), waited ? "waits" : "does not wait");
}

static void importless(void *data) { (void)data; }

static CUresult make_100_streams(void) {
    CUstream u;
    CUresult r = CUDA_SUCCESS;
    for (int i = 0; i < 100 && r == CUDA_SUCCESS; i++) r = cuStreamCreate(&u, 1);
    return r;
}

void section_blocking(void) {
    primary(0);
    word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(cuMemHostRegister_v2((void *)word, 4096, 2));
    CUstream s, t, blocking;
    CUevent e;
    MUST(cuStreamCreate(&s, 1));
    MUST(cuStreamCreate(&t, 1));
    MUST(cuStreamCreate(&blocking, 0));
    MUST(cuEventCreate(&e, 2));
    CUdeviceptr p, q;
    void *host;
    char pageable[4096] = "";
    CUmemoryPool pool = pool_of(0, 1, 0), spare = pool_of(0, 1, 0), made;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd;
    CUmemPoolPtrExportData blob;
    MUST(cuMemAlloc_v2(&p, MB));
    MUST(cuMemHostAlloc(&host, 4096, 0));
    MUST(cuStreamSynchronize(NULL));
#define WHILE(call) stuck(s), over(#call, call, s)
    WHILE(cuStreamSynchronize(t));
    WHILE(cuStreamSynchronize(NULL));
    WHILE(cuCtxSynchronize());
    WHILE(cuMemAlloc_v2(&q, MB));
    WHILE(cuMemFree_v2(q));
    WHILE(cuMemAlloc_v2(&q, 300 * MB));
    WHILE(cuMemFree_v2(q));
    WHILE(cuMemcpyHtoD_v2(p, pageable, 4096));
    WHILE(cuMemcpyDtoH_v2(pageable, p, 4096));
    WHILE(cuMemcpyDtoD_v2(p, p + 65536, 4096));
    WHILE(cuMemsetD8_v2(p, 0, 4096));
    WHILE(cuMemcpyHtoDAsync_v2(p, pageable, 4096, s));
    WHILE(cuMemcpyDtoHAsync_v2(pageable, p, 4096, s));
    WHILE(cuMemcpyHtoDAsync_v2(p, host, 4096, s));
    WHILE(cuMemcpyDtoHAsync_v2(host, p, 4096, s));
    WHILE(cuMemcpyHtoDAsync_v2(p, pageable, 4096, t));
    WHILE(cuMemAllocFromPoolAsync(&q, MB, pool, t));
    WHILE(cuMemFreeAsync(q, t));
    WHILE(cuMemAllocFromPoolAsync(&q, MB, pool, s));
    WHILE(cuMemFreeAsync(q, s));
    WHILE(cuMemAllocFromPoolAsync(&q, 200 * MB, pool, t));
    WHILE(cuMemFree_v2(q));
    WHILE(cuMemPoolTrimTo(pool, 0));
    WHILE(cuMemPoolDestroy(spare));
    spare = pool_of(0, 1, 0);
    WHILE(cuMemPoolExportToShareableHandle(&fd, spare, 1, 0));
    WHILE(cuMemPoolImportFromShareableHandle(&made, (void *)(intptr_t)fd, 1, 0));
    WHILE(cuMemAllocFromPoolAsync(&q, MB, spare, t));
    WHILE(cuMemPoolExportPointer(&blob, q));
    CUmemPoolProps props = {1, 1, {1, 0}, 0, 0, 0, {0}};
    WHILE(cuMemPoolCreate(&made, &props));
    WHILE(cuMemHostRegister_v2(page, 4096, 2));
    WHILE(cuMemHostUnregister(page));
    void *more = NULL;
    WHILE(cuMemHostAlloc(&more, 4096, 0));
    WHILE(cuMemFreeHost(more));
    CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {1, 0}};
    CUmemGenericAllocationHandle h;
    WHILE(cuMemCreate(&h, 2 * MB, &prop, 0));
    WHILE(cuMemAddressReserve(&q, 2 * MB, 0, 0, 0));
    WHILE(cuMemMap(q, 2 * MB, 0, h, 0));
    CUmemAccessDesc access = {{1, 0}, 3};
    WHILE(cuMemSetAccess(q, 2 * MB, &access, 1));
    WHILE(cuMemUnmap(q, 2 * MB));
    WHILE(cuMemRelease(h));
    WHILE(cuMemAddressFree(q, 2 * MB));
    CUstream u;
    WHILE(cuStreamCreate(&u, 1));
    WHILE(cuStreamDestroy_v2(u));
    WHILE(make_100_streams());
    CUevent f;
    WHILE(cuEventCreate(&f, 2));
    WHILE(cuEventRecord(f, s));
    WHILE(cuStreamWaitEvent(t, f, 0));
    WHILE(cuEventSynchronize(e));
    WHILE(cuEventDestroy_v2(f));
    WHILE(cuLaunchHostFunc(s, importless, NULL));
    // The stream `blocking` is ordered with the default stream.
#define BLOCKING(call) stuck(blocking), over("a blocking stream waits: " #call, call, blocking)
    BLOCKING(cuStreamSynchronize(NULL));
    BLOCKING(cuMemcpyHtoD_v2(p, pageable, 4096));
    BLOCKING(cuMemcpyDtoD_v2(p, p + 65536, 4096));
    BLOCKING(cuMemsetD8_v2(p, 0, 4096));
    BLOCKING(cuStreamQuery(NULL));
    BLOCKING(cuStreamSynchronize(t));
    CUstream dying;
    MUST(cuStreamCreate(&dying, 1));
    stuck(dying);
    over("destroy the stream itself", cuStreamDestroy_v2(dying), NULL);
    ask("synchronise", cuCtxSynchronize());
    MUST(cuMemAlloc_v2(&q, MB));
    WHILE(cuMemFreeAsync(q, t));
    CUdeviceptr imported;
    MUST(cuMemPoolExportToShareableHandle(&fd, spare, 1, 0));
    MUST(cuMemAllocFromPoolAsync(&q, MB, spare, t));
    MUST(cuStreamSynchronize(t));
    MUST(cuMemPoolExportPointer(&blob, q));
    MUST(cuMemPoolImportFromShareableHandle(&made, (void *)(intptr_t)fd, 1, 0));
    WHILE(cuMemPoolImportPointer(&imported, made, &blob));
    WHILE(cuMemFree_v2(imported));
    MUST(cuMemPoolImportPointer(&imported, made, &blob));
    WHILE(cuMemFreeAsync(imported, t));
    WHILE(cuMemPoolDestroy(made));
    CUcontext ctx;
    MUST(cuCtxCreate_v2(&ctx, 0, 0));
    MUST(cuStreamCreate(&dying, 1));
    stuck(dying);
    over("destroy the context", cuCtxDestroy_v2(ctx), NULL);
    ctx = primary(0);
    MUST(cuStreamCreate(&dying, 1));
    stuck(dying);
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    over("release the primary context", cuDevicePrimaryCtxRelease_v2(0), NULL);
}
