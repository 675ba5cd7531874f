// Asks which calls CUDA forbids while the work of a stream is captured into a graph. A call that is forbidden spoils the capture.
#include "facts.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { KB = 1 << 10, GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

static CUcontext context;
static CUstream captured, other;
static CUmemoryPool pool;
static CUdeviceptr block, linear, copy;
static CUevent event;
static void *page, *shared;
static int descriptor;

static CUresult host_register(void) { return cuMemHostRegister_v2(page, 4 * KB, 3); }
static CUresult host_unregister(void) { return cuMemHostUnregister(page); }
static CUresult host_pointer(void) { CUdeviceptr p; return cuMemHostGetDevicePointer_v2(&p, shared, 0); }
static CUresult stream_create(void) { CUstream s; return cuStreamCreate(&s, 1); }
static CUresult query_other(void) { return cuStreamQuery(other); }
static CUresult query_captured(void) { return cuStreamQuery(captured); }
static CUresult synchronise_other(void) { return cuStreamSynchronize(other); }
static CUresult synchronise_captured(void) { return cuStreamSynchronize(captured); }
static CUresult is_capturing(void) { int is; return cuStreamIsCapturing(captured, &is); }
static CUresult event_create(void) { CUevent e; return cuEventCreate(&e, 2); }
static CUresult event_query(void) { return cuEventQuery(event); }
static CUresult event_synchronise(void) { return cuEventSynchronize(event); }
static CUresult event_record(void) { return cuEventRecord(event, other); }
static CUresult event_wait(void) { return cuStreamWaitEvent(other, event, 0); }
static CUresult word_write(void) { return cuStreamWriteValue64_v2(other, (CUdeviceptr)shared, 1, 0); }
static CUresult pool_create(void) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool p;
    return cuMemPoolCreate(&p, &props);
}
static CUresult pool_trim(void) { return cuMemPoolTrimTo(pool, 0); }
static CUresult pool_export(void) { int fd; return cuMemPoolExportToShareableHandle(&fd, pool, 1, 0); }
static CUresult pool_import(void) {
    CUmemoryPool p;
    return cuMemPoolImportFromShareableHandle(&p, (void *)(intptr_t)descriptor, 1, 0);
}
static CUresult pointer_export(void) { CUmemPoolPtrExportData data; return cuMemPoolExportPointer(&data, block); }
static CUresult pool_allocate(void) { CUdeviceptr p; return cuMemAllocFromPoolAsync(&p, 4 * KB, pool, other); }
static CUresult allocate(void) { CUdeviceptr p; return cuMemAlloc_v2(&p, 4 * KB); }
static CUresult allocate_host(void) { void *p; return cuMemHostAlloc(&p, 4 * KB, 1); }
static CUresult copy_now(void) { return cuMemcpy(copy, linear, 64); }
static CUresult copy_other(void) { return cuMemcpyAsync(copy, linear, 64, other); }
static CUresult legacy_handle(void) { CUipcMemHandle h; return cuIpcGetMemHandle(&h, linear); }
static CUresult pointer_attribute(void) { int ordinal; return cuPointerGetAttribute(&ordinal, 9, block); }
static CUresult context_synchronise(void) { return cuCtxSynchronize(); }
static CUresult retain(void) { CUcontext c; return cuDevicePrimaryCtxRetain(&c, 0); }

static const struct question { const char *name; CUresult (*call)(void); } questions[] = {
    {"cuMemHostRegister", host_register}, {"cuMemHostUnregister", host_unregister}, {"cuMemHostGetDevicePointer", host_pointer},
    {"cuStreamCreate", stream_create}, {"cuStreamQuery of another stream", query_other}, {"cuStreamQuery of this stream", query_captured},
    {"cuStreamSynchronize of another stream", synchronise_other}, {"cuStreamSynchronize of this stream", synchronise_captured},
    {"cuStreamIsCapturing", is_capturing}, {"cuEventCreate", event_create}, {"cuEventQuery", event_query},
    {"cuEventSynchronize", event_synchronise}, {"cuEventRecord in another stream", event_record},
    {"cuStreamWaitEvent of another stream", event_wait}, {"cuStreamWriteValue64 of another stream", word_write},
    {"cuMemPoolCreate", pool_create}, {"cuMemPoolTrimTo", pool_trim}, {"cuMemPoolExportToShareableHandle", pool_export},
    {"cuMemPoolImportFromShareableHandle", pool_import}, {"cuMemPoolExportPointer", pointer_export},
    {"cuMemAllocFromPoolAsync in another stream", pool_allocate}, {"cuMemAlloc", allocate}, {"cuMemHostAlloc", allocate_host},
    {"cuMemcpy", copy_now}, {"cuMemcpyAsync in another stream", copy_other}, {"cuIpcGetMemHandle", legacy_handle},
    {"cuPointerGetAttribute", pointer_attribute}, {"cuCtxSynchronize", context_synchronise}, {"cuDevicePrimaryCtxRetain", retain},
};

// One call during a capture: by the thread that began the capture, or by another thread whose mode is `thread_mode`.
struct trial { CUresult (*call)(void); int thread_mode; CUresult result; };

static void *make_call(void *argument) {
    struct trial *t = argument;
    int mode = t->thread_mode;
    MUST(cuCtxSetCurrent(context));
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    t->result = t->call();
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    return NULL;
}

static void try_call(const struct question *q, int capture_mode, int thread_mode, bool thread, char *to, size_t size) {
    struct trial t = {q->call, thread_mode, CUDA_SUCCESS};
    pthread_t id;
    void *graph;
    bool registered = q->call == host_unregister;
    if (registered) MUST(host_register());
    MUST(cuStreamBeginCapture_v2(captured, capture_mode));
    if (!thread) make_call(&t);
    else if (!pthread_create(&id, NULL, make_call, &t)) pthread_join(id, NULL);
    CUresult end = cuStreamEndCapture(captured, &graph);
    bool made = q->call == host_register && t.result == CUDA_SUCCESS;
    if (made || (registered && t.result != CUDA_SUCCESS)) MUST(host_unregister());
    const char *result = t.result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? "forbidden" : name(t.result);
    size_t length = strlen(to);
    snprintf(to + length, size - length, "%s%s%s", *to ? ", " : "", result,
             end == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ? " and spoilt" : end ? " and another end" : "");
}

void section_captures(void) {
    context = primary(0);
    MUST(cuStreamCreate(&captured, 1));
    MUST(cuStreamCreate(&other, 1));
    MUST(cuEventCreate(&event, 2));
    MUST(cuEventRecord(event, other));
    pool = pool_of(0, 1, 0);
    block = from_pool(pool, 4 * KB);
    MUST(cuMemAlloc_v2(&linear, 4 * KB));
    MUST(cuMemAlloc_v2(&copy, 4 * KB));
    MUST(cuMemPoolExportToShareableHandle(&descriptor, pool, 1, 0));
    page = mmap(NULL, 4 * KB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared = mmap(NULL, 4 * KB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(cuMemHostRegister_v2(shared, 4 * KB, 3));
    MUST(cuCtxSynchronize());
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        char answers[400] = "";
        try_call(&questions[i], GLOBAL, GLOBAL, false, answers, sizeof answers);
        try_call(&questions[i], GLOBAL, GLOBAL, true, answers, sizeof answers);
        try_call(&questions[i], THREAD_LOCAL, GLOBAL, false, answers, sizeof answers);
        try_call(&questions[i], THREAD_LOCAL, GLOBAL, true, answers, sizeof answers);
        try_call(&questions[i], GLOBAL, RELAXED, false, answers, sizeof answers);
        try_call(&questions[i], GLOBAL, RELAXED, true, answers, sizeof answers);
        try_call(&questions[i], RELAXED, GLOBAL, false, answers, sizeof answers);
        try_call(&questions[i], GLOBAL, THREAD_LOCAL, true, answers, sizeof answers);
        say(questions[i].name, "%s", answers);
    }
    ask("and then", cuCtxSynchronize());
}
