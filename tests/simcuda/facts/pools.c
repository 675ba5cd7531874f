// Memory pools in one process.
#include "facts.h"

enum { MB = 1 << 20 };

static void levels(const char *when, CUmemoryPool pool) {
    say(when, "reserved %llu MiB, used %llu bytes", (unsigned long long)pool_attribute(pool, 5) / MB,
        (unsigned long long)pool_attribute(pool, 7));
}

static void life_of(const char *kind, int handle_types) {
    char q[96];
#define Q(text) (snprintf(q, sizeof q, "%s: %s", kind, text), q)
    CUmemoryPool pool = pool_of(0, handle_types, 0);
    levels(Q("new"), pool);
    CUdeviceptr a = from_pool(pool, 1000), b = from_pool(pool, 1000), c = from_pool(pool, 65536);
    levels(Q("1000, 1000 and 65536 bytes"), pool);
    say(Q("distance of the first two"), "%lld", (long long)(b - a));
    size_t size = 0;
    CUdeviceptr base = 0;
    CUresult r = cuMemGetAddressRange_v2(&base, &size, a + 10);
    say(Q("cuMemGetAddressRange of 1000 bytes"), "%s, offset %lld, size %zu", name(r), (long long)(a - base), size);
    CUdeviceptr d = from_pool(pool, 33 * MB);
    levels(Q("33 MiB more"), pool);
    say(Q("alignment of 33 MiB"), "%d", (int)(d % (2 * MB) == 0));
    ask(Q("free 33 MiB"), cuMemFreeAsync(d, NULL));
    MUST(cuStreamSynchronize(NULL));
    levels(Q("33 MiB freed and synchronised"), pool);
    ask(Q("trim to 0"), cuMemPoolTrimTo(pool, 0));
    levels(Q("trimmed"), pool);
    ask(Q("free"), cuMemFreeAsync(a, NULL));
    ask(Q("free"), cuMemFreeAsync(b, NULL));
    ask(Q("free"), cuMemFreeAsync(c, NULL));
    MUST(cuStreamSynchronize(NULL));
    levels(Q("all freed and synchronised"), pool);
    ask(Q("trim to 0"), cuMemPoolTrimTo(pool, 0));
    levels(Q("all trimmed"), pool);
    uint64_t threshold = UINT64_MAX;
    MUST(cuMemPoolSetAttribute(pool, 4, &threshold));
    d = from_pool(pool, 100 * MB);
    levels(Q("100 MiB with a threshold"), pool);
    MUST(cuMemFreeAsync(d, NULL));
    MUST(cuStreamSynchronize(NULL));
    levels(Q("freed with a threshold"), pool);
    ask(Q("trim to 64 MiB"), cuMemPoolTrimTo(pool, 64 * MB));
    levels(Q("trimmed to 64 MiB"), pool);
    ask(Q("trim to 0"), cuMemPoolTrimTo(pool, 0));
    levels(Q("trimmed to 0"), pool);
    say(Q("high marks"), "reserved %llu MiB, used %llu", (unsigned long long)pool_attribute(pool, 6) / MB,
        (unsigned long long)pool_attribute(pool, 8));
    ask(Q("destroy"), cuMemPoolDestroy(pool));
#undef Q
}

static void bounded(size_t max, size_t first, size_t second) {
    char q[96];
    CUmemoryPool pool = pool_of(0, 1, max);
    CUdeviceptr a, b;
    CUresult r = cuMemAllocFromPoolAsync(&a, first, pool, NULL);
    CUresult s = cuMemAllocFromPoolAsync(&b, second, pool, NULL);
    cuStreamSynchronize(NULL);
    snprintf(q, sizeof q, "max %zu, %zu and %zu bytes", max, first, second);
    say(q, "%s, %s, reserved %llu MiB", name(r), name(s), (unsigned long long)pool_attribute(pool, 5) / MB);
    if (r == CUDA_SUCCESS) {
        r = cuMemFreeAsync(a, NULL);
        s = cuMemAllocFromPoolAsync(&b, first, pool, NULL);
        say(q, "freed %s, again %s", name(r), name(s));
    }
    cuStreamSynchronize(NULL);
    cuMemPoolDestroy(pool);
}

static void create(const char *question, CUmemPoolProps props) {
    CUmemoryPool pool;
    CUresult r = cuMemPoolCreate(&pool, &props);
    ask(question, r);
    if (r == CUDA_SUCCESS) cuMemPoolDestroy(pool);
}

void section_pools(void) {
    primary(0);
    life_of("exportable", 1);
    life_of("private", 0);
    bounded(MB, MB, MB);
    bounded(MB, 2 * MB, 4096);
    bounded(MB, 33 * MB, 4096);
    bounded(33 * MB, 33 * MB, 4096);
    bounded(33 * MB, 40 * MB, 4096);
    bounded(64 * MB, 40 * MB, 40 * MB);
    bounded(64 * MB, 64 * MB, 512);
    create("location of no device", (CUmemPoolProps){1, 1, {1, 99}, 0, 0, 0, {0}});
    create("location invalid", (CUmemPoolProps){1, 1, {0, 0}, 0, 0, 0, {0}});
    create("type 0", (CUmemPoolProps){0, 1, {1, 0}, 0, 0, 0, {0}});
    create("handle type 2", (CUmemPoolProps){1, 2, {1, 0}, 0, 0, 0, {0}});
    create("handle type 16", (CUmemPoolProps){1, 16, {1, 0}, 0, 0, 0, {0}});
    create("host, exportable", (CUmemPoolProps){1, 1, {2, 0}, 0, 0, 0, {0}});
    create("host, private", (CUmemPoolProps){1, 0, {2, 0}, 0, 0, 0, {0}});
    create("host NUMA 0, exportable", (CUmemPoolProps){1, 1, {3, 0}, 0, 0, 0, {0}});
    create("host NUMA 0, private", (CUmemPoolProps){1, 0, {3, 0}, 0, 0, 0, {0}});
    create("host NUMA 99", (CUmemPoolProps){1, 1, {3, 99}, 0, 0, 0, {0}});
    create("host NUMA current", (CUmemPoolProps){1, 1, {4, 0}, 0, 0, 0, {0}});
    create("larger than the device", (CUmemPoolProps){1, 1, {1, 0}, 0, (size_t)1 << 45, 0, {0}});

    CUmemoryPool pool = pool_of(0, 1, 0);
    CUdeviceptr a = 0, b = 0;
    a = 77;
    ask("zero bytes", cuMemAllocFromPoolAsync(&a, 0, pool, NULL));
    say("zero bytes", "pointer %s", a == 0 ? "null" : a == 77 ? "not written" : "given");
    ask("a terabyte", cuMemAllocFromPoolAsync(&a, (size_t)1 << 40, pool, NULL));
    uint64_t value = 5;
    ask("set used high to 5", cuMemPoolSetAttribute(pool, 8, &value));
    ask("set used now", cuMemPoolSetAttribute(pool, 7, &value));
    for (int i = 9; i <= 14; i++) {
        char q[48];
        value = 0;
        snprintf(q, sizeof q, "get attribute %d", i);
        ask(q, cuMemPoolGetAttribute(pool, i, &value));
    }
    for (int i = 1; i <= 4; i++) say("attribute at first", "%d is %llu", i, (unsigned long long)(i < 4 ? (uint32_t)pool_attribute(pool, i) : pool_attribute(pool, i)));
    CUmemoryPool def;
    MUST(cuDeviceGetDefaultMemPool(&def, 0));
    ask("destroy the default pool", cuMemPoolDestroy(def));
    a = from_pool(pool, 4096);
    ask("cuMemFree of pool memory", cuMemFree_v2(a));
    ask("and again", cuMemFree_v2(a));
    a = from_pool(pool, 4096);
    ask("cuMemFreeAsync", cuMemFreeAsync(a, NULL));
    ask("cuMemFreeAsync again, not synchronised", cuMemFreeAsync(a, NULL));
    MUST(cuStreamSynchronize(NULL));
    ask("cuMemFreeAsync again, synchronised", cuMemFreeAsync(a, NULL));
    a = from_pool(pool, 4096);
    ask("cuMemFreeAsync inside", cuMemFreeAsync(a + 512, NULL));
    ask("cuMemFree inside", cuMemFree_v2(a + 512));
    MUST(cuMemAlloc_v2(&b, 4096));
    ask("cuMemFreeAsync of cuMemAlloc memory", cuMemFreeAsync(b, NULL));
    ask("cuMemFreeAsync of null", cuMemFreeAsync(0, NULL));
    ask("cuMemFree of null", cuMemFree_v2(0));
    ask("cuMemFree of a host address", cuMemFree_v2((CUdeviceptr)&a));
    ask("destroy with an allocation", cuMemPoolDestroy(pool));
    ask("memset on what is left of it", cuMemsetD8_v2(a, 1, 16));
    ask("cuMemFreeAsync of what is left of it", cuMemFreeAsync(a, NULL));
    ask("synchronise", cuStreamSynchronize(NULL));
    ask("destroy again", cuMemPoolDestroy(pool));
    ask("default: cuMemAllocAsync", cuMemAllocAsync(&a, 1 * MB, NULL));
    CUmemPoolPtrExportData blob;
    ask("default: export a pointer", cuMemPoolExportPointer(&blob, a));
    int fd;
    ask("default: export", cuMemPoolExportToShareableHandle(&fd, def, 1, 0));
}

// Asks about copies that name no direction, for a host pool to which no device has access.
static void before_access(const char *kind, CUmemoryPool pool) {
    char q[96], host[16] = "";
    CUdeviceptr p = from_pool(pool, 4096), device, pageable = (CUdeviceptr)host;
    MUST(cuMemAlloc_v2(&device, 4096));
#define Q(text) (snprintf(q, sizeof q, "%s before access: %s", kind, text), q)
    ask(Q("cuMemcpy to device memory"), cuMemcpy(device, p, 16));
    ask(Q("cuMemcpy from device memory"), cuMemcpy(p, device, 16));
    ask(Q("cuMemcpy to pageable memory"), cuMemcpy(pageable, p, 16));
    ask(Q("cuMemcpy from pageable memory"), cuMemcpy(p, pageable, 16));
    ask(Q("cuMemcpyAsync to device memory"), cuMemcpyAsync(device, p, 16, NULL));
    ask(Q("cuMemcpyAsync from device memory"), cuMemcpyAsync(p, device, 16, NULL));
    ask(Q("cuMemcpyAsync to pageable memory"), cuMemcpyAsync(pageable, p, 16, NULL));
    ask(Q("cuMemcpyAsync from pageable memory"), cuMemcpyAsync(p, pageable, 16, NULL));
    ask(Q("synchronise"), cuStreamSynchronize(NULL));
    ask(Q("cuMemcpyDtoH"), cuMemcpyDtoH_v2(host, p, 16));
    ask(Q("cuMemcpyHtoD"), cuMemcpyHtoD_v2(p, host, 16));
    ask(Q("cuMemsetD8"), cuMemsetD8_v2(p, 1, 16));
#undef Q
}

// Asks which pool an allocation at a location uses if the call names no pool.
static void current_pool(const char *question, CUmemLocation location, int type) {
    CUmemoryPool pool = NULL, again = NULL;
    CUresult r = cuMemGetMemPool(&pool, &location, type);
    if (r != CUDA_SUCCESS) {
        ask(question, r);
        return;
    }
    MUST(cuMemGetMemPool(&again, &location, type));
    CUmemoryPool device;
    MUST(cuDeviceGetDefaultMemPool(&device, 0));
    int flags = -1;
    MUST(cuMemPoolGetAccess(&flags, pool, &(CUmemLocation){1, 0}));
    const char *which = pool != again ? "another each time" : pool == device ? "the device's default" : "one of its own";
    say(question, "%s, access of device 0 %d", which, flags);
}

void section_pool_current(void) {
    primary(0);
    current_pool("a device", (CUmemLocation){1, 0}, 1);
    current_pool("the host", (CUmemLocation){2, 0}, 1);
    current_pool("host NUMA 0", (CUmemLocation){3, 0}, 1);
    current_pool("host NUMA 99", (CUmemLocation){3, 99}, 1);
    current_pool("host NUMA current", (CUmemLocation){4, 0}, 1);
    current_pool("no location", (CUmemLocation){0, 0}, 1);
    current_pool("no such device", (CUmemLocation){1, 99}, 1);
    current_pool("no such type", (CUmemLocation){1, 0}, 7);
}

void section_pool_access(void) {
    primary(0);
    int count = 0, flags = -1;
    cuDeviceGetCount(&count);
    CUmemoryPool pool = pool_of(0, 1, 0);
    CUmemLocation here = {1, 0}, other = {1, 1};
    CUresult r = cuMemPoolGetAccess(&flags, pool, &here);
    say("own device", "%s %d", name(r), flags);
    ask("own device, none", cuMemPoolSetAccess(pool, &(CUmemAccessDesc){here, 0}, 1));
    ask("own device, read", cuMemPoolSetAccess(pool, &(CUmemAccessDesc){here, 1}, 1));
    ask("own device, read and write", cuMemPoolSetAccess(pool, &(CUmemAccessDesc){here, 3}, 1));
    ask("no device", cuMemPoolSetAccess(pool, &(CUmemAccessDesc){{1, 99}, 3}, 1));
    ask("a host", cuMemPoolSetAccess(pool, &(CUmemAccessDesc){{2, 0}, 3}, 1));
    ask("nothing", cuMemPoolSetAccess(pool, NULL, 0));
    CUmemPoolProps props = {1, 1, {3, 0}, 0, 0, 0, {0}};
    CUmemoryPool host;
    MUST(cuMemPoolCreate(&host, &props));
    flags = -1;
    r = cuMemPoolGetAccess(&flags, host, &here);
    say("host pool, device 0", "%s %d", name(r), flags);
    CUdeviceptr p = from_pool(host, 4096);
    ask("host pool: memset by the device before access", cuMemsetD8_v2(p, 1, 16));
    ask("host pool: copy by the device before access", cuMemcpyHtoD_v2(p, "0123456789", 10));
    ask("host pool: synchronise", cuStreamSynchronize(NULL));
    ask("host pool: set access", cuMemPoolSetAccess(host, &(CUmemAccessDesc){here, 3}, 1));
    ask("host pool: memset", cuMemsetD8_v2(p, 7, 16));
    ask("host pool: synchronise", cuStreamSynchronize(NULL));
    say("host pool: the CPU reads", "%d", *(volatile unsigned char *)p);
    unsigned char seen[16];
    ask("host pool: DtoH", cuMemcpyDtoH_v2(seen, p, 16));
    CUmemoryPool numa, plain;
    MUST(cuMemPoolCreate(&numa, &props));
    before_access("host NUMA pool", numa);
    MUST(cuMemPoolCreate(&plain, &(CUmemPoolProps){1, 0, {2, 0}, 0, 0, 0, {0}}));
    before_access("host pool", plain);
    if (count < 2) return;
    flags = -1;
    r = cuMemPoolGetAccess(&flags, pool, &other);
    say("two devices: other device", "%s %d", name(r), flags);
    CUdeviceptr q = from_pool(pool, 4096), mine;
    CUcontext second;
    MUST(cuDevicePrimaryCtxRetain(&second, 1));
    MUST(cuCtxSetCurrent(second));
    MUST(cuMemAlloc_v2(&mine, 4096));
    ask("two devices: memset before access", cuMemsetD8_v2(q, 1, 16));
    ask("two devices: copy before access", cuMemcpyDtoD_v2(mine, q, 16));
    ask("two devices: synchronise", cuStreamSynchronize(NULL));
    ask("two devices: set access", cuMemPoolSetAccess(pool, &(CUmemAccessDesc){other, 3}, 1));
    ask("two devices: memset", cuMemsetD8_v2(q, 1, 16));
    ask("two devices: copy", cuMemcpyDtoD_v2(mine, q, 16));
    ask("two devices: synchronise", cuStreamSynchronize(NULL));
    ask("two devices: host pool: set access", cuMemPoolSetAccess(host, &(CUmemAccessDesc){other, 3}, 1));
    ask("two devices: host pool: DtoD", cuMemcpyDtoD_v2(mine, p, 16));
    ask("two devices: take access away", cuMemPoolSetAccess(pool, &(CUmemAccessDesc){other, 0}, 1));
    ask("two devices: read only", cuMemPoolSetAccess(pool, &(CUmemAccessDesc){other, 1}, 1));
}
