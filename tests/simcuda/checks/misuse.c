// Checks with programs that misuse the driver, which the detector must report, and correct programs, about which it must report nothing.
#include "checks.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

struct offer { int fd; CUmemPoolPtrExportData blob; };

static void share(CUmemoryPool pool, CUdeviceptr p, struct offer *o) {
    OK(cuMemPoolExportToShareableHandle(&o->fd, pool, 1, 0));
    OK(cuMemPoolExportPointer(&o->blob, p));
}

static void importer(struct child *parent) {
    struct offer o;
    char byte = 0;
    get(parent, &o, sizeof o);
    start(0);
    CUmemoryPool pool;
    CUdeviceptr p;
    int fd = borrow(parent->pid, o.fd);
    OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0));
    close(fd);
    OK(cuMemPoolImportPointer(&p, pool, &o.blob));
    put(parent, &byte, 1);
    get(parent, &byte, 1);
    OK(cuMemFree_v2(p));
    OK(cuMemPoolDestroy(pool));
    stop(0);
    put(parent, &byte, 1);
}

static void clean(void) {
    char byte = 0;
    struct child c = child_start(importer);
    start(0);
    CUmemoryPool pool = make_pool(0);
    CUdeviceptr p = take(pool, 4096), plain;
    struct offer o;
    share(pool, p, &o);
    put(&c, &o, sizeof o);
    get(&c, &byte, 1);
    close(o.fd);
    put(&c, &byte, 1);
    get(&c, &byte, 1);
    child_wait(&c);
    CUstream s;
    CUevent e;
    OK(cuStreamCreate(&s, 1));
    OK(cuEventCreate(&e, 0));
    OK(cuEventRecord(e, s));
    OK(cuMemAlloc_v2(&plain, 1000));
    OK(cuMemsetD8Async(plain, 1, 1000, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemFree_v2(plain));
    OK(cuMemFreeAsync(p, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemPoolDestroy(pool));
    OK(cuEventDestroy_v2(e));
    OK(cuStreamDestroy_v2(s));
    stop(0);
}

static void free_while_mapped(void) {
    char byte = 0;
    struct child c = child_start(importer);
    start(0);
    CUmemoryPool pool = make_pool(0);
    CUdeviceptr p = take(pool, 4096);
    struct offer o;
    share(pool, p, &o);
    put(&c, &o, sizeof o);
    get(&c, &byte, 1);
    OK(cuMemFree_v2(p));
    put(&c, &byte, 1);
    get(&c, &byte, 1);
    child_wait(&c);
    close(o.fd);
    OK(cuMemPoolDestroy(pool));
    stop(0);
}

static void importer_was_killed(void) {
    char byte = 0;
    struct child c = child_start(importer);
    start(0);
    CUmemoryPool pool = make_pool(0);
    CUdeviceptr p = take(pool, 4096);
    struct offer o;
    share(pool, p, &o);
    put(&c, &o, sizeof o);
    get(&c, &byte, 1);
    child_kill(&c);
    OK(cuMemFree_v2(p));
    close(o.fd);
    OK(cuMemPoolDestroy(pool));
    stop(0);
}

static CUmemoryPool import_own(struct offer *o) {
    CUmemoryPool imported;
    OK(cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)o->fd, 1, 0));
    return imported;
}

static void double_import_pointer(void) {
    start(0);
    CUmemoryPool pool = make_pool(0);
    struct offer o;
    share(pool, take(pool, 4096), &o);
    CUmemoryPool imported = import_own(&o);
    CUdeviceptr a, b;
    OK(cuMemPoolImportPointer(&a, imported, &o.blob));
    OK(cuMemPoolImportPointer(&b, imported, &o.blob));
    EXPECT(a == b);
    OK(cuMemFree_v2(a));
    RESULT(cuMemFree_v2(b), CUDA_ERROR_INVALID_VALUE);
}

static void pool_imported_twice(void) {
    start(0);
    CUmemoryPool pool = make_pool(0);
    struct offer o;
    CUdeviceptr p = take(pool, 4096);
    share(pool, p, &o);
    CUmemoryPool imported = import_own(&o);
    EXPECT(import_own(&o) == imported);
    close(o.fd);
    OK(cuMemPoolDestroy(imported));
    OK(cuMemPoolDestroy(imported));
    RESULT(cuMemFree_v2(p), CUDA_SUCCESS);
    OK(cuMemPoolDestroy(pool));
    stop(0);
}

static void missing_free(void) {
    start(0);
    take(make_pool(0), 4096);
}

static void leaked_stream(void) {
    CUstream s;
    start(0);
    OK(cuStreamCreate(&s, 0));
}

static void retained_context(void) { start(0); }

static void leaked_registration(void) {
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    start(0);
    OK(cuMemHostRegister_v2(page, 4096, 2));
}

static void forgotten_fd(void) {
    start(0);
    CUmemoryPool pool = make_pool(0);
    int fd;
    OK(cuMemPoolExportToShareableHandle(&fd, pool, 1, 0));
    OK(cuMemPoolDestroy(pool));
    stop(0);
}

static void missing_context(void) {
    CUdeviceptr p;
    OK(cuInit(0));
    RESULT(cuMemAlloc_v2(&p, 4096), CUDA_ERROR_INVALID_CONTEXT);
}

static void pool_before_pointer(void) {
    start(0);
    CUmemoryPool pool = make_pool(0);
    CUdeviceptr p = take(pool, 4096);
    OK(cuMemPoolDestroy(pool));
    OK(cuMemFree_v2(p));
    stop(0);
}

static void imported_pool_before_pointer(void) {
    start(0);
    CUmemoryPool pool = make_pool(0);
    struct offer o;
    share(pool, take(pool, 4096), &o);
    CUmemoryPool imported = import_own(&o);
    CUdeviceptr p;
    OK(cuMemPoolImportPointer(&p, imported, &o.blob));
    RESULT(cuMemPoolDestroy(imported), CUDA_ERROR_INVALID_VALUE);
}

static CUdeviceptr mapped(CUmemGenericAllocationHandle *h) {
    CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {1, 0}};
    CUdeviceptr p;
    OK(cuMemCreate(h, 2 << 20, &prop, 0));
    OK(cuMemAddressReserve(&p, 2 << 20, 0, 0, 0));
    OK(cuMemMap(p, 2 << 20, 0, *h, 0));
    OK(cuMemSetAccess(p, 2 << 20, &(CUmemAccessDesc){{1, 0}, 3}, 1));
    return p;
}

static void addresses_before_mapping(void) {
    start(0);
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = mapped(&h);
    RESULT(cuMemAddressFree(p, 2 << 20), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(p, 2 << 20));
    OK(cuMemRelease(h));
    OK(cuMemAddressFree(p, 2 << 20));
    stop(0);
}

static void use_after_free(void) {
    start(0);
    CUmemoryPool pool = make_pool(0);
    CUdeviceptr p = take(pool, 4096);
    OK(cuMemFreeAsync(p, NULL));
    RESULT(cuMemsetD8_v2(p, 1, 16), CUDA_ERROR_INVALID_VALUE);
}

static void use_after_unmap(void) {
    start(0);
    CUmemGenericAllocationHandle h;
    CUdeviceptr p = mapped(&h);
    char byte;
    OK(cuMemUnmap(p, 2 << 20));
    RESULT(cuMemcpyDtoH_v2(&byte, p, 1), CUDA_ERROR_INVALID_VALUE);
}

static void free_twice(void) {
    start(0);
    CUmemoryPool pool = make_pool(0);
    CUdeviceptr p = take(pool, 4096);
    OK(cuMemFree_v2(p));
    RESULT(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
}

static void stale_stream(void) {
    start(0);
    CUstream s;
    OK(cuStreamCreate(&s, 0));
    OK(cuStreamDestroy_v2(s));
    RESULT(cuStreamDestroy_v2(s), CUDA_ERROR_INVALID_HANDLE);
}

static pthread_barrier_t both; // so that the calls of two threads begin together, on a busy machine too
static bool together;

static void *export_often(void *pool) {
    for (int i = 0; i < 20; i++) {
        int fd;
        if (together) pthread_barrier_wait(&both);
        OK(cuMemPoolExportToShareableHandle(&fd, pool, 1, 0));
        close(fd);
    }
    return NULL;
}

static void concurrent_export(void) {
    start(0);
    pthread_t threads[2];
    together = true;
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, export_often, make_pool(0));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

static void exports_under_a_lock(void) {
    start(0);
    CUmemoryPool pool = make_pool(0);
    pthread_t thread;
    for (int i = 0; i < 2; i++) {
        pthread_create(&thread, NULL, export_often, pool);
        pthread_join(thread, NULL);
    }
    OK(cuMemPoolDestroy(pool));
    stop(0);
}

const struct check misuse_checks[] = {
    {"a clean program is not reported", NULL, clean, "", 0},
    {"free while another process has it mapped", NULL, free_while_mapped, "kind=free-while-mapped", 0},
    {"free after the importer was killed is clean", NULL, importer_was_killed, "", 0},
    {"double import of a pointer", NULL, double_import_pointer, "kind=double-import", 0},
    {"a pool imported twice and destroyed twice is clean", NULL, pool_imported_twice, "", 0},
    {"missing free", NULL, missing_free, "kind=leak: 1 pool allocation not", 0},
    {"a pool is left", NULL, missing_free, "kind=leak: 1 pool not", 0},
    {"a stream is left", NULL, leaked_stream, "kind=leak: 1 stream", 0},
    {"a context is left", NULL, retained_context, "kind=leak: 1 context", 0},
    {"a registration is left", NULL, leaked_registration, "kind=leak: 1 registered host memory", 0},
    {"forgotten fd", NULL, forgotten_fd, "kind=forgotten-fd", 0},
    {"missing context", NULL, missing_context, "kind=missing-context: cuMemAlloc", 0},
    {"wrong order: pool before its pointer", NULL, pool_before_pointer, "kind=wrong-order", 0},
    {"wrong order: imported pool before its pointer", NULL, imported_pool_before_pointer, "kind=wrong-order", 0},
    {"wrong order: addresses before the mapping", NULL, addresses_before_mapping, "kind=wrong-order", 0},
    {"use after free", NULL, use_after_free, "kind=use-after-free", 0},
    {"use after unmap", NULL, use_after_unmap, "kind=use-after-free", 0},
    {"free twice", NULL, free_twice, "kind=use-after-free", 0},
    {"stream destroyed twice", NULL, stale_stream, "kind=stale-handle", 0},
    {"export by two threads at once", "SIMCUDA_MISUSE_DWELL_US=10000", concurrent_export, "kind=concurrent-ipc", 0},
    {"exports one after the other are clean", NULL, exports_under_a_lock, "", 0},
    {"abort on misuse", "SIMCUDA_MISUSE=abort", missing_context, NULL, SIGABRT},
    {"report and abort", "SIMCUDA_MISUSE=@/misuse,abort", missing_context, "kind=missing-context", SIGABRT},
    {0},
};
