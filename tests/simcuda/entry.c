// Code that runs at the beginning of every call, and when the process starts, forks or exits.
#include "sim.h"

static atomic_bool initialised, forked;
atomic_bool sim_stopping;
pthread_mutex_t sim_mu = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t sim_progress = PTHREAD_COND_INITIALIZER;

// A driver that was initialised before a fork does not work in the child. No code of the simulation may run in the
// child: the child has no workers, and its locks may be locked for ever.
static void after_fork(void) {
    if (initialised) forked = true;
    else counts_forked();
}

__attribute__((constructor)) static void start(void) {
    config_load();
    faults_load();
    misuse_load();
    counts_open();
    pthread_atfork(NULL, NULL, after_fork);
}

__attribute__((destructor)) static void stop(void) {
    if (forked || !initialised) return;
    leaks_report();
    sim_stopping = true;
    streams_stop();
}

CUresult sim_enter(enum fn fn, enum need need) {
    if (forked) return need == NEED_NOTHING ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    if (sim_stopping) return need == NEED_NOTHING ? CUDA_SUCCESS : CUDA_ERROR_DEINITIALIZED;
    counts_call(fn);
    CUresult fault = faults_apply(fn);
    if (fault != CUDA_SUCCESS) return fault;
    if (need == NEED_NOTHING) return CUDA_SUCCESS;
    if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
    CUresult r = capture_check(fn);
    if (r != CUDA_SUCCESS || need == NEED_INIT) return r;
    struct context *ctx;
    r = ctx_need(&ctx);
    if (r == CUDA_ERROR_INVALID_CONTEXT) misuse_missing_context(fn);
    return r;
}

SIM_API CUresult cuInit(unsigned int flags) {
    ENTER(cuInit, NEED_NOTHING);
    if (forked) return CUDA_ERROR_NOT_INITIALIZED;
    if (sim_stopping) return CUDA_ERROR_DEINITIALIZED;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (config.devices == 0) return CUDA_ERROR_NO_DEVICE;
    initialised = true;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDriverGetVersion(int *version) {
    ENTER(cuDriverGetVersion, NEED_NOTHING);
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 13000;
    return CUDA_SUCCESS;
}
