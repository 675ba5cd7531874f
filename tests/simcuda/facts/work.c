// Asks a driver about modules, copies, handles of destroyed objects, and sticky errors.
#include "facts.h"

#include <string.h>
#include <sys/mman.h>

enum { MB = 1 << 20 };

void section_modules(void) {
    primary(0);
    CUmodule m;
    CUfunction f;
    ask("empty text", cuModuleLoadData(&m, ""));
    ask("garbage", cuModuleLoadData(&m, "this is no program"));
    ask("null", cuModuleLoadData(&m, NULL));
    ask("text with a mistake", cuModuleLoadData(&m, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { nonsense; }\n"));
    f = store_kernel();
    CUdeviceptr p;
    MUST(cuMemAlloc_v2(&p, 4096));
    uint64_t n = 100;
    uint32_t multiply = 2, add = 1337, mask = 0xDEADBEEF, seen[2];
    void *params[] = {&p, &n, &multiply, &add, &mask};
    ask("launch", cuLaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
    MUST(cuMemcpyDtoH_v2(seen, p + 40, 8));
    say("what it wrote", "%#x %#x", seen[0], seen[1]);
    ask("launch no blocks", cuLaunchKernel(f, 0, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
    ask("launch too many threads", cuLaunchKernel(f, 1, 1, 1, 2048, 1, 1, 0, NULL, params, NULL));
    ask("launch without parameters", cuLaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, NULL, NULL, NULL));
    CUmodule again;
    MUST(cuModuleLoadData(&again, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry poolbridge_spin_ns(.param .u64 ns) { ret; }\n"));
    ask("a function that is not there", cuModuleGetFunction(&f, again, "no_such_kernel"));
}

void section_copies(void) {
    primary(0);
    CUdeviceptr a, b;
    char host[64] = "";
    CUmemoryPool pool = pool_of(0, 1, 0);
    MUST(cuMemAlloc_v2(&a, 4096));
    ask("one byte too many, plain memory", cuMemcpyDtoH_v2(host, a + 4090, 7));
    ask("memset one byte too many, plain memory", cuMemsetD8_v2(a + 4090, 0, 7));
    a = from_pool(pool, 4096);
    b = from_pool(pool, 4096);
    say("neighbours", "apart %lld", (long long)(b - a));
    ask("into the neighbour, pool memory", cuMemcpyDtoH_v2(host, a + 4090, 12));
    ask("memset into the neighbour, pool memory", cuMemsetD8_v2(a + 4090, 0, 12));
    ask("beyond the last, pool memory", cuMemcpyDtoH_v2(host, b + 4090, 12));
    ask("HtoD to a host address", cuMemcpyHtoD_v2((CUdeviceptr)host, host + 32, 16));
    ask("DtoH from a host address", cuMemcpyDtoH_v2(host, (CUdeviceptr)(host + 32), 16));
    ask("DtoD of host addresses", cuMemcpyDtoD_v2((CUdeviceptr)host, (CUdeviceptr)(host + 32), 16));
    ask("memset of a host address", cuMemsetD8_v2((CUdeviceptr)host, 0, 16));
    ask("cuMemcpy between host addresses", cuMemcpy((CUdeviceptr)host, (CUdeviceptr)(host + 32), 16));
    ask("cuMemcpy host to device", cuMemcpy(a, (CUdeviceptr)host, 16));
    ask("DtoH of zero bytes", cuMemcpyDtoH_v2(host, a, 0));
    ask("DtoH of zero bytes from null", cuMemcpyDtoH_v2(host, 0, 0));
    ask("DtoH from null", cuMemcpyDtoH_v2(host, 0, 16));
    ask("HtoD from null", cuMemcpyHtoD_v2(a, NULL, 16));
    ask("memset of zero bytes", cuMemsetD8_v2(a, 0, 0));
    ask("memset 32 misaligned", cuMemsetD32_v2(a + 2, 0, 4));
    ask("overlapping", cuMemcpyDtoD_v2(a + 8, a, 64));
    ask("synchronise", cuStreamSynchronize(NULL));
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(cuMemHostRegister_v2(page, 4096, 2));
    ask("memset of registered memory", cuMemsetD8_v2((CUdeviceptr)page, 3, 16));
    ask("DtoH from registered memory", cuMemcpyDtoH_v2(host, (CUdeviceptr)page, 16));
    ask("HtoD to registered memory", cuMemcpyHtoD_v2((CUdeviceptr)page, host, 16));
    ask("beyond registered memory", cuMemsetD8_v2((CUdeviceptr)page + 4090, 3, 16));
    ask("synchronise", cuStreamSynchronize(NULL));
    CUdeviceptr c = from_pool(pool, MB);
    MUST(cuMemFreeAsync(c, NULL));
    ask("copy from freed pool memory, not synchronised", cuMemcpyDtoH_v2(host, c, 16));
    MUST(cuStreamSynchronize(NULL));
    ask("copy from freed pool memory", cuMemcpyDtoH_v2(host, c, 16));
    ask("memset of freed pool memory", cuMemsetD8_v2(c, 0, 16));
    ask("synchronise", cuStreamSynchronize(NULL));
    MUST(cuMemAlloc_v2(&c, 5 * MB));
    MUST(cuMemFree_v2(c));
    ask("copy from freed plain memory", cuMemcpyDtoH_v2(host, c, 16));
    ask("memset of freed plain memory", cuMemsetD8_v2(c, 0, 16));
    ask("free plain memory again", cuMemFree_v2(c));
    ask("synchronise", cuStreamSynchronize(NULL));
}

void section_stale(void) {
    primary(0);
    CUmemoryPool pool = pool_of(0, 1, 0);
    MUST(cuMemPoolDestroy(pool));
    CUdeviceptr p;
    ask("allocate from a destroyed pool", cuMemAllocFromPoolAsync(&p, 4096, pool, NULL));
    ask("destroy a destroyed pool", cuMemPoolDestroy(pool));
    // This section passes no destroyed stream or event to a call, because the real driver would crash.
}

void section_sticky(void) {
    CUcontext ctx = primary(0);
    CUfunction f = store_kernel();
    CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {1, 0}};
    CUmemGenericAllocationHandle h;
    CUdeviceptr p, q;
    CUstream s;
    CUevent e;
    CUmemoryPool pool = pool_of(0, 1, 0);
    q = from_pool(pool, 4096);
    CUdeviceptr plain, more;
    CUstream t;
    CUmemoryPool imported;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(cuMemHostRegister_v2(page, 4096, 2));
    MUST(cuMemAlloc_v2(&plain, 4096));
    MUST(cuStreamCreate(&t, 1));
    MUST(cuStreamCreate(&s, 1));
    MUST(cuEventCreate(&e, 0));
    MUST(cuMemCreate(&h, 2 * MB, &prop, 0));
    MUST(cuMemAddressReserve(&p, 2 * MB, 0, 0, 0));
    MUST(cuMemMap(p, 2 * MB, 0, h, 0));
    MUST(cuMemSetAccess(p, 2 * MB, &(CUmemAccessDesc){{1, 0}, 1}, 1));
    uint64_t n = 1;
    uint32_t one = 1;
    void *params[] = {&p, &n, &one, &one, &one};
    ask("a kernel writes to read-only memory", cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
    ask("synchronise", cuStreamSynchronize(s));
    ask("synchronise again", cuStreamSynchronize(s));
    ask("synchronise the context", cuCtxSynchronize());
    ask("query", cuStreamQuery(s));
    ask("launch", cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
    ask("record", cuEventRecord(e, s));
    ask("allocate", cuMemAlloc_v2(&more, 4096));
    ask("allocate from the pool", cuMemAllocFromPoolAsync(&more, 4096, pool, s));
    ask("create a stream", cuStreamCreate(&s, 1));
    CUmemoryPool another;
    ask("create a pool", cuMemPoolCreate(&another, &(CUmemPoolProps){1, 1, {1, 0}, 0, 0, 0, {0}}));
    int fd;
    ask("export the pool", cuMemPoolExportToShareableHandle(&fd, pool, 1, 0));
    ask("unmap", cuMemUnmap(p, 2 * MB));
    ask("release", cuMemRelease(h));
    ask("create memory", cuMemCreate(&h, 2 * MB, &prop, 0));
    ask("current context", cuCtxGetCurrent(&ctx));
    ask("destroy the event", cuEventDestroy_v2(e));
    ask("destroy a stream", cuStreamDestroy_v2(t));
    ask("free plain memory", cuMemFree_v2(plain));
    ask("free pool memory", cuMemFreeAsync(q, NULL));
    ask("free pool memory at once", cuMemFree_v2(q));
    ask("unregister host memory", cuMemHostUnregister(page));
    ask("import a pool", cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)fd, 1, 0));
    ask("trim", cuMemPoolTrimTo(pool, 0));
    ask("release the primary context", cuDevicePrimaryCtxRelease_v2(0));
    ask("retain it again", cuDevicePrimaryCtxRetain(&ctx, 0));
    ask("destroy the pool", cuMemPoolDestroy(pool));
    ask("new context", cuCtxCreate_v2(&ctx, 0, 0));
    ask("reset", cuDevicePrimaryCtxReset_v2(0));
    ask("retain", cuDevicePrimaryCtxRetain(&ctx, 0));
    ask("set current", cuCtxSetCurrent(ctx));
    ask("allocate after the reset", cuMemAlloc_v2(&q, 4096));
}
