// Virtual memory management.
#include "facts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MB = 1 << 20 };

static CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {1, 0}};

static CUresult access_to(CUdeviceptr p, size_t size, int flags) {
    return cuMemSetAccess(p, size, &(CUmemAccessDesc){{1, 0}, flags}, 1);
}

void section_vmm(void) {
    struct partner partner = partner_start("vmm_importer");
    primary(0);
    size_t minimum = 0, recommended = 0;
    MUST(cuMemGetAllocationGranularity(&minimum, &prop, 0));
    MUST(cuMemGetAllocationGranularity(&recommended, &prop, 1));
    say("granularity", "%zu, recommended %zu", minimum, recommended);
    CUmemGenericAllocationHandle h, k, priv;
    CUdeviceptr p, q, r;
    ask("create an odd size", cuMemCreate(&h, 4096, &prop, 0));
    ask("create zero", cuMemCreate(&h, 0, &prop, 0));
    ask("create a terabyte", cuMemCreate(&h, (size_t)1 << 42, &prop, 0));
    CUmemAllocationProp odd = prop;
    odd.location.id = 99;
    ask("create on no device", cuMemCreate(&h, 2 * MB, &odd, 0));
    odd = prop;
    odd.requestedHandleTypes = 2;
    ask("create for another system's handles", cuMemCreate(&h, 2 * MB, &odd, 0));
    ask("reserve an odd size", cuMemAddressReserve(&p, 4096, 0, 0, 0));
    MUST(cuMemCreate(&h, 4 * MB, &prop, 0));
    MUST(cuMemCreate(&k, 2 * MB, &prop, 0));
    MUST(cuMemAddressReserve(&p, 8 * MB, 0, 0, 0));
    ask("map at an odd address", cuMemMap(p + 4096, 4 * MB, 0, h, 0));
    ask("map at an offset", cuMemMap(p, 2 * MB, 2 * MB, h, 0));
    ask("map a part", cuMemMap(p, 2 * MB, 0, h, 0));
    ask("map more than it is", cuMemMap(p, 8 * MB, 0, h, 0));
    ask("map", cuMemMap(p, 4 * MB, 0, h, 0));
    ask("map another there", cuMemMap(p + 2 * MB, 2 * MB, 0, k, 0));
    ask("map the other after it", cuMemMap(p + 4 * MB, 2 * MB, 0, k, 0));
    ask("memset without access", cuMemsetD8_v2(p, 1, 16));
    char bytes[32];
    ask("copy from it without access", cuMemcpyDtoH_v2(bytes, p, 16));
    unsigned long long flags = 99;
    CUmemLocation here = {1, 0};
    CUresult g = cuMemGetAccess(&flags, &here, p);
    say("get access", "%s, %llu", name(g), flags);
    ask("set access beyond what is mapped", access_to(p, 8 * MB, 3));
    ask("set access to a part", access_to(p, 2 * MB, 3));
    ask("set access", access_to(p, 6 * MB, 3));
    ask("memset over both", cuMemsetD8_v2(p + 4 * MB - 8, 5, 16));
    ask("copy over both", cuMemcpyDtoH_v2(bytes, p + 4 * MB - 8, 16));
    ask("free the addresses while mapped", cuMemAddressFree(p, 8 * MB));
    ask("release while mapped", cuMemRelease(h));
    ask("memset after release", cuMemsetD8_v2(p, 5, 4 * MB));
    ask("release again", cuMemRelease(h));
    ask("retain by address", cuMemRetainAllocationHandle(&priv, (void *)(p + MB)));
    say("retained handle", "same %d", priv == h);
    ask("map it a second time elsewhere", (MUST(cuMemAddressReserve(&q, 4 * MB, 0, 0, 0)), cuMemMap(q, 4 * MB, 0, priv, 0)));
    ask("read only there", access_to(q, 4 * MB, 1));
    ask("copy from read only", cuMemcpyDtoH_v2(bytes, q, 16));
    say("what was read", "%d", bytes[0]);
    ask("memset of read only", cuMemsetD8_v2(q, 1, 16));
    ask("copy to read only", cuMemcpyHtoD_v2(q, bytes, 16));
    ask("copy within to read only", cuMemcpyDtoD_v2(q, p, 16));
    ask("word awaited in read only", cuStreamWaitValue32_v2(NULL, q, 0, 0));
    ask("synchronise", cuStreamSynchronize(NULL));
    ask("unmap a part", cuMemUnmap(q, 2 * MB));
    ask("unmap", cuMemUnmap(q, 4 * MB));
    ask("unmap again", cuMemUnmap(q, 4 * MB));
    ask("copy from unmapped", cuMemcpyDtoH_v2(bytes, q, 16));
    ask("free a part of the addresses", cuMemAddressFree(q, 2 * MB));
    ask("free the addresses", cuMemAddressFree(q, 4 * MB));
    ask("free them again", cuMemAddressFree(q, 4 * MB));
    int fd = -1, fd2 = -1;
    ask("export", cuMemExportToShareableHandle(&fd, priv, 1, 0));
    ask("export again", cuMemExportToShareableHandle(&fd2, priv, 1, 0));
    say("close on exec", "%d", fcntl(fd, F_GETFD));
    odd = prop;
    odd.requestedHandleTypes = 0;
    CUmemGenericAllocationHandle unshared;
    MUST(cuMemCreate(&unshared, 2 * MB, &odd, 0));
    ask("export what was made private", cuMemExportToShareableHandle(&fd2, unshared, 1, 0));
    CUmemGenericAllocationHandle back;
    g = cuMemImportFromShareableHandle(&back, (void *)(intptr_t)fd, 1);
    say("import in the same process", "%s, same %d", name(g), back == priv);
    if (g == CUDA_SUCCESS) ask("release it", cuMemRelease(back));
    ask("import fd -1", cuMemImportFromShareableHandle(&back, (void *)(intptr_t)-1, 1));
    ask("import /dev/null", cuMemImportFromShareableHandle(&back, (void *)(intptr_t)open("/dev/null", O_RDWR), 1));
    CUmemoryPool pool = pool_of(0, 1, 0);
    int pool_fd;
    MUST(cuMemPoolExportToShareableHandle(&pool_fd, pool, 1, 0));
    ask("import a pool's fd", cuMemImportFromShareableHandle(&back, (void *)(intptr_t)pool_fd, 1));
    ask("import its fd as a pool", cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0));
    ask("hint for an address", cuMemAddressReserve(&r, 2 * MB, 0, q, 0));
    say("hint for an address", "taken %d", r == q);
    MUST(cuMemsetD8_v2(p, 21, 4 * MB));
    MUST(cuStreamSynchronize(NULL));
    send_bytes(partner.socket, "x", 1, fd);
    await(partner.socket);
    MUST(cuMemUnmap(p, 4 * MB));
    MUST(cuMemRelease(priv));
    tell(partner.socket);
    partner_end(partner);
}

void role_vmm_importer(void) {
    char byte;
    int fd = receive_bytes(partner_socket, &byte, 1);
    primary(0);
    CUmemGenericAllocationHandle h, k;
    CUmemAllocationProp got = {0};
    ask("importer: import", cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, 1));
    CUresult g = cuMemImportFromShareableHandle(&k, (void *)(intptr_t)fd, 1);
    say("importer: import again", "%s, same %d", name(g), h == k);
    g = cuMemGetAllocationPropertiesFromHandle(&got, h);
    say("importer: properties", "%s, type %d, handles %d, location %d %d", name(g), got.type, got.requestedHandleTypes,
        got.location.type, got.location.id);
    ask("importer: release one", cuMemRelease(k));
    ask("importer: export", cuMemExportToShareableHandle(&fd, h, 1, 0));
    CUdeviceptr p;
    MUST(cuMemAddressReserve(&p, 4 * MB, 0, 0, 0));
    ask("importer: map", cuMemMap(p, 4 * MB, 0, h, 0));
    ask("importer: set access", access_to(p, 4 * MB, 1));
    unsigned char seen = 0;
    MUST(cuMemcpyDtoH_v2(&seen, p, 1));
    say("importer: reads", "%d", seen);
    tell(partner_socket);
    await(partner_socket);
    MUST(cuMemcpyDtoH_v2(&seen, p, 1));
    say("importer: reads after the exporter released", "%d", seen);
}

void section_vmm_word(void) {
    primary(0);
    CUmemGenericAllocationHandle h;
    CUdeviceptr p;
    MUST(cuMemCreate(&h, 2 * MB, &prop, 0));
    MUST(cuMemAddressReserve(&p, 2 * MB, 0, 0, 0));
    MUST(cuMemMap(p, 2 * MB, 0, h, 0));
    MUST(access_to(p, 2 * MB, 1));
    ask("word written to read only", cuStreamWriteValue32_v2(NULL, p, 1, 0));
    ask("synchronise", cuStreamSynchronize(NULL));
}
