// Asks a driver about pools, and pointers of pools, that two processes share.
#include "facts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MB = 1 << 20 };

// Prints the bytes of the data if FACTS_BYTES is set. By default, it prints nothing, because the bytes differ from run to run.
static void show(const char *what, const CUmemPoolPtrExportData *blob) {
    if (!getenv("FACTS_BYTES")) return;
    char text[129];
    for (int i = 0; i < 64; i++) sprintf(text + 2 * i, "%02x", blob->reserved[i]);
    say(what, "%s", text);
}

struct offer { CUmemPoolPtrExportData first, second, freed, other_pool, large; CUdeviceptr at; };

static void import_bad(const char *question, int fd) {
    CUmemoryPool pool;
    ask(question, cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0));
}

void section_pool_ipc(void) {
    struct partner p = partner_start("pool_importer");
    primary(0);
    CUmemoryPool pool = pool_of(0, 1, 0), other = pool_of(0, 1, 0), again;
    int fd = -1, fd2 = -1, other_fd = -1;
    MUST(cuMemPoolExportToShareableHandle(&fd, pool, 1, 0));
    MUST(cuMemPoolExportToShareableHandle(&fd2, pool, 1, 0));
    MUST(cuMemPoolExportToShareableHandle(&other_fd, other, 1, 0));
    say("exported twice", "different fds %d", fd != fd2);
    say("close on exec", "%d", fcntl(fd, F_GETFD));
    ask("export as nothing", cuMemPoolExportToShareableHandle(&fd2, pool, 0, 0));
    ask("export with flags", cuMemPoolExportToShareableHandle(&fd2, pool, 1, 1));

    struct offer o = {0};
    CUdeviceptr a = from_pool(pool, MB), b = from_pool(pool, 1000), c = from_pool(pool, 4096), d = from_pool(other, 4096);
    MUST(cuMemPoolExportPointer(&o.first, a));
    MUST(cuMemPoolExportPointer(&o.second, b));
    MUST(cuMemPoolExportPointer(&o.freed, c));
    MUST(cuMemPoolExportPointer(&o.other_pool, d));
    ask("export inside", cuMemPoolExportPointer(&o.other_pool, d + 512));
    MUST(cuMemPoolExportPointer(&o.other_pool, d));
    CUmemPoolPtrExportData twice;
    memset(&twice, 0xA5, sizeof twice);
    MUST(cuMemPoolExportPointer(&twice, a));
    int unwritten = 0;
    while (unwritten < 64 && twice.reserved[63 - unwritten] == 0xA5) unwritten++;
    say("bytes at the end that an export leaves alone", "%d", unwritten);
    say("export twice", "same %d", memcmp(&twice, &o.first, 64 - (size_t)unwritten) == 0);
    show("blob of the first", &o.first);
    show("blob of the first again", &twice);
    show("blob of the second", &o.second);
    show("blob of the freed", &o.freed);
    show("blob of another pool", &o.other_pool);
    MUST(cuMemFreeAsync(c, NULL));
    MUST(cuStreamSynchronize(NULL));
    ask("export of freed memory", cuMemPoolExportPointer(&twice, c));
    o.at = a;
    MUST(cuMemsetD8_v2(a, 1, MB));
    MUST(cuMemsetD8_v2(b, 2, 1000));
    MUST(cuStreamSynchronize(NULL));

    CUresult r = cuMemPoolImportFromShareableHandle(&again, (void *)(intptr_t)fd, 1, 0);
    say("import in the same process", "%s, same %d", name(r), r == CUDA_SUCCESS && again == pool);
    if (r == CUDA_SUCCESS) {
        CUdeviceptr q = 0;
        CUresult s = cuMemPoolImportPointer(&q, again, &o.first);
        say("import a pointer in the same process", "%s, same address %d", name(s), q == a);
        if (s == CUDA_SUCCESS) ask("free it", cuMemFreeAsync(q, NULL));
        if (s == CUDA_SUCCESS) ask("synchronise", cuStreamSynchronize(NULL));
        if (again != pool) ask("destroy it", cuMemPoolDestroy(again));
    }
    ask("the memory afterwards", cuMemsetD8_v2(a, 1, 16));
    ask("import a pointer into a pool that is not imported", cuMemPoolImportPointer(&c, pool, &o.second));
    MUST(cuStreamSynchronize(NULL)); // waits for the queued work before the importer writes
    send_bytes(p.socket, &o, sizeof o, fd);
    send_bytes(p.socket, &o, sizeof o, other_fd);
    await(p.socket);
    unsigned char seen = 0;
    MUST(cuMemcpyDtoH_v2(&seen, a, 1));
    say("the importer wrote", "%d", seen);
    // While the importer has `a` mapped, free `a`, allocate again, and let the importer read.
    MUST(cuMemFreeAsync(a, NULL));
    MUST(cuStreamSynchronize(NULL));
    CUdeviceptr anew = from_pool(pool, MB);
    say("allocated again", "same address %d", anew == a);
    MUST(cuMemsetD8_v2(anew, 77, MB));
    MUST(cuStreamSynchronize(NULL));
    CUmemPoolPtrExportData blob = {{0}};
    MUST(cuMemPoolExportPointer(&blob, anew));
    say("its blob", "same %d", memcmp(&blob, &o.first, 64) == 0);
    send_bytes(p.socket, &blob, sizeof blob, -1);
    await(p.socket);
    ask("free while the importer has it", cuMemFreeAsync(anew, NULL));
    ask("destroy while the importer has it", cuMemPoolDestroy(pool));
    tell(p.socket);
    partner_end(p);
}

static void look(const char *question, CUdeviceptr at) {
    unsigned char seen = 0;
    CUresult r = cuMemcpyDtoH_v2(&seen, at, 1);
    if (r == CUDA_SUCCESS) say(question, "%d", seen);
    else ask(question, r);
}

void role_pool_importer(void) {
    struct offer o;
    int fd = receive_bytes(partner_socket, &o, sizeof o), other_fd = receive_bytes(partner_socket, &o, sizeof o);
    struct stat st;
    fstat(fd, &st);
    MUST(cuInit(0));
    CUmemoryPool pool = NULL, second = NULL, other = NULL;
    ask("importer: import without a context", cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0));
    primary(0);
    if (!pool) MUST(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0));
    CUresult r = cuMemPoolImportFromShareableHandle(&second, (void *)(intptr_t)fd, 1, 0);
    say("importer: import twice", "%s, same %d", name(r), second == pool);
    MUST(cuMemPoolImportFromShareableHandle(&other, (void *)(intptr_t)other_fd, 1, 0));
    int null_fd = open("/dev/null", O_RDWR), ends[2];
    if (pipe(ends) != 0) exit(8);
    import_bad("importer: import fd -1", -1);
    import_bad("importer: import a closed fd", 900);
    import_bad("importer: import /dev/null", null_fd);
    import_bad("importer: import a pipe", ends[0]);
    import_bad("importer: import a socket", partner_socket);
    close(fd);

    CUdeviceptr a = 0, b = 0, c = 0, again = 0, q = 0;
    MUST(cuMemPoolImportPointer(&a, pool, &o.first));
    MUST(cuMemPoolImportPointer(&b, pool, &o.second));
    look("importer: reads", a);
    look("importer: reads the second", b);
    r = cuMemPoolImportPointer(&again, pool, &o.first);
    say("importer: pointer twice", "%s, same %d", name(r), again == a);
    ask("importer: pointer of freed memory", cuMemPoolImportPointer(&c, pool, &o.freed));
    ask("importer: pointer of another pool", cuMemPoolImportPointer(&q, pool, &o.other_pool));
    CUmemPoolPtrExportData zero = {{0}};
    ask("importer: zero blob", cuMemPoolImportPointer(&q, pool, &zero));
    size_t size = 0;
    CUdeviceptr base = 0;
    r = cuMemGetAddressRange_v2(&base, &size, b);
    say("importer: range of 1000 bytes", "%s, offset %lld, size %zu", name(r), (long long)(b - base), size);
    ask("importer: allocate", cuMemAllocFromPoolAsync(&q, 4096, pool, NULL));
    ask("importer: export the pool", cuMemPoolExportToShareableHandle(&fd, pool, 1, 0));
    ask("importer: export a pointer", cuMemPoolExportPointer(&zero, a));
    ask("importer: trim", cuMemPoolTrimTo(pool, 0));
    uint64_t value = 0;
    ask("importer: set the threshold", cuMemPoolSetAttribute(pool, 4, &value));
    for (int i = 1; i <= 8; i++) {
        char question[48];
        snprintf(question, sizeof question, "importer: get attribute %d", i);
        value = 0;
        r = cuMemPoolGetAttribute(pool, i, &value);
        say(question, "%s, zero %d", name(r), value == 0);
    }
    CUmemAccessDesc d = {{1, 0}, 1};
    ask("importer: set access, read", cuMemPoolSetAccess(pool, &d, 1));
    d.flags = 3;
    ask("importer: set access, read and write", cuMemPoolSetAccess(pool, &d, 1));
    MUST(cuMemsetD8_v2(a, 9, MB));
    MUST(cuStreamSynchronize(NULL));
    tell(partner_socket);
    CUmemPoolPtrExportData blob;
    receive_bytes(partner_socket, &blob, sizeof blob);
    look("importer: what the new owner wrote, through the old mapping", a);
    show("blob of the new owner", &blob);
    CUresult old = cuMemPoolImportPointer(&q, pool, &o.first);
    say("importer: the old blob again", "%s, same %d", name(old), q == a);
    CUdeviceptr now = 0;
    r = cuMemPoolImportPointer(&now, pool, &blob);
    say("importer: the new blob", "%s, same %d", name(r), now == a);
    look("importer: reads through it", now);
    tell(partner_socket);
    await(partner_socket);
    look("importer: after the exporter freed and destroyed", now);
    ask("importer: destroy with pointers mapped", cuMemPoolDestroy(pool));
    CUresult again_r = cuMemPoolImportPointer(&q, pool, &o.second);
    say("importer: import after that", "%s", name(again_r));
    look("importer: after destroying the pool", b);
    ask("importer: free", cuMemFreeAsync(b, NULL));
    ask("importer: free again", cuMemFreeAsync(b, NULL));
    ask("importer: synchronise", cuStreamSynchronize(NULL));
    ask("importer: cuMemFree of the first", cuMemFree_v2(a));
    ask("importer: cuMemFree of the first again", cuMemFree_v2(a));
    ask("importer: cuMemFree of the freed one", cuMemFree_v2(c));
    ask("importer: destroy again", cuMemPoolDestroy(pool));
    ask("importer: destroy the other", cuMemPoolDestroy(other));
}

void role_pool_stranger(void) {
    struct offer o;
    int fd = receive_bytes(partner_socket, &o, sizeof o);
    primary(0);
    CUmemoryPool pool, other;
    CUdeviceptr a, q;
    MUST(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0));
    ask("importer: destroy an imported pool", cuMemPoolDestroy(pool));
    MUST(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0));
    MUST(cuMemPoolImportPointer(&a, pool, &o.first));
    ask("importer: destroy with a pointer", cuMemPoolDestroy(pool));
    look("importer: the pointer", a);
    ask("importer: a pointer from the destroyed pool", cuMemPoolImportPointer(&q, pool, &o.second));
    CUresult r = cuMemPoolImportFromShareableHandle(&other, (void *)(intptr_t)fd, 1, 0);
    say("importer: import anew", "%s, same %d", name(r), other == pool);
    r = cuMemPoolImportPointer(&q, other, &o.first);
    say("importer: the pointer anew", "%s, same %d", name(r), q == a);
    ask("importer: free the old pointer", cuMemFree_v2(a));
    look("importer: the new pointer", q);
    ask("importer: free the new pointer", cuMemFree_v2(q));
    ask("importer: destroy", cuMemPoolDestroy(other));
    MUST(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0));
    MUST(cuMemPoolImportPointer(&a, pool, &o.first));
    ask("importer: free", cuMemFree_v2(a));
    ask("importer: destroy after the free", cuMemPoolDestroy(pool));
    MUST(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0));
    MUST(cuMemPoolImportPointer(&a, pool, &o.freed));
    ask("importer: free twice: first", cuMemFreeAsync(a, NULL));
    ask("importer: free twice: second", cuMemFreeAsync(a, NULL));
    ask("importer: synchronise", cuStreamSynchronize(NULL));
    r = cuMemPoolImportPointer(&q, pool, &o.first);
    say("importer: import after a free", "%s", name(r));
    ask("importer: cuMemFreeAsync, not synchronised", cuMemFreeAsync(q, NULL));
    r = cuMemPoolImportPointer(&q, pool, &o.first);
    say("importer: import at once after that", "%s", name(r));
    cuMemFree_v2(q);
    MUST(cuStreamSynchronize(NULL));
    tell(partner_socket);
    await(partner_socket);
    // Now the exporter has freed its memory except the allocation `second`, and has trimmed the pool. Before the next `await`
    // returns, the exporter frees this allocation and destroys the pool.
    ask("importer: a pointer of trimmed memory", cuMemPoolImportPointer(&q, pool, &o.large));
    look("importer: reads it", q);
    tell(partner_socket);
    await(partner_socket);
    r = cuMemPoolImportFromShareableHandle(&other, (void *)(intptr_t)fd, 1, 0);
    say("importer: import a destroyed pool", "%s", name(r));
    ask("importer: a pointer of it", cuMemPoolImportPointer(&q, pool, &o.second));
    tell(partner_socket);
}

void section_pool_life(void) {
    struct partner p = partner_start("pool_stranger");
    primary(0);
    CUmemoryPool pool = pool_of(0, 1, 0);
    int fd;
    struct offer o;
    MUST(cuMemPoolExportToShareableHandle(&fd, pool, 1, 0));
    CUdeviceptr a = from_pool(pool, MB), b = from_pool(pool, 1000), c = from_pool(pool, 4096), d = from_pool(pool, 100 * MB);
    MUST(cuMemsetD8_v2(a, 31, MB));
    MUST(cuMemsetD8_v2(d, 32, 100 * MB));
    MUST(cuStreamSynchronize(NULL));
    MUST(cuMemPoolExportPointer(&o.first, a));
    MUST(cuMemPoolExportPointer(&o.second, b));
    MUST(cuMemPoolExportPointer(&o.freed, c));
    MUST(cuMemPoolExportPointer(&o.large, d));
    send_bytes(p.socket, &o, sizeof o, fd);
    await(p.socket);
    MUST(cuMemFree_v2(a));
    MUST(cuMemFree_v2(c));
    MUST(cuMemFree_v2(d));
    MUST(cuStreamSynchronize(NULL));
    MUST(cuMemPoolTrimTo(pool, 0));
    say("after the frees", "reserved %llu", (unsigned long long)pool_attribute(pool, 5));
    tell(p.socket);
    await(p.socket);
    MUST(cuMemFree_v2(b));
    ask("destroy", cuMemPoolDestroy(pool));
    tell(p.socket);
    await(p.socket);
    partner_end(p);
}
