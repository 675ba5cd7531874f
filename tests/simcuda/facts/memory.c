// Asks a driver about host memory, and about attributes of addresses.
#include "facts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MB = 1 << 20 };

void section_host(void) {
    primary(0);
    char *pages = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CUdeviceptr d = 0;
    unsigned flags = 0;
    ask("register nothing", cuMemHostRegister_v2(NULL, 4096, 2));
    ask("register zero bytes", cuMemHostRegister_v2(pages, 0, 2));
    ask("register 100 bytes in the middle of a page", cuMemHostRegister_v2(pages + 100, 100, 2));
    ask("its device pointer", cuMemHostGetDevicePointer_v2(&d, pages + 100, 0));
    say("its device pointer is the same", "%d", d == (CUdeviceptr)(pages + 100));
    ask("register the page around it", cuMemHostRegister_v2(pages, 4096, 2));
    ask("register the rest of its page", cuMemHostRegister_v2(pages + 200, 100, 2));
    ask("unregister inside", cuMemHostUnregister(pages + 110));
    ask("unregister the rest", cuMemHostUnregister(pages + 200));
    ask("unregister", cuMemHostUnregister(pages + 100));
    ask("unregister again", cuMemHostUnregister(pages + 100));
    ask("register with flags 0", cuMemHostRegister_v2(pages, 4096, 0));
    ask("device pointer with flags 0", cuMemHostGetDevicePointer_v2(&d, pages, 0));
    ask("host flags of registered memory", cuMemHostGetFlags(&flags, pages));
    ask("register again", cuMemHostRegister_v2(pages, 4096, 0));
    ask("register overlapping", cuMemHostRegister_v2(pages, 8192, 0));
    ask("unregister", cuMemHostUnregister(pages));
    ask("device pointer of unregistered memory", cuMemHostGetDevicePointer_v2(&d, pages, 0));
    ask("register unknown flags", cuMemHostRegister_v2(pages, 4096, 64));
    ask("register everything", cuMemHostRegister_v2(pages, 16384, 3));
    ask("unregister", cuMemHostUnregister(pages));
    char *readable = mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ask("register a read-only page as writable", cuMemHostRegister_v2(readable, 4096, 2));
    ask("register it as read-only", cuMemHostRegister_v2(readable, 4096, 10));
    char byte;
    ask("copy from it", cuMemcpy((CUdeviceptr)&byte, (CUdeviceptr)readable, 1));
    ask("unregister", cuMemHostUnregister(readable));
    char *gone = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(gone, 4096);
    ask("register unmapped memory", cuMemHostRegister_v2(gone, 4096, 2));
    void *host;
    MUST(cuMemHostAlloc(&host, 1000, 0));
    ask("flags of pinned memory", cuMemHostGetFlags(&flags, host));
    say("flags of pinned memory", "%u", flags);
    ask("register pinned memory", cuMemHostRegister_v2(host, 1000, 2));
    ask("unregister pinned memory", cuMemHostUnregister(host));
    ask("free pinned memory inside", cuMemFreeHost((char *)host + 64));
    ask("free pinned memory", cuMemFreeHost(host));
    ask("free pinned memory again", cuMemFreeHost(host));
    CUdeviceptr p;
    MUST(cuMemAlloc_v2(&p, 4096));
    ask("free device memory as host memory", cuMemFreeHost((void *)p));
    ask("register device memory", cuMemHostRegister_v2((void *)p, 4096, 2));
}

static const char *const names[] = {
    "", "context", "memory type", "device pointer", "host pointer", "p2p tokens", "sync memops", "buffer id", "managed",
    "ordinal", "legacy ipc capable", "range start", "range size", "mapped", "handle types", "rdma capable",
    "access flags", "pool", "mapping size", "mapping base", "block id",
};

static void about(const char *what, CUdeviceptr p, CUmemoryPool pool) {
    CUcontext current;
    cuCtxGetCurrent(&current);
    for (int i = 1; i <= 20; i++) {
        if (i == 5) continue;
        uint64_t value[4] = {0};
        char q[96];
        CUresult r = cuPointerGetAttribute(value, i, p);
        snprintf(q, sizeof q, "%s: %s", what, names[i]);
        uint64_t v = value[0];
        if (r != CUDA_SUCCESS) ask(q, r);
        else if (i == 1) say(q, "%s", v == (uint64_t)current ? "current" : v ? "another" : "null");
        else if (i == 3 || i == 4 || i == 11 || i == 19) say(q, "%s", v == p ? "the address" : v ? "another" : "null");
        else if (i == 7 || i == 20) say(q, "a number");
        else if (i == 17) say(q, "%s", v == 0 ? "null" : v == (uint64_t)pool ? "the pool" : "another");
        else if (i == 15) say(q, "answered");
        else say(q, "%llu", (unsigned long long)(i == 12 || i == 14 || i == 18 ? v : (uint32_t)v));
    }
}

void section_attributes(void) {
    primary(0);
    CUdeviceptr p, v;
    void *host, *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(cuMemAlloc_v2(&p, 1000));
    about("device memory", p, NULL);
    CUmemoryPool pool = pool_of(0, 1, 0);
    about("exportable pool", from_pool(pool, 1000), pool);
    pool = pool_of(0, 0, 0);
    about("private pool", from_pool(pool, 1000), pool);
    CUmemPoolProps props = {1, 1, {3, 0}, 0, 0, 0, {0}};
    MUST(cuMemPoolCreate(&pool, &props));
    MUST(cuMemPoolSetAccess(pool, &(CUmemAccessDesc){{1, 0}, 3}, 1));
    about("host pool", from_pool(pool, 1000), pool);
    CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {1, 0}};
    CUmemGenericAllocationHandle h;
    MUST(cuMemCreate(&h, 4 * MB, &prop, 0));
    MUST(cuMemAddressReserve(&v, 8 * MB, 0, 0, 0));
    MUST(cuMemMap(v, 4 * MB, 0, h, 0));
    about("virtual memory without access", v, NULL);
    MUST(cuMemSetAccess(v, 4 * MB, &(CUmemAccessDesc){{1, 0}, 1}, 1));
    about("virtual memory, read", v, NULL);
    MUST(cuMemSetAccess(v, 4 * MB, &(CUmemAccessDesc){{1, 0}, 3}, 1));
    about("virtual memory, read and write", v, NULL);
    about("reserved and not mapped", v + 4 * MB, NULL);
    MUST(cuMemHostAlloc(&host, 1000, 0));
    about("pinned host memory", (CUdeviceptr)host, NULL);
    MUST(cuMemHostRegister_v2(page, 1000, 2));
    about("registered host memory", (CUdeviceptr)page, NULL);
    about("a host address", (CUdeviceptr)&host, NULL);
    CUdeviceptr managed = 0;
    ask("managed memory of zero bytes", cuMemAllocManaged(&managed, 0, 1));
    ask("managed memory without flags", cuMemAllocManaged(&managed, 4096, 0));
    ask("managed memory", cuMemAllocManaged(&managed, 1000, 1));
    about("managed memory", managed, NULL);
    ask("copy from managed memory", cuMemcpy(p, managed, 1000));
    ask("copy to managed memory", cuMemcpyDtoH_v2((void *)managed, p, 1000));
    ask("fill managed memory", cuMemsetD8_v2(managed, 7, 1000));
    MUST(cuCtxSynchronize());
    say("fill managed memory", "%d", ((char *)managed)[999]);
    ask("free managed memory inside", cuMemFree_v2(managed + 8));
    ask("free managed memory as host memory", cuMemFreeHost((void *)managed));
    ask("free managed memory", cuMemFree_v2(managed));
    unsigned type = 77;
    int ordinal = 77;
    CUdeviceptr start = 77;
    CUmemoryPool none = (CUmemoryPool)77;
    ask("several of a host address", cuPointerGetAttributes(4, (int[]){2, 9, 3, 17}, (void *[]){&type, &ordinal, &start, &none}, (CUdeviceptr)&type));
    say("several of a host address", "type %u, ordinal %d, pointer %s, pool %s", type, ordinal,
        start == 0 ? "null" : start == (CUdeviceptr)&type ? "the address" : "another", none ? "not null" : "null");
    size_t size;
    ask("address range of a host address", cuMemGetAddressRange_v2(&start, &size, (CUdeviceptr)&size));
    ask("address range of pinned host memory", cuMemGetAddressRange_v2(&start, &size, (CUdeviceptr)host));
    ask("address range of registered host memory", cuMemGetAddressRange_v2(&start, &size, (CUdeviceptr)page));
    CUresult r = cuMemGetAddressRange_v2(&start, &size, v + MB);
    say("address range of virtual memory", "%s, offset %lld, size %zu", name(r), (long long)(v + MB - start), size);
}
