// The interfaces between the files of the simulation. One lock (sim_mu) guards all state. The work of streams (copies,
// fills, kernels, waits) runs without the lock, on pinned memory.
#ifndef SIMCUDA_SIM_H
#define SIMCUDA_SIM_H

#include "cudaapi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#define SIM_API __attribute__((visibility("default")))
#define MIB ((uint64_t)1 << 20)
#define MAX_DEVICES 16

enum fn {
#define B(base) FN_##base,
#define S(base, symbol, since)
#define F(base, since) B(base)
#include "functions.def"
#undef F
#undef S
#undef B
    FN_COUNT
};
extern const char *const fn_names[FN_COUNT];

// ---- entry: every call begins with ENTER, which counts it, injects faults and checks what the call needs ----
enum need { NEED_NOTHING, NEED_INIT, NEED_CTX };
#define ENTER(fn, need)                              \
    do {                                             \
        CUresult enter_ = sim_enter(FN_##fn, need);  \
        if (enter_ != CUDA_SUCCESS) return enter_;   \
    } while (0)
CUresult sim_enter(enum fn fn, enum need need);
extern atomic_bool sim_stopping; // the process exits, so workers must not wait any longer
extern pthread_mutex_t sim_mu;
extern pthread_cond_t sim_progress; // broadcast when an operation ends, an event completes or a context fails
#define LOCK() pthread_mutex_lock(&sim_mu)
#define UNLOCK() pthread_mutex_unlock(&sim_mu)

// ---- config ----
struct config {
    int devices; // number of visible devices
    int ordinal[MAX_DEVICES]; // the machine's ordinals of the devices, by visible ordinal
    uint64_t memory;
    bool peer, host_access, prompt, pools, stream_mem_ops, ipc_events;
    char machine[24], name[48];
    unsigned uuid;
    const char *attributes; // number=value, separated by commas
    unsigned dwell_us;
};
extern struct config config;
void config_load(void);
uint64_t parse_bytes(const char *text, uint64_t otherwise);

// ---- handles: a handle is never an address, so that stale handles are always detected ----
enum kind { KIND_CONTEXT = 1, KIND_STREAM, KIND_EVENT, KIND_POOL, KIND_PHYSICAL, KIND_MODULE, KIND_FUNCTION, KIND_COUNT };
void *handle_new(enum kind kind, void *object);
void *handle_get(enum kind kind, const void *handle); // NULL if the handle names no living object of that kind
void handle_drop(const void *handle);
void handle_each(enum kind kind, void (*visit)(void *object, void *arg), void *arg);

// ---- context ----
struct stream;
struct context {
    void *handle;
    int device; // visible ordinal
    bool primary, alive;
    unsigned refs, flags;
    uint64_t id;
    size_t limits[8];
    int cache_config;
    _Atomic CUresult error; // the sticky error; CUDA_SUCCESS: none
    uint32_t peers; // devices whose memory this context may reach
    struct stream *legacy, *first; // first: list of all streams of the context
    unsigned streams, room; // how many streams the program has, and had at most when the context last made room for more
};
struct context *ctx_current(void); // NULL if there is no current context, or if it is destroyed
struct context *ctx_top(void); // the current context, even if it is destroyed
CUresult ctx_need(struct context **ctx); // the caller must not hold sim_mu
struct context *ctx_from(CUcontext handle);
struct context *ctx_primary(int device);
void ctx_fail(struct context *ctx, CUresult error); // the caller holds sim_mu
void ctx_wait_idle(struct context *ctx); // the caller holds sim_mu; waits until all work that is queued now is done
void ctx_destroy(struct context *ctx); // the caller holds sim_mu

// ---- shared memory objects: a memfd with a header, mapped here at `data` ----
enum memory_kind { MEMORY_POOL = 1, MEMORY_LINEAR, MEMORY_PHYSICAL };
#define MAX_IMPORTERS 6
#define MAX_CLAIMS 4096
#define MAX_CHUNKS 65536
struct claim { // a part of a pool that a process has imported; used only for reports of misuse
    _Atomic int32_t pid; // 0: free
    uint32_t zero;
    _Atomic uint64_t offset, size;
};
struct pool_tables {
    struct claim claims[MAX_CLAIMS];
    _Atomic uint32_t chunk_id[MAX_CHUNKS]; // 0: the pool has not taken the chunk; each time it takes the chunk, the id is new
};
struct shared_header {
    char magic[8];
    uint32_t version, kind;
    uint64_t cookie;
    int32_t device, exporter; // ordinal of the device on the machine; pid of the exporter
    uint64_t header_size, capacity;
    _Atomic uint64_t reserved; // bytes that count as taken on the device
    int32_t location_type, location_id, handle_types, alloc_type;
    uint64_t number; // number of the pool in the process that made it
    _Atomic int32_t importer[MAX_IMPORTERS]; // pids that map the whole object (VMM, linear)
    struct pool_tables tables[]; // only a pool has these tables
};
_Static_assert(sizeof(struct shared_header) + sizeof(struct pool_tables) <= MIB, "a pool's header");
struct backing {
    int refs, fd, device; // device: visible ordinal
    bool host, readonly;
    struct shared_header *header;
    uint8_t *data;
    uint64_t capacity, mapped;
};
CUresult backing_create(enum memory_kind kind, int device, bool host, uint64_t capacity, struct backing **out);
CUresult backing_import(int fd, enum memory_kind kind, struct backing **out); // duplicates fd
struct backing *backing_of_host(uint64_t start, uint64_t size);
void backing_ref(struct backing *b);
void backing_unref(struct backing *b);
void backing_discard(struct backing *b, uint64_t offset, uint64_t size);
bool backing_is_internal(int fd);
int backing_keep(int fd); // duplicates fd for the simulation alone
uint64_t va_reserve(uint64_t size, uint64_t align, uint64_t hint); // returns 0 if there is no free place
void va_release(uint64_t at, uint64_t size);
void va_spoil(uint64_t at, uint64_t size); // the next reservation begins here, and memory that is mapped here gets no access
bool va_is_spoiled(uint64_t at, uint64_t size);
bool va_expose(uint64_t at, struct backing *b, uint64_t offset, uint64_t size); // lets the CPU access the memory at this address
void va_hide(uint64_t at, uint64_t size);
bool va_is_device(uint64_t address); // true for each address that a device has or had; host memory never gets it
uint64_t usage_of_device(int device); // bytes used on a device by all processes that this process can inspect
bool usage_take(int device, uint64_t size); // false: too little memory is free; a size taken for nothing counts until the next exact count

// ---- ranges: the memory at each address ----
enum range_kind { RANGE_POOL = 1, RANGE_LINEAR, RANGE_IPC, RANGE_VMM, RANGE_HOST_ALLOC, RANGE_HOST_REGISTERED, RANGE_MANAGED };
struct pool;
struct range {
    uint64_t start, size;
    enum range_kind kind;
    struct backing *backing; // NULL for host memory
    uint64_t offset; // offset in the backing
    uint8_t *memory; // the place where the simulation itself can access the memory
    int device; // -1: host
    uint32_t readable, writable; // one bit for each device
    unsigned flags;
    struct context *ctx;
    struct pool *pool;
    void *owner; // RANGE_VMM: struct physical; RANGE_LINEAR: struct slab
    uint64_t block_size;
    uint32_t claim;
    uint64_t serial; // distinguishes successive ranges at one address
    int opens; // RANGE_IPC
    bool freed; // freed in stream order, but not gone yet
};
struct range *range_add(const struct range *r);
void range_remove(struct range *r);
struct range *range_find(uint64_t address); // the range that contains the address
struct range *range_next(struct range *r);
struct range *range_first(void);
struct range *range_overlap(uint64_t start, uint64_t size); // the first range that shares a byte with this part
uint8_t *range_pin(uint64_t address, uint64_t want, uint64_t *got, struct backing **pinned);
enum access { ACCESS_READ = 1, ACCESS_WRITE = 2 };
CUresult range_check(uint64_t address, uint64_t size, enum access access, int device); // INVALID_VALUE if the device has no access
CUresult range_within(uint64_t address, uint64_t size); // INVALID_VALUE if the part reaches beyond one allocation
bool range_is_known(uint64_t address);
bool range_is_host_pool(uint64_t address);

// ---- streams ----
struct op;
struct stream {
    void *handle;
    struct context *ctx;
    struct stream *next;
    unsigned flags;
    int priority, refs;
    bool legacy, closing, running;
    bool capturing, spoiled; // spoiled: the program made a call that CUDA forbids during the capture
    int capture_mode;
    pthread_t capturer; // the thread that began the capture
    struct stream *next_capturing;
    _Atomic bool aborted; // the context is gone, so the queued operations are dropped
    pthread_t owner; // the thread, if this is a per-thread default stream
    bool per_thread;
    uint64_t id, queued, done;
    struct op *head, *tail;
    pthread_cond_t work;
};
struct dependency { struct stream *stream; uint64_t seq; };
struct op {
    struct op *next;
    uint64_t seq;
    void (*run)(struct stream *s, struct op *op); // the caller does not hold sim_mu
    void (*drop)(struct op *op); // always called when the operation is over; the caller holds sim_mu
    struct dependency *deps;
    int dep_count;
    bool brief; // a copy or a fill: on an idle GPU, it is over before the program makes its next call
    bool always; // the operation runs even in a failed context
    _Alignas(16) unsigned char body[];
};
struct op *op_new(size_t body, void (*run)(struct stream *, struct op *));
bool stream_failed(struct stream *s); // true: no operation of the stream runs any more
CUresult stream_find(CUstream handle, struct stream **out); // the caller holds sim_mu
CUresult stream_get(CUstream handle, struct stream **out); // the caller holds sim_mu; fails while the stream is captured
// The body of the function `call`, which puts `expression`, a property of stream s, in *out.
#define ASK(call, out, expression)                     \
    ENTER(call, NEED_INIT);                            \
    if (!(out)) return CUDA_ERROR_INVALID_VALUE;       \
    LOCK();                                            \
    struct stream *s;                                  \
    CUresult r = stream_find(handle, &s);              \
    if (r == CUDA_SUCCESS) *(out) = (expression);      \
    UNLOCK();                                          \
    return r
struct stream *stream_make(struct context *ctx, unsigned flags, int priority);
void stream_ref(struct stream *s);
void stream_unref(struct stream *s);
void stream_submit(struct stream *s, struct op *op); // the caller holds sim_mu
void op_depend(struct op *op, struct stream *s, uint64_t seq);
void stream_wait(struct stream *s, uint64_t seq); // the caller holds sim_mu
void stream_close(struct stream *s);
void streams_stop(void);
void nap(unsigned *round); // a pause that grows each round, for words that are written without a notification

// ---- captures ----
CUresult capture_check(enum fn fn); // the error of a call that CUDA forbids now because of a capture
void capture_drop(struct stream *s); // ends the capture of a stream that closes; the caller holds sim_mu

// ---- pools ----
CUresult pool_free_pointer(struct range *r, struct stream *s);
void linear_free_async(struct range *r, struct stream *s);
void linear_free_context(struct context *ctx);
bool host_free(uint64_t address, enum range_kind kind); // the caller holds sim_mu; false: no such allocation begins there

// ---- faults, counts, misuse ----
void faults_load(void);
CUresult faults_apply(enum fn fn);
CUresult faults_device(int device); // the error of a lost device, or CUDA_SUCCESS
const char *result_name(CUresult r); // NULL if the result is unknown
CUresult result_parse(const char *name); // -1 if the name is unknown
void counts_open(void);
void counts_forked(void);
void counts_call(enum fn fn);
enum gauge { LIVE_CONTEXT, LIVE_STREAM, LIVE_EVENT, LIVE_POOL, LIVE_POOL_IMPORT, LIVE_POINTER, LIVE_POINTER_IMPORT,
    LIVE_LINEAR, LIVE_IPC, LIVE_PHYSICAL, LIVE_MAPPING, LIVE_RESERVATION, LIVE_HOST_ALLOC, LIVE_HOST_REGISTERED,
    LIVE_MODULE, LIVE_COUNT };
void counts_live(enum gauge gauge, int delta);
int64_t counts_live_now(enum gauge gauge);
extern const char *const gauge_names[LIVE_COUNT];
void misuse_load(void);
bool misuse_on(void);
void misuse_report(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
void misuse_missing_context(enum fn fn);
void misuse_freed(uint64_t start, uint64_t size); // remembers the part, so that a later use of it is recognised
void misuse_address(const char *call, uint64_t address); // reports misuse if the memory at the address was freed
enum section { SECTION_POOL = 1, SECTION_POINTER = 2 };
void section_enter(enum section section, const char *call);
void section_leave(enum section section);
void importer_add(_Atomic int32_t *importers);
void importer_remove(_Atomic int32_t *importers);
int importer_other(_Atomic int32_t *importers); // pid of another living process in the list, or 0
uint32_t claim_add(struct claim *claims, uint64_t offset, uint64_t size);
void claim_remove(struct claim *claims, uint32_t index);
int claim_other(struct claim *claims, uint64_t offset, uint64_t size); // pid of another living process that claims the part, or 0
void leaks_report(void);

#endif
