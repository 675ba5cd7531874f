// Asks a driver about legacy memory of one device that another device uses. If a kernel uses memory to which it has no access, the process
// of the kernel can no longer use CUDA.
#include "facts.h"

#include <string.h>

enum { MB = 1 << 20 };

void section_legacy_peer(void) {
    static const char *const opener[] = {"legacy_owners_context", "legacy_others_context", "legacy_both_contexts"};
    int count = 0;
    primary(0);
    cuDeviceGetCount(&count);
    if (count < 2) return;
    CUdeviceptr p;
    CUipcMemHandle handle;
    MUST(cuMemAlloc_v2(&p, 5 * MB));
    MUST(cuMemsetD8_v2(p, 13, 4096));
    MUST(cuStreamSynchronize(NULL));
    MUST(cuIpcGetMemHandle(&handle, p));
    for (unsigned i = 0; i < sizeof opener / sizeof *opener; i++) {
        struct partner other = partner_start(opener[i]);
        send_bytes(other.socket, &handle, sizeof handle, -1);
        partner_end(other);
    }
}

// Makes the primary contexts of both devices, and receives the handle.
static CUipcMemHandle begin(CUcontext ctx[2]) {
    CUipcMemHandle handle;
    receive_bytes(partner_socket, &handle, sizeof handle);
    ctx[0] = primary(0);
    ctx[1] = primary(1);
    return handle;
}

static void about(const char *where, CUdeviceptr p) {
    CUdeviceptr base = 0;
    size_t size = 0;
    int ordinal = -1;
    char question[96];
    CUresult r = cuMemGetAddressRange_v2(&base, &size, p);
    snprintf(question, sizeof question, "%s: range", where);
    say(question, "%s, size %zu", name(r), size);
    r = cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p);
    snprintf(question, sizeof question, "%s: device", where);
    say(question, "%s %d", name(r), ordinal);
}

// Asks whether a copy and a kernel in the current context can access the memory at p.
static void use(const char *who, CUdeviceptr p) {
    CUdeviceptr mine;
    unsigned char seen = 0;
    char question[96];
    MUST(cuMemAlloc_v2(&mine, 4096));
    CUresult r = cuMemcpyDtoD_v2(mine, p, 16);
    if (r == CUDA_SUCCESS) r = cuMemcpyDtoH_v2(&seen, mine, 1);
    snprintf(question, sizeof question, "%s: copy", who);
    say(question, "%s, %d", name(r), seen);
    uint64_t n = 1024;
    uint32_t multiply = 0, add = 0x0d0d0d0d, mask = 0;
    void *params[] = {&p, &n, &multiply, &add, &mask};
    r = cuLaunchKernel(store_kernel(), 8, 1, 1, 128, 1, 1, 0, NULL, params, NULL);
    if (r == CUDA_SUCCESS) r = cuCtxSynchronize();
    snprintf(question, sizeof question, "%s: kernel", who);
    ask(question, r);
}

void role_legacy_owners_context(void) {
    CUcontext ctx[2];
    CUdeviceptr p;
    CUipcMemHandle handle = begin(ctx);
    MUST(cuCtxSetCurrent(ctx[0]));
    MUST(cuIpcOpenMemHandle_v2(&p, handle, 1));
    use("opened by the owner's device: that one", p);
    MUST(cuCtxSetCurrent(ctx[1]));
    ask("peer access to the owner's device", cuCtxEnablePeerAccess(ctx[0], 0));
    use("opened by the owner's device: the other one", p);
}

void role_legacy_others_context(void) {
    CUcontext ctx[2];
    CUdeviceptr p;
    CUipcMemHandle handle = begin(ctx);
    CUresult r = cuIpcOpenMemHandle_v2(&p, handle, 1);
    ask("opened by the other device", r);
    MUST(r);
    about("opened by the other device", p);
    use("opened by the other device: that one", p);
    MUST(cuCtxSetCurrent(ctx[0]));
    use("opened by the other device: the owner's", p);
}

void role_legacy_both_contexts(void) {
    CUcontext ctx[2];
    CUdeviceptr p, q;
    CUipcMemHandle handle = begin(ctx);
    MUST(cuCtxSetCurrent(ctx[0]));
    MUST(cuIpcOpenMemHandle_v2(&p, handle, 1));
    MUST(cuCtxSetCurrent(ctx[1]));
    CUresult r = cuIpcOpenMemHandle_v2(&q, handle, 1);
    say("opened by both", "%s, same %d", name(r), p == q);
    MUST(r);
    use("opened by both: the other one", q);
    ask("opened by both: closed by the other one", cuIpcCloseMemHandle(q));
    MUST(cuCtxSetCurrent(ctx[0]));
    use("opened by both: the owner's, after that", p);
    ask("opened by both: closed by the owner's", cuIpcCloseMemHandle(p));
}
