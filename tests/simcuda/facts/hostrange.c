// Asks a driver whether the addresses of an imported host pool can be reserved and mapped after the pool has been destroyed.
#include "facts.h"

#include <stdint.h>

enum { MB = 1 << 20, CHUNK = 32 * MB, TRIES = 64 };
struct offer { CUmemPoolPtrExportData blob; };
static const CUmemAccessDesc access_of_device_0 = {{1, 0}, 3};

void section_host_range(void) {
    struct partner p = partner_start("host_range_importer");
    primary(0);
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = 1, .location = {3, 0}, .maxSize = 64 * MB};
    CUmemoryPool pool;
    MUST(cuMemPoolCreate(&pool, &props));
    int fd = -1;
    MUST(cuMemPoolExportToShareableHandle(&fd, pool, 1, 0));
    struct offer o = {0};
    MUST(cuMemPoolExportPointer(&o.blob, from_pool(pool, MB)));
    send_bytes(p.socket, &o, sizeof o, fd);
    partner_end(p);
}

// Maps memory at 64 new ranges of 2 MiB, and says what the driver answers for the ranges that the pool's chunk had.
void role_host_range_importer(void) {
    struct offer o;
    int fd = receive_bytes(partner_socket, &o, sizeof o);
    primary(0);
    CUmemoryPool pool;
    CUdeviceptr old, at[TRIES];
    MUST(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0));
    MUST(cuMemPoolSetAccess(pool, &access_of_device_0, 1));
    MUST(cuMemPoolImportPointer(&old, pool, &o.blob));
    MUST(cuMemFreeAsync(old, NULL));
    MUST(cuStreamSynchronize(NULL));
    MUST(cuMemPoolDestroy(pool));
    CUmemAllocationProp memory = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    MUST(cuMemCreate(&handle, 2 * MB, &memory, 0));
    int inside = 0, mapped = 0, refused = 0;
    CUresult answer = CUDA_SUCCESS, outside = CUDA_SUCCESS;
    for (int i = 0; i < TRIES; i++) {
        MUST(cuMemAddressReserve(&at[i], 2 * MB, 0, 0, 0));
        CUresult r = cuMemMap(at[i], 2 * MB, 0, handle, 0);
        mapped += r == CUDA_SUCCESS;
        if (r == CUDA_SUCCESS) r = cuMemSetAccess(at[i], 2 * MB, &access_of_device_0, 1);
        if (at[i] >= old && at[i] < old + CHUNK) {
            inside++;
            refused += r != CUDA_SUCCESS;
            answer = r;
        } else if (r != CUDA_SUCCESS) {
            outside = r;
        }
        MUST(cuMemUnmap(at[i], 2 * MB));
    }
    say("ranges of 2 MiB in a chunk", "%d reserved, %d without access: %s", inside, refused, name(answer));
    say("all ranges", "%d mapped", mapped);
    ask("access to the others", outside);
}
