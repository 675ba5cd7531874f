// Checks of counts, of processes that start and die, and of settings in the environment.
#include "checks.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MB = 1 << 20 };

static int64_t count_of(int pid, const char *name) {
    char path[256];
    struct { char name[48]; int64_t value, zero; } entry;
    struct { char magic[8]; uint32_t version, entries; int64_t pid, zero[5]; } head;
    snprintf(path, sizeof path, "%s/%d.counts", folder, pid);
    FILE *f = fopen(path, "r");
    EXPECT(f && fread(&head, sizeof head, 1, f) == 1 && memcmp(head.magic, "SIMCOUNT", 8) == 0 && head.pid == pid);
    for (uint32_t i = 0; i < head.entries && fread(&entry, sizeof entry, 1, f) == 1; i++) {
        if (strcmp(entry.name, name) != 0) continue;
        fclose(f);
        return entry.value;
    }
    fail(__FILE__, __LINE__, "no count of %s", name);
}

static void busy(struct child *parent) {
    char byte = 0;
    size_t a, b;
    get(parent, &byte, 1);
    start(0);
    for (int i = 0; i < 5; i++) OK(cuMemGetInfo_v2(&a, &b));
    put(parent, &byte, 1);
    get(parent, &byte, 1);
    for (int i = 0; i < 2; i++) OK(cuMemGetInfo_v2(&a, &b));
    make_pool(0);
    put(parent, &byte, 1);
    get(parent, &byte, 1);
}

// The process of this case has its own file of counts, because the harness executes its program again for each case.
static void counted(void) {
    size_t a, b;
    start(0);
    int64_t before = count_of(getpid(), "*");
    OK(cuMemGetInfo_v2(&a, &b));
    OK(cuMemGetInfo_v2(&a, &b));
    EXPECT(count_of(getpid(), "*") == before + 2);
    EXPECT(count_of(getpid(), "cuMemGetInfo") == 2);
    EXPECT(count_of(getpid(), "live:pool") == 0);
    CUmemoryPool pool = make_pool(0);
    CUdeviceptr p = take(pool, 4096);
    EXPECT(count_of(getpid(), "live:pool") == 1 && count_of(getpid(), "live:pool allocation") == 1);
    OK(cuMemFree_v2(p));
    OK(cuMemPoolDestroy(pool));
    EXPECT(count_of(getpid(), "live:pool") == 0 && count_of(getpid(), "live:pool allocation") == 0);
}

static void counted_after_fork(void) {
    char byte = 0;
    struct child c = child_start(busy);
    put(&c, &byte, 1);
    get(&c, &byte, 1);
    EXPECT(count_of(c.pid, "cuMemGetInfo") == 5);
    put(&c, &byte, 1);
    get(&c, &byte, 1);
    child_kill(&c);
    EXPECT(count_of(c.pid, "cuMemGetInfo") == 7);
    EXPECT(count_of(c.pid, "live:pool") == 1);
}

static void exit_while_a_stream_waits(void) {
    volatile uint64_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    start(0);
    CUstream s;
    OK(cuMemHostRegister_v2((void *)word, 4096, 2));
    OK(cuStreamCreate(&s, 1));
    OK(cuStreamWaitValue64_v2(s, (CUdeviceptr)word, 1, 0));
    OK(cuStreamWaitValue64_v2(s, (CUdeviceptr)word, 2, 0));
    alarm(60);
}

static void fork_without_exec(void) {
    start(0);
    CUstream s;
    OK(cuStreamCreate(&s, 0));
    OK(cuLaunchHostFunc(s, free, NULL));
    fflush(NULL);
    int pid = fork(), status;
    if (pid == 0) {
        int n;
        RESULT(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
        RESULT(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
        RESULT(cuStreamSynchronize(s), CUDA_ERROR_NOT_INITIALIZED);
#ifdef __SANITIZE_ADDRESS__
        _exit(0); // exit looks for leaks, and waits for ever for a lock that another thread of the parent had at the fork
#else
        exit(0);
#endif
    }
    waitpid(pid, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(s));
    stop(0);
}

struct offer { int fd; CUmemPoolPtrExportData blob; };

static void exporter(struct child *parent) {
    char byte;
    start(0);
    struct offer o;
    CUmemoryPool pool = make_pool(0);
    CUdeviceptr p = take(pool, 100 * MB);
    OK(cuMemsetD8_v2(p, 42, 100 * MB));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolExportToShareableHandle(&o.fd, pool, 1, 0));
    OK(cuMemPoolExportPointer(&o.blob, p));
    put(parent, &o, sizeof o);
    get(parent, &byte, 1);
}

static size_t available(void) {
    size_t left, total;
    OK(cuMemGetInfo_v2(&left, &total));
    return left;
}

// Measured on a device: if the exporter dies, the memory stays while another process has the descriptor, with or without a
// context. The memory is freed when the last descriptor is closed.
static void exporter_is_killed(void) {
    struct offer o;
    struct child c = child_start(exporter);
    get(&c, &o, sizeof o);
    int fd = borrow(c.pid, o.fd);
    start(0);
    size_t before = available();
    child_kill(&c);
    EXPECT(available() == before);
    CUmemoryPool pool;
    CUdeviceptr p;
    unsigned char seen;
    OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0));
    OK(cuMemPoolImportPointer(&p, pool, &o.blob));
    OK(cuMemcpyDtoH_v2(&seen, p + 99 * MB, 1));
    EXPECT(seen == 42);
    close(fd);
    EXPECT(available() == before);
    OK(cuMemFree_v2(p));
    OK(cuMemPoolDestroy(pool));
    EXPECT(available() == before + 128 * MB);
}

static void device_is_full(void) {
    CUdeviceptr p, q;
    start(0);
    OK(cuMemAlloc_v2(&p, 60 * MB));
    RESULT(cuMemAlloc_v2(&q, 60 * MB), CUDA_ERROR_OUT_OF_MEMORY);
    CUmemoryPool pool = make_pool(0);
    OK(cuMemAllocFromPoolAsync(&q, 20 * MB, pool, NULL));
    RESULT(cuMemAllocFromPoolAsync(&q, 20 * MB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree_v2(p));
    OK(cuMemAllocFromPoolAsync(&q, 40 * MB, pool, NULL));
}

// Runs in the child: alternately fills the device and frees the memory. Before each further step, it waits for a byte from the parent.
static void fill_in_turn(struct child *parent) {
    CUdeviceptr p;
    char turn;
    start(0);
    for (int i = 0; i < 2; i++) {
        OK(cuMemAlloc_v2(&p, 60 * MB));
        put(parent, "", 1);
        get(parent, &turn, 1);
        OK(cuMemFree_v2(p));
        put(parent, "", 1);
        get(parent, &turn, 1);
    }
    OK(cuMemAlloc_v2(&p, 60 * MB));
    put(parent, "", 1);
    get(parent, &turn, 1);
}

static void device_is_full_of_others(void) {
    CUdeviceptr p;
    char turn;
    struct child c = child_start(fill_in_turn);
    start(0);
    for (int i = 0; i < 2; i++) {
        get(&c, &turn, 1);
        RESULT(cuMemAlloc_v2(&p, 60 * MB), CUDA_ERROR_OUT_OF_MEMORY);
        put(&c, "", 1);
        get(&c, &turn, 1);
        OK(cuMemAlloc_v2(&p, 60 * MB));
        OK(cuMemFree_v2(p));
        put(&c, "", 1);
    }
    get(&c, &turn, 1);
    RESULT(cuMemAlloc_v2(&p, 60 * MB), CUDA_ERROR_OUT_OF_MEMORY);
    child_kill(&c);
    OK(cuMemAlloc_v2(&p, 60 * MB));
}

static void no_devices(void) { RESULT(cuInit(0), CUDA_ERROR_NO_DEVICE); }

static void one_visible(void) {
    int n = 0;
    CUuuid uuid;
    CUresult cuDeviceGetUuid_v2(CUuuid *, CUdevice);
    OK(cuInit(0));
    OK(cuDeviceGetCount(&n));
    EXPECT(n == 1);
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    EXPECT(memcmp(uuid.bytes, "simulated", 9) == 0 && uuid.bytes[15] == 1);
}

static void other_attributes(void) {
    char name[64];
    int value = 7;
    CUuuid uuid;
    CUresult cuDeviceGetName(char *, int, CUdevice), cuDeviceGetUuid_v2(CUuuid *, CUdevice);
    OK(cuInit(0));
    OK(cuDeviceGetName(name, sizeof name, 1));
    EXPECT(strcmp(name, "simulated toaster 1") == 0);
    OK(cuDeviceGetAttribute(&value, 115, 0));
    EXPECT(value == 0);
    OK(cuDeviceGetAttribute(&value, 16, 0));
    EXPECT(value == 99);
    OK(cuDeviceGetUuid_v2(&uuid, 1));
    EXPECT(memcmp(uuid.bytes, "simulated\0\xab\xcd\x01\x02\0\1", 16) == 0);
}

static void no_peers(void) {
    int can = 1;
    CUresult cuDeviceCanAccessPeer(int *, CUdevice, CUdevice);
    OK(cuInit(0));
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    EXPECT(!can);
    RESULT(cuMemPoolSetAccess(make_pool(0), &(CUmemAccessDesc){{1, 1}, 3}, 1), CUDA_ERROR_INVALID_DEVICE);
}

static void no_pools(void) {
    CUmemoryPool pool;
    CUmemPoolProps props = {1, 1, {1, 0}, NULL, 0, 0, {0}};
    OK(cuInit(0));
    RESULT(cuMemPoolCreate(&pool, &props), CUDA_ERROR_NOT_SUPPORTED);
}

// NVIDIA's libraries ask for tables of unnamed functions. The answer must be an error, because the
// simulation has no such tables.
static void no_unnamed_functions(void) {
    static const CUuuid id = {"a table"};
    const void *table = &id;
    void *at = NULL;
    int status = -1;
    RESULT(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
    EXPECT(!table);
    OK(cuGetProcAddress_v2("cuGetExportTable", &at, 13000, 0, &status));
    EXPECT(at == (void *)cuGetExportTable && status == 0);
    RESULT(cuGetExportTable(NULL, &id), CUDA_ERROR_INVALID_VALUE);
    RESULT(cuGetExportTable(&table, NULL), CUDA_ERROR_INVALID_VALUE);
}

static void block_opener(struct child *parent) {
    CUipcMemHandle h[3];
    CUdeviceptr first, second, again;
    size_t size;
    char byte = 0;
    get(parent, h, 2 * sizeof *h);
    start(0);
    OK(cuIpcOpenMemHandle_v2(&first, h[0], 1));
    OK(cuIpcOpenMemHandle_v2(&second, h[1], 1));
    EXPECT(second == first + 4096);
    OK(cuIpcCloseMemHandle(second));
    RESULT(cuMemcpyDtoH_v2(&byte, second, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcOpenMemHandle_v2(&again, h[1], 1));
    EXPECT(again == second);
    put(parent, &byte, 1);
    get(parent, h + 2, sizeof *h);
    OK(cuIpcOpenMemHandle_v2(&again, h[2], 1)); // the first allocation was freed; a larger allocation now has its address
    OK(cuMemGetAddressRange_v2(NULL, &size, again));
    EXPECT(size == 8192);
    OK(cuMemcpyDtoH_v2(&byte, again + 8191, 1));
    EXPECT(byte == 7);
    OK(cuIpcCloseMemHandle(first));
    OK(cuIpcCloseMemHandle(again));
    OK(cuIpcCloseMemHandle(second));
    RESULT(cuIpcCloseMemHandle(second), CUDA_ERROR_INVALID_VALUE);
}

static void handles_of_one_block(void) {
    CUipcMemHandle h[2];
    CUdeviceptr a, b, c, rest;
    char byte;
    struct child opener = child_start(block_opener);
    start(0);
    OK(cuMemAlloc_v2(&a, 4096));
    OK(cuMemAlloc_v2(&b, 4096));
    OK(cuMemAlloc_v2(&rest, 4096)); // keeps the block alive
    OK(cuIpcGetMemHandle(&h[0], a));
    OK(cuIpcGetMemHandle(&h[1], b));
    put(&opener, h, sizeof h);
    get(&opener, &byte, 1);
    OK(cuMemFree_v2(a));
    OK(cuMemFree_v2(b));
    OK(cuMemAlloc_v2(&c, 8192));
    EXPECT(c == a);
    OK(cuMemsetD8_v2(c, 7, 8192));
    OK(cuStreamSynchronize(NULL));
    OK(cuIpcGetMemHandle(&h[0], c));
    put(&opener, h, sizeof *h);
    child_wait(&opener);
}

static void touch_device_memory(void) {
    CUdeviceptr p;
    start(0);
    OK(cuMemAlloc_v2(&p, 4096));
    *(volatile char *)p = 1;
}

static void nobody_opens(struct child *parent) {
    CUipcEventHandle h;
    CUevent e;
    get(parent, &h, sizeof h);
    if (setgid(65534) != 0 || setuid(65534) != 0) exit(0); // only root can become another user
    start(0);
    RESULT(cuIpcOpenEventHandle(&e, h), CUDA_ERROR_MAP_FAILED);
}

static void event_of_another_user(void) {
    CUipcEventHandle h;
    CUevent e;
    struct child c = child_start(nobody_opens);
    start(0);
    OK(cuEventCreate(&e, 6));
    OK(cuIpcGetEventHandle(&h, e));
    put(&c, &h, sizeof h);
    child_wait(&c);
    OK(cuEventDestroy_v2(e));
}

const struct check life_checks[] = {
    {"calls and objects are counted", "SIMCUDA_COUNTS=@", counted, NULL, 0},
    {"counts survive SIGKILL", "SIMCUDA_COUNTS=@", counted_after_fork, NULL, 0},
    {"exit while a stream waits", NULL, exit_while_a_stream_waits, NULL, 0},
    {"fork without exec", NULL, fork_without_exec, "", 0},
    {"the exporter is killed", NULL, exporter_is_killed, NULL, 0},
    {"the device is full", "SIMCUDA_MEMORY_BYTES=100M", device_is_full, NULL, 0},
    {"the device is full of another process's memory", "SIMCUDA_MEMORY_BYTES=100M", device_is_full_of_others, NULL, 0},
    {"no devices", "SIMCUDA_DEVICES=0", no_devices, NULL, 0},
    {"one device by its ordinal", "CUDA_VISIBLE_DEVICES=1", one_visible, NULL, 0},
    {"one device by its UUID", "CUDA_VISIBLE_DEVICES=GPU-73696d75-6c61-7465-6400-000000000001,7", one_visible, NULL, 0},
    {"no device by an unknown UUID", "CUDA_VISIBLE_DEVICES=GPU-00000000", no_devices, NULL, 0},
    {"name, UUID and attributes", "SIMCUDA_NAME=toaster|SIMCUDA_UUID=abcd0102|SIMCUDA_ATTRIBUTES=115=0,16=99", other_attributes, NULL, 0},
    {"no peers", "SIMCUDA_PEER=0", no_peers, NULL, 0},
    {"there are no functions without names", NULL, no_unnamed_functions, NULL, 0},
    {"two handles of one block", NULL, handles_of_one_block, NULL, 0},
    {"no pools", "SIMCUDA_POOLS=0", no_pools, NULL, 0},
    {"the CPU cannot touch device memory", NULL, touch_device_memory, NULL, SIGSEGV},
    {"the CPU may touch device memory", "SIMCUDA_HOST_ACCESS=1", touch_device_memory, NULL, 0},
    {"an event of another user", NULL, event_of_another_user, NULL, 0},
    {0},
};
