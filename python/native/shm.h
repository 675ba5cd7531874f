// The memory that the members of a channel share: docs/streams.md. Nothing here knows of Python.
//
// Every word of shared memory is read and written by atomic operations. What another process writes is checked before it is
// used. No function here sleeps but pb_futex_wait. No object here may be used by two threads at the same time.
#ifndef POOLBRIDGE_SHM_H
#define POOLBRIDGE_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the layouts of docs/streams.md are little-endian"
#endif

enum {
    PB_PRODUCERS = 63, // slots that producers can have
    PB_VOID = 63,      // the slot in the tail of a number that was never published
    PB_CONSUMERS = 1024,
    PB_HOLDS = 256,
    PB_WORDS = 512, // of a timeline
    PB_DESCRIPTION = 576,
    PB_EVENT = 64,
    PB_META = 8320, // after the event
    PB_NDIM = 32,
    PB_PAGE = 4096,
    PB_ROSTER = 73728,
};
#define PB_VALUE_MAX ((UINT64_C(1) << 62) - 1) // of a fence
#define PB_NUMBER_MAX ((UINT64_C(1) << 48) - 1)
#define PB_NS_MS INT64_C(1000000)
#define PB_SLICE (100 * PB_NS_MS) // of a sleep, and how long a contradiction may last

enum pb_state { PB_OPEN, PB_CLOSING, PB_CLOSED, PB_DESTROYED };
enum pb_policy { PB_BLOCK, PB_FAIL, PB_DROP_OLDEST, PB_LATEST };
enum pb_membership { PB_FREE, PB_ACTIVE, PB_LEFT };

enum pb_result {
    PB_OK,
    PB_NONE,      // not now: wait
    PB_AGAIN,     // others were faster, or pages contradict each other: try again soon
    PB_TIMEOUT,   // the caller's time is over
    PB_NO_ROOM,   // the channel is full, and its policy is to fail
    PB_END,       // no frame comes, or none may be published, any more
    PB_GONE,      // the channel was destroyed
    PB_EVICTED,   // this member is not active in the roster
    PB_UNKNOWN,   // the file of a member is needed: see `unknown_slot` and `unknown_member`
    PB_FAILED,    // a record is a lie: see `failed`
    PB_HANDS,     // all holds are in use
    PB_FENCE,    // an earlier fence of another word has to be reached first
    PB_NOT_HELD,  // the frame is not in hand
    PB_PROTOCOL,  // the pages contradict themselves: see `complaint`
    PB_NO_MEMORY, // see `complaint`
};

typedef _Atomic uint64_t pb_word;
typedef _Atomic uint32_t pb_futex;

struct pb_file {
    unsigned char *base;
    size_t size;
};

// What producers and consumers have in common.
struct pb_channel {
    struct pb_file roster, sequencer, own;
    uint64_t capacity, slots; // frames kept; slots of every ring
    bool queue;
    uint32_t policy; // of the channel
    uint32_t slot;   // of this member
    uint64_t member;
    uint64_t version;   // of the roster when its slots were read
    uint64_t life;      // see pb_forked
    uint64_t seen_tail; // what pb_moved compares with
    int64_t odd_since;  // when a contradiction was first seen; 0: there is none
    uint32_t unknown_slot;
    uint64_t unknown_member;
    char complaint[160];
};

struct pb_cursor {
    struct pb_file file;
    uint64_t member, timeline;
    uint32_t state, policy;
};

struct pb_fence {
    uint64_t timeline, word, value;
};

struct pb_flight { // a frame whose block has not come back
    uint64_t number, block;
    size_t first, fences; // once it has: its part of `fences`
    bool back;
};

struct pb_producer {
    struct pb_channel ch;
    struct pb_cursor *cursors[PB_CONSUMERS]; // by slot, as they were added
    struct pb_cursor *live[PB_CONSUMERS];    // active or left in the roster
    size_t lives;
    uint64_t floor;      // no consumer that may hold the producer up uses a number below it
    uint64_t *described; // the id of the description that stands in each slot of the track
    struct pb_flight *flights, *back;
    size_t in_flight, came_back, room;
    struct pb_fence *fences;
    size_t fence_count, fence_room;
    // Fair waiting: docs/streams.md, "Waiting for room".
    uint64_t ticket; // its own; 0: it does not wait
    uint64_t calm;   // `tickets` when nobody else waited
    uint64_t before, passed;
    int64_t before_until;
    int64_t patience; // how long one that waits longer may take to use the room, in nanoseconds
};

struct pb_publication {
    uint64_t block, buffer, bytes, value, description_id;
    const void *description, *meta, *event; // event: NULL or PB_EVENT bytes
    uint32_t word, meta_bytes;
};

struct pb_track {
    struct pb_file file;
    uint64_t member;
};

struct pb_hand { // a frame in hand
    uint64_t number, block;
    int hold; // -1: none
    bool settled; // its claim has ended
};

struct pb_frame {
    uint64_t number, block, buffer, bytes, time, value, description_id;
    uint64_t producer, timeline; // member id of the producer, and id of its timeline
    uint64_t missed;             // frames before it that this consumer did not get
    uint32_t word, meta_bytes;
    bool event;
    void *kept; // what was kept for it; NULL: its description was copied
};

struct pb_kept {
    uint64_t block, producer, description_id;
    void *object; // NULL: nothing
};

struct pb_consumer {
    struct pb_channel ch;
    struct pb_track tracks[PB_PRODUCERS];
    uint64_t producers[PB_PRODUCERS], timelines[PB_PRODUCERS]; // of the roster
    uint32_t policy;
    bool begun, left;
    uint64_t next, floor, missed, failed, used;
    struct pb_hand hands[PB_HOLDS];
    size_t in_hand;
    uint64_t busy[PB_HOLDS / 64]; // holds in use
    struct pb_kept *kept;
    size_t kept_room, kept_count;
    // Of the frame that was taken last.
    uint64_t description[PB_DESCRIPTION / 8], meta[(PB_EVENT + PB_META) / 8];
};

struct pb_description {
    uint64_t offset, shape[PB_NDIM];
    int64_t strides[PB_NDIM];
    unsigned ndim;
    bool strided;
    char dtype[16];
};

// shm.c: files, words, waiting

void pb_init(void);
bool pb_forked(uint64_t life); // whether this process is a child that was forked since
uint64_t pb_life(void);
int64_t pb_now(void); // nanoseconds that only grow
enum pb_result pb_file_open(struct pb_channel *ch, struct pb_file *file, int fd, size_t size, bool write, const char *what);
void pb_file_close(struct pb_file *file, uint64_t life);
int pb_futex_wait(pb_futex *word, uint32_t seen, int64_t ns); // an errno, or 0
int pb_futex_wake(pb_futex *word, int most);
uint32_t pb_arm(pb_futex *word); // say that somebody is about to sleep; gives the value to sleep on
void pb_wake(pb_futex *word);    // move on and wake all, if somebody sleeps; after a full barrier
bool pb_moved(struct pb_channel *ch);
size_t pb_track_size(uint64_t slots);
size_t pb_cursor_size(uint64_t slots);
enum pb_result pb_channel_open(struct pb_channel *ch, int roster, int sequencer, uint32_t slot, uint64_t member);
void pb_channel_close(struct pb_channel *ch);
enum pb_result pb_complain(struct pb_channel *ch, enum pb_result result, const char *text, ...);
enum pb_result pb_odd(struct pb_channel *ch, const char *text); // PB_AGAIN, and after 100 ms PB_PROTOCOL
void pb_help(struct pb_channel *ch, uint64_t tail);
void pb_advance_head(struct pb_channel *ch, uint64_t tail);
pb_futex *pb_published(const struct pb_channel *ch);
pb_futex *pb_freed(const struct pb_channel *ch);

// producer.c

enum pb_result pb_producer_open(struct pb_producer *p, int roster, int sequencer, int track, uint32_t slot, uint64_t member);
void pb_producer_close(struct pb_producer *p);
enum pb_result pb_add_cursor(struct pb_producer *p, uint32_t slot, uint64_t member, int fd);
enum pb_result pb_publish(struct pb_producer *p, const struct pb_publication *what, bool waits, uint64_t *number);
void pb_end_wait(struct pb_producer *p);
bool pb_behind(const struct pb_producer *p, uint64_t *member, uint32_t *process); // who holds a broadcast up the most
enum pb_result pb_reclaim(struct pb_producer *p); // PB_OK: see `back`, good until the next call; PB_NONE: wait on `freed`

// consumer.c

enum pb_result pb_consumer_open(struct pb_consumer *c, int roster, int sequencer, int cursor, uint32_t slot, uint64_t member);
void pb_consumer_close(struct pb_consumer *c); // what is kept has to be dropped before
enum pb_result pb_begin(struct pb_consumer *c); // once the service says that it has joined
enum pb_result pb_add_track(struct pb_consumer *c, uint32_t slot, uint64_t member, int fd);
enum pb_result pb_take(struct pb_consumer *c, struct pb_frame *frame);
enum pb_result pb_settle(struct pb_consumer *c, uint64_t number, bool requeue, bool *stood); // it stays in hand
enum pb_result pb_release(struct pb_consumer *c, uint64_t number, bool requeue, const struct pb_fence *done, bool settled,
                          bool *stood);
void pb_leave(struct pb_consumer *c);
bool pb_keep(struct pb_consumer *c, const struct pb_kept *what, void **before); // false: no memory
void *pb_forget(struct pb_consumer *c, uint64_t block);
bool pb_check_description(const void *bytes, struct pb_description *to);
bool pb_check_meta(const void *bytes, size_t size);

// Words of shared memory

#ifdef PB_STUMBLE
void pb_stumble(void); // for tests: any step may take long
#else
#define pb_stumble() ((void)0)
#endif
#define PB_LOAD(word) (pb_stumble(), atomic_load_explicit(word, memory_order_acquire))
#define PB_PEEK(word) atomic_load_explicit(word, memory_order_relaxed)
#define PB_STORE(word, value) atomic_store_explicit(word, value, memory_order_release)
#define PB_PUT(word, value) atomic_store_explicit(word, value, memory_order_relaxed)
#define PB_CAS(word, from, to)                                                                                                   \
    atomic_compare_exchange_strong_explicit(word, from, to, memory_order_seq_cst, memory_order_acquire)
#define PB_FULL_BARRIER() atomic_thread_fence(memory_order_seq_cst)

static inline pb_word *pb_at(const struct pb_file *file, size_t offset) { return (pb_word *)(file->base + offset); }
static inline pb_futex *pb_at32(const struct pb_file *file, size_t offset) { return (pb_futex *)(file->base + offset); }

enum { // offsets in the roster and in its slots
    PB_AT_VERSION = 8,
    PB_AT_STATE = 16,
    PB_AT_END = 24,
    PB_AT_PRODUCERS = 4096,
    PB_AT_CONSUMERS = 8192,
    PB_SLOT = 64,
    PB_SLOT_POLICY = 4,
    PB_SLOT_MEMBER = 8,
    PB_SLOT_TIMELINE = 16,
    PB_SLOT_START = 24,
    PB_SLOT_PROCESS = 32,
};
enum { PB_AT_TICKETS = 192, PB_AT_DROPPED = 256, PB_AT_HEAD = 320, PB_AT_WAITING = 512, PB_AT_ORDER = 8192 };
enum { PB_AT_USED = 16, PB_AT_HOLDS = 4096, PB_AT_DONE = 8192, PB_RECORD = 64, PB_META_SLOT = 8448 };

// The parts of a tail: the number of the newest frame, the slot of its producer, the version of the roster.
static inline uint64_t pb_tail(const struct pb_channel *ch) { return PB_LOAD(pb_at(&ch->sequencer, 0)); }
static inline uint64_t pb_tail_number(uint64_t tail) { return tail >> 16; }
static inline uint32_t pb_tail_slot(uint64_t tail) { return (uint32_t)(tail >> 10) & 63; }
static inline uint64_t pb_version(const struct pb_channel *ch) { return PB_LOAD(pb_at(&ch->roster, PB_AT_VERSION)); }
static inline uint64_t pb_state(const struct pb_channel *ch) { return PB_LOAD(pb_at(&ch->roster, PB_AT_STATE)); }
static inline uint64_t pb_ring(const struct pb_channel *ch, uint64_t number) { return number & (ch->slots - 1); }

// The entry of a number: the number and the slot of its producer.
static inline pb_word *pb_entry(const struct pb_channel *ch, uint64_t number) {
    return pb_at(&ch->sequencer, PB_AT_ORDER + 8 * pb_ring(ch, number));
}

// The claim of a number in a queue: the number and a tag.
enum { PB_GIVEN_BACK, PB_ACKNOWLEDGED, PB_CLAIMED };
static inline pb_word *pb_claim(const struct pb_channel *ch, uint64_t number) {
    return pb_at(&ch->sequencer, PB_AT_ORDER + 8 * (ch->slots + pb_ring(ch, number)));
}
static inline bool pb_claim_waits(uint64_t claim, uint64_t number) { // whether a published number is for anybody to take
    return claim >> 12 < number || claim == (number << 12 | PB_GIVEN_BACK);
}
static inline bool pb_claim_over(uint64_t claim, uint64_t number) { // whether it is acknowledged
    return claim >> 12 > number || claim == (number << 12 | PB_ACKNOWLEDGED);
}

// The first number that has to be looked at to see every frame of a queue that is not acknowledged.
static inline uint64_t pb_oldest_standing(const struct pb_channel *ch, uint64_t last) {
    uint64_t first = last >= ch->slots ? last - ch->slots + 1 : 1;
    uint64_t head = PB_LOAD(pb_at(&ch->sequencer, PB_AT_HEAD));
    return head > first ? head : first;
}

#endif
