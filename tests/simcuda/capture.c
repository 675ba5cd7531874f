// Captures of a stream's work into a graph. Graphs are not simulated: a capture begins and ends, queries report it, and its
// stream takes no work. Calls that CUDA forbids during a capture fail and spoil the capture. facts/captures.c finds
// out which calls these are.
#include "sim.h"

enum { GLOBAL, THREAD_LOCAL, RELAXED };
static struct stream *capturing;
static atomic_int captures; // the length of the list
static _Thread_local int thread_mode;

// Returns whether the capture of s forbids unsafe calls to this thread. The mode of this thread must not be RELAXED.
static bool binds(const struct stream *s) {
    if (pthread_equal(s->capturer, pthread_self())) return s->capture_mode != RELAXED;
    return s->capture_mode == GLOBAL && thread_mode == GLOBAL;
}

static bool is_unsafe(enum fn fn) {
    switch (fn) {
    case FN_cuMemHostAlloc:
    case FN_cuMemHostRegister:
    case FN_cuMemHostUnregister:
    case FN_cuStreamQuery:
    case FN_cuStreamSynchronize:
    case FN_cuEventQuery:
    case FN_cuEventSynchronize:
    case FN_cuMemPoolCreate:
    case FN_cuMemPoolDestroy:
    case FN_cuMemPoolTrimTo:
    case FN_cuMemPoolExportToShareableHandle:
    case FN_cuMemPoolImportFromShareableHandle:
    case FN_cuMemPoolExportPointer:
    case FN_cuMemAllocFromPoolAsync:
    case FN_cuMemFreeAsync:
    case FN_cuMemAlloc:
    case FN_cuMemFree:
        return true;
    default:
        return false;
    }
}

CUresult capture_check(enum fn fn) {
    if (!captures || thread_mode == RELAXED || !is_unsafe(fn)) return CUDA_SUCCESS;
    CUresult r = CUDA_SUCCESS;
    LOCK();
    for (struct stream *s = capturing; s; s = s->next_capturing) {
        if (!binds(s)) continue;
        s->spoiled = true;
        r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    UNLOCK();
    return r;
}

void capture_drop(struct stream *s) {
    struct stream **p = &capturing;
    while (*p && *p != s) p = &(*p)->next_capturing;
    if (!*p) return;
    *p = s->next_capturing;
    captures--;
    s->capturing = false;
}

SIM_API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    ENTER(cuStreamBeginCapture, NEED_CTX);
    if (mode < GLOBAL || mode > RELAXED) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct stream *s;
    CUresult r = stream_find(handle, &s);
    if (r == CUDA_SUCCESS && (s->legacy || s->capturing)) r = CUDA_ERROR_ILLEGAL_STATE;
    if (r == CUDA_SUCCESS) {
        s->capturing = true;
        s->spoiled = false;
        s->capture_mode = mode;
        s->capturer = pthread_self();
        s->next_capturing = capturing;
        capturing = s;
        captures++;
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuStreamEndCapture(CUstream handle, void **graph) {
    ENTER(cuStreamEndCapture, NEED_CTX);
    if (graph) *graph = NULL;
    LOCK();
    struct stream *s;
    CUresult r = stream_find(handle, &s);
    if (r == CUDA_SUCCESS && !s->capturing) r = CUDA_ERROR_ILLEGAL_STATE;
    if (r == CUDA_SUCCESS) {
        capture_drop(s);
        if (s->spoiled) r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuStreamIsCapturing(CUstream handle, int *out) { ASK(cuStreamIsCapturing, out, s->capturing); }

SIM_API CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *out, uint64_t *id, void **graph, void ***nodes,
                                           size_t *count) {
    (void)id, (void)graph, (void)nodes, (void)count;
    ASK(cuStreamGetCaptureInfo, out, s->capturing);
}

SIM_API CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int *out, uint64_t *id, void **graph, void ***nodes,
                                           void ***edges, size_t *count) {
    (void)id, (void)graph, (void)nodes, (void)edges, (void)count;
    ASK(cuStreamGetCaptureInfo, out, s->capturing);
}

SIM_API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER(cuThreadExchangeStreamCaptureMode, NEED_INIT);
    if (!mode || *mode < GLOBAL || *mode > RELAXED) return CUDA_ERROR_INVALID_VALUE;
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
