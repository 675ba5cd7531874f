// Asks a driver about the look-up of functions, about the initialisation of the driver, and about contexts.
#include "facts.h"

static void find(const char *symbol, int version, uint64_t flags) {
    void *at = NULL;
    int status = -1;
    char question[96];
    CUresult r = cuGetProcAddress_v2(symbol, &at, version, flags, &status);
    snprintf(question, sizeof question, "%s at %d with flags %d", symbol, version, (int)flags);
    say(question, "%s, status %d, %s", name(r), status, at ? "found" : "null");
}

void section_address(void) {
    find("cuMemAlloc", 2000, 0);
    find("cuMemAlloc", 3020, 0);
    find("cuMemAlloc", 13000, 0);
    find("cuMemAlloc", 99000, 0);
    find("cuMemAlloc_v2", 13000, 0);
    find("cuNoSuchFunction", 13000, 0);
    find("cuStreamGetDevice", 12000, 0);
    find("cuStreamGetDevice", 12080, 0);
    find("cuMemcpyHtoDAsync", 13000, 2);
    find("cuInit", 13000, 3);
    find("", 13000, 0);
    find("cuMemPoolCreate", 11010, 0);
    find("cuMemAlloc", 13001, 0);
    find("cuMemAlloc", 13050, 0);
    void *at = NULL;
    ask("a missing name without a status", cuGetProcAddress_v2("cuNoSuchFunction", &at, 13000, 0, NULL));
}

void section_start(void) {
    int n;
    CUcontext ctx;
    CUdevice dev;
    ask("cuDeviceGetCount before cuInit", cuDeviceGetCount(&n));
    ask("cuCtxGetCurrent before cuInit", cuCtxGetCurrent(&ctx));
    ask("cuMemAlloc before cuInit", cuMemAlloc_v2(&(CUdeviceptr){0}, 4096));
    ask("cuInit with flags", cuInit(1));
    ask("cuInit", cuInit(0));
    for (size_t i = 0; i < 3; i++) {
        static const int attributes[] = {119, 142, 144}; // handle types of pools; host NUMA pools; host pools
        char q[48];
        int value = -1;
        CUresult r = cuDeviceGetAttribute(&value, attributes[i], 0);
        snprintf(q, sizeof q, "device attribute %d", attributes[i]);
        say(q, "%s %d", name(r), value);
    }
    ask("cuInit again", cuInit(0));

    CUdeviceptr p = 0;
    CUstream s;
    CUevent e;
    CUmemoryPool pool = NULL;
    CUmemGenericAllocationHandle h;
    size_t size;
    CUmemPoolProps props = {.allocType = 1, .handleTypes = 1, .location = {1, 0}};
    CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {1, 0}};
    ctx = (CUcontext)1;
    ask("no context: cuCtxGetCurrent", cuCtxGetCurrent(&ctx));
    say("no context: is null", "%d", ctx == NULL);
    ask("no context: cuCtxGetDevice", cuCtxGetDevice(&dev));
    ask("no context: cuCtxSynchronize", cuCtxSynchronize());
    ask("no context: cuCtxPopCurrent", cuCtxPopCurrent_v2(&ctx));
    ask("no context: cuCtxSetCurrent null", cuCtxSetCurrent(NULL));
    ask("no context: cuMemAlloc", cuMemAlloc_v2(&p, 4096));
    ask("no context: cuMemFree of null", cuMemFree_v2(0));
    ask("no context: cuMemGetInfo", cuMemGetInfo_v2(&size, &size));
    ask("no context: cuStreamCreate", cuStreamCreate(&s, 0));
    ask("no context: cuStreamSynchronize null", cuStreamSynchronize(NULL));
    ask("no context: cuEventCreate", cuEventCreate(&e, 0));
    ask("no context: cuMemHostRegister", cuMemHostRegister_v2(&props, 64, 2));
    ask("no context: cuMemAddressReserve", cuMemAddressReserve(&p, 2 << 20, 0, 0, 0));
    ask("no context: cuMemCreate", cuMemCreate(&h, 2 << 20, &prop, 0));
    ask("no context: cuDeviceGetDefaultMemPool", cuDeviceGetDefaultMemPool(&pool, 0));
    CUresult made = cuMemPoolCreate(&pool, &props);
    ask("no context: cuMemPoolCreate", made);
    if (made == CUDA_SUCCESS) {
        int fd = -1;
        ask("no context: cuMemAllocFromPoolAsync", cuMemAllocFromPoolAsync(&p, 4096, pool, NULL));
        ask("no context: cuMemPoolExportToShareableHandle", cuMemPoolExportToShareableHandle(&fd, pool, 1, 0));
        ask("no context: cuMemPoolTrimTo", cuMemPoolTrimTo(pool, 0));
        ask("no context: cuMemPoolDestroy", cuMemPoolDestroy(pool));
    }
    ask("no context: cuMemPoolImportFromShareableHandle of nothing",
        cuMemPoolImportFromShareableHandle(&pool, (void *)-1, 1, 0));
    ask("no context: cuMemFreeAsync of nothing", cuMemFreeAsync(4096, NULL));
    ask("no context: cuModuleLoadData", cuModuleLoadData(&(CUmodule){0}, ".version 7.0\n"));
    unsigned type;
    ask("no context: cuPointerGetAttribute of a host address", cuPointerGetAttribute(&type, 2, (CUdeviceptr)&type));
}

void section_contexts(void) {
    CUcontext a, b, c, now;
    unsigned version = 0, flags;
    int active;
    MUST(cuInit(0));
    ask("release of a primary context never retained", cuDevicePrimaryCtxRelease_v2(0));
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    say("state before", "flags %u active %d", flags, active);
    MUST(cuDevicePrimaryCtxRetain(&a, 0));
    MUST(cuDevicePrimaryCtxRetain(&b, 0));
    say("retained twice", "same %d", a == b);
    MUST(cuCtxGetCurrent(&now));
    say("retaining makes current", "%d", now != NULL);
    MUST(cuCtxSetCurrent(a));
    MUST(cuCtxGetApiVersion(a, &version));
    say("api version of a primary context", "%u", version);
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    say("state while retained", "flags %u active %d", flags, active);
    ask("cuCtxDestroy of a primary context", cuCtxDestroy_v2(a));
    int least, greatest;
    MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
    say("priorities", "%d to %d", least, greatest);
    for (int i = 0; i < 8; i++) {
        size_t value = 0;
        char question[32];
        snprintf(question, sizeof question, "limit %d", i);
        ask(question, cuCtxGetLimit(&value, i));
    }
    CUdeviceptr p;
    MUST(cuMemAlloc_v2(&p, 4096));
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    ask("released: cuCtxGetCurrent", cuCtxGetCurrent(&now));
    say("released: current", "%s", now == NULL ? "null" : now == a ? "the same" : "another");
    ask("released: cuMemAlloc", cuMemAlloc_v2(&p, 4096));
    ask("released: cuCtxGetDevice", cuCtxGetDevice(&(CUdevice){0}));
    ask("released: cuCtxSynchronize", cuCtxSynchronize());
    ask("released: one release more", cuDevicePrimaryCtxRelease_v2(0));
    MUST(cuDevicePrimaryCtxRetain(&b, 0));
    say("retained again", "same %d", a == b);
    ask("retained again: cuMemAlloc", cuMemAlloc_v2(&p, 4096));
    MUST(cuCtxSetCurrent(b));
    ask("retained again and set: cuMemAlloc", cuMemAlloc_v2(&p, 4096));
    MUST(cuCtxSetCurrent(NULL));
    MUST(cuCtxCreate_v2(&c, 0, 0));
    MUST(cuCtxGetApiVersion(c, &version));
    say("api version of a created context", "%u", version);
    CUdeviceptr q;
    MUST(cuMemAlloc_v2(&q, 4096));
    ask("cuMemFree of another context's memory", cuMemFree_v2(p));
    MUST(cuCtxPushCurrent_v2(b));
    ask("cuCtxDestroy below the top of the stack", cuCtxDestroy_v2(c));
    MUST(cuCtxPopCurrent_v2(&now));
    say("popped", "%s", now == b ? "the primary" : "another");
    ask("destroyed: cuMemAlloc", cuMemAlloc_v2(&p, 4096));
    ask("destroyed: cuCtxPopCurrent", cuCtxPopCurrent_v2(&now));
    ask("reset", cuDevicePrimaryCtxReset_v2(0));
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    say("state after a reset", "active %d", active);
    ask("reset: cuCtxSetCurrent", cuCtxSetCurrent(b));
    ask("reset: cuMemAlloc", cuMemAlloc_v2(&p, 4096));
}
