// Legacy memory handles.
#include "facts.h"

#include <string.h>
#include <sys/mman.h>

enum { MB = 1 << 20 };
struct offer { CUipcMemHandle first, second, large, alone; unsigned char bytes[2]; };

void section_legacy(void) {
    struct partner p = partner_start("legacy_opener");
    primary(0);
    CUdeviceptr a, b, c, d, q;
    struct offer o;
    MUST(cuMemAlloc_v2(&a, 4096));
    MUST(cuMemAlloc_v2(&b, 4096));
    MUST(cuMemAlloc_v2(&c, 5 * MB));
    say("two small allocations", "apart %lld", (long long)(b - a));
    MUST(cuIpcGetMemHandle(&o.first, a));
    MUST(cuIpcGetMemHandle(&o.second, b));
    MUST(cuIpcGetMemHandle(&o.large, c));
    MUST(cuMemAlloc_v2(&d, 2 * MB));
    MUST(cuIpcGetMemHandle(&o.alone, d));
    CUipcMemHandle again;
    MUST(cuIpcGetMemHandle(&again, a));
    say("handle twice", "same %d", memcmp(&again, &o.first, 64) == 0);
    say("handles of two in one block", "same %d", memcmp(&o.second, &o.first, 64) == 0);
    CUresult r = cuIpcGetMemHandle(&again, a + 512);
    say("handle of an address inside", "%s, same %d", name(r), memcmp(&again, &o.first, 64) == 0);
    ask("handle of pool memory", cuIpcGetMemHandle(&again, from_pool(pool_of(0, 1, 0), 4096)));
    ask("handle of a host address", cuIpcGetMemHandle(&again, (CUdeviceptr)&again));
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(cuMemHostRegister_v2(page, 4096, 2));
    ask("handle of registered memory", cuIpcGetMemHandle(&again, (CUdeviceptr)page));
    ask("open in the same process", cuIpcOpenMemHandle_v2(&q, o.first, 1));
    ask("close what was not opened", cuIpcCloseMemHandle(a));
    MUST(cuMemsetD8_v2(a, 11, 4096));
    MUST(cuMemsetD8_v2(b, 12, 4096));
    MUST(cuMemsetD8_v2(c, 13, 5 * MB));
    MUST(cuStreamSynchronize(NULL));
    send_bytes(p.socket, &o, sizeof o, -1);
    await(p.socket);
    ask("free while it is open elsewhere", cuMemFree_v2(c));
    tell(p.socket);
    partner_end(p);
}

static void look(const char *question, CUdeviceptr at) {
    unsigned char seen = 0;
    CUresult r = cuMemcpyDtoH_v2(&seen, at, 1);
    if (r == CUDA_SUCCESS) say(question, "%d", seen);
    else ask(question, r);
}

// Tries to open a handle in the current context. Closes the memory again if the open succeeds.
static CUresult try_open(CUipcMemHandle handle) {
    CUdeviceptr at;
    CUresult r = cuIpcOpenMemHandle_v2(&at, handle, 1);
    if (r == CUDA_SUCCESS) MUST(cuIpcCloseMemHandle(at));
    return r;
}

// When this function begins, no handle is open in this process. The allocation `alone` shares its block with no other allocation.
static void beside_the_primary(const struct offer *o) {
    CUcontext second;
    CUdeviceptr d, base;
    size_t size;
    MUST(cuIpcOpenMemHandle_v2(&d, o->alone, 1));
    MUST(cuIpcCloseMemHandle(d));
    MUST(cuCtxCreate_v2(&second, 0, 0));
    CUresult r = cuIpcOpenMemHandle_v2(&d, o->alone, 1);
    ask("opener: in a second context, not open in the primary one", r);
    MUST(r);
    ask("opener: its range there", cuMemGetAddressRange_v2(&base, &size, d));
    MUST(cuCtxPopCurrent_v2(NULL));
    ask("opener: its range in the primary one", cuMemGetAddressRange_v2(&base, &size, d));
    ask("opener: open in the second, closed in the primary one", cuIpcCloseMemHandle(d));
    MUST(cuIpcOpenMemHandle_v2(&d, o->alone, 1));
    MUST(cuCtxPushCurrent_v2(second));
    ask("opener: in a second context, open in the primary one", try_open(o->alone));
    ask("opener: in a second context, another block open in the primary one", try_open(o->first));
    MUST(cuCtxPopCurrent_v2(NULL));
    MUST(cuIpcCloseMemHandle(d));
    MUST(cuCtxPushCurrent_v2(second));
    MUST(cuIpcOpenMemHandle_v2(&d, o->alone, 1));
    MUST(cuCtxPopCurrent_v2(NULL));
    ask("opener: in the primary one, open in a second context", try_open(o->alone));
    MUST(cuCtxDestroy_v2(second));
}

void role_legacy_opener(void) {
    struct offer o;
    receive_bytes(partner_socket, &o, sizeof o);
    primary(0);
    CUdeviceptr a = 0, b = 0, c = 0, again = 0, base = 0;
    size_t size = 0;
    ask("opener: without the lazy flag", cuIpcOpenMemHandle_v2(&a, o.first, 0));
    ask("opener: unknown flags", cuIpcOpenMemHandle_v2(&a, o.first, 4));
    CUresult r = cuIpcOpenMemHandle_v2(&a, o.first, 1);
    ask("opener: open", r);
    r = cuIpcOpenMemHandle_v2(&again, o.first, 1);
    say("opener: open again", "%s, same %d", name(r), again == a);
    r = cuIpcOpenMemHandle_v2(&b, o.second, 1);
    say("opener: the second of the block", "%s, same %d", name(r), b == a);
    say("opener: two of one block", "apart %lld", (long long)(b - a));
    ask("opener: the large one", cuIpcOpenMemHandle_v2(&c, o.large, 1));
    look("opener: reads the large one", c);
    r = cuMemGetAddressRange_v2(&base, &size, a);
    say("opener: range of a small one", "%s, offset %lld, size %zu", name(r), (long long)(a - base), size);
    r = cuMemGetAddressRange_v2(&base, &size, c);
    say("opener: range of the large one", "%s, offset %lld, size %zu", name(r), (long long)(c - base), size);
    unsigned capable = 9;
    r = cuPointerGetAttribute(&capable, 10, c);
    say("opener: legacy capable", "%s %u", name(r), capable);
    CUipcMemHandle h;
    ask("opener: its own handle of it", cuIpcGetMemHandle(&h, c));
    ask("opener: cuMemFree", cuMemFree_v2(c));
    CUipcMemHandle zero = {{0}};
    ask("opener: zero handle", cuIpcOpenMemHandle_v2(&again, zero, 1));
    ask("opener: close inside", cuIpcCloseMemHandle(c + 512));
    for (int i = 1; i <= 5; i++) {
        char q[48];
        snprintf(q, sizeof q, "opener: close the small one, time %d", i);
        ask(q, cuIpcCloseMemHandle(a));
    }
    tell(partner_socket);
    await(partner_socket);
    look("opener: the large one after it was freed", c);
    ask("opener: open it again after it was freed", cuIpcOpenMemHandle_v2(&again, o.large, 1));
    CUcontext second;
    MUST(cuCtxCreate_v2(&second, 0, 0));
    ask("opener: in a second context", cuIpcOpenMemHandle_v2(&again, o.first, 1));
    ask("opener: open there in the first, closed in the second", cuIpcCloseMemHandle(c));
    MUST(cuCtxDestroy_v2(second));
    ask("opener: close", cuIpcCloseMemHandle(c));
    MUST(cuIpcCloseMemHandle(b));
    beside_the_primary(&o);
    ask("opener: once more in the first", cuIpcOpenMemHandle_v2(&a, o.first, 1));
    CUdeviceptr own;
    MUST(cuMemAlloc_v2(&own, 4096));
    MUST(cuDevicePrimaryCtxReset_v2(0));
    primary(0);
    ask("opener: after a reset", cuIpcOpenMemHandle_v2(&a, o.first, 1));
}
