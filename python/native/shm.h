// Declares what the native code does with the memory that the members of a channel share. docs/streams.md describes this memory. Nothing
// here depends on Python.
//
// This code reads and writes what members share by atomic operations on words; only a producer compares the layout in its own track as
// bytes. It checks every value that another member writes before it uses the value. Only the service writes the roster's seats. Only
// pb_futex_wait sleeps. Two threads must not use the same producer or consumer at the same time.
#ifndef POOLBRIDGE_SHM_H
#define POOLBRIDGE_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "limits.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the layouts of docs/streams.md are little-endian"
#endif

enum {
    PB_VOID = PB_PRODUCERS, // the seat in a tail whose number is void: no frame was published with that number
    PB_AT_BASE = 544,       // where a description says where the frame's memory begins in its block
    PB_AT_LAYOUT = 552,     // where a description says how many bytes the layout has
    PB_MOST_KEPT = 16384,   // greatest number of objects that a consumer keeps
    PB_PAGE = 4096,
};
#define PB_NS_MS INT64_C(1000000)
#define PB_SLICE (100 * PB_NS_MS) // longest sleep, and the longest time that a contradiction in the shared memory may last

enum pb_state { PB_OPEN, PB_CLOSING, PB_CLOSED, PB_DESTROYED };
enum pb_policy { PB_BLOCK, PB_FAIL, PB_DROP_OLDEST, PB_LATEST };
enum pb_membership { PB_FREE, PB_ACTIVE, PB_LEFT };

enum pb_result {
    PB_OK,
    PB_NONE,      // not possible now: the caller waits
    PB_AGAIN,     // another member changed the memory first, or the memory contradicts itself: try again soon
    PB_TIMEOUT,   // the caller's time limit is reached
    PB_NO_ROOM,   // the channel is full, and its policy is to fail
    PB_END,       // a consumer gets no more frames, or a producer may not publish any more
    PB_ABANDONED, // no producer is left, and a consumer that needs producers has taken every frame
    PB_GONE,      // the channel was destroyed
    PB_EVICTED,   // this member is not active in the roster
    PB_UNKNOWN,   // the file of a member is needed: see `unknown_seat` and `unknown_member`
    PB_FAILED,    // a record is corrupt: see `failed`
    PB_SPENT,     // a frame was delivered too often, and is acknowledged now: see `failed` and `spent`
    PB_HANDS,     // 256 frames are in hand, which is the limit
    PB_FENCE,     // the caller must first wait for an earlier fence
    PB_NOT_HELD,  // the frame is not in hand
    PB_PROTOCOL,  // the shared memory contradicts itself: see `complaint`
    PB_NO_MEMORY, // see `complaint`
};

typedef _Atomic uint64_t pb_word;
typedef _Atomic uint32_t pb_futex;

struct pb_file {
    unsigned char *base;
    size_t size;
};

// The fields that a producer and a consumer both have.
struct pb_channel {
    struct pb_file roster, sequencer, own;
    uint64_t capacity, slots; // number of frames that the channel keeps; slots of every ring
    bool queue;
    uint32_t policy; // policy of the channel
    uint64_t delivers; // how often consumers of a queue get a frame that none acknowledges; 0: without end
    uint32_t seat;   // seat of this member
    uint64_t member;
    uint64_t version;   // version of the roster when its seats were read
    uint64_t life;      // result of pb_life() when the channel was opened, for pb_forked
    uint64_t seen_tail; // the newest tail that this member has loaded; pb_moved compares the present tail with it
    int64_t odd_since;  // when this member first saw a contradiction; 0: there is no contradiction
    uint32_t unknown_seat;
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

// A publisher's chunks: parts of one or more arenas. Each chunk is free, on loan to the program, or sent: its frame has not come back.
struct pb_chunk {
    struct pb_arena *arena;
    struct pb_chunk *next;    // the next free chunk
    struct pb_fence *fences; // fences that must be reached before the chunk is written again
    size_t fence_count, fence_room;
    void *array, *keeper; // Python objects: the array of the chunk, and the state that keeps the array's memory mapped
};

struct pb_chunks {
    struct pb_chunk *first, *last; // the free chunks, in the order in which they came back
    struct pb_chunk *loan;
};

struct pb_arena { // a buffer that is divided into chunks of `stride` bytes
    uint64_t block, buffer, stride;
    size_t count, sent;    // number of its chunks, and of those that are sent
    size_t users;          // its frames in flight, plus one for its Python object: the last user frees it
    struct pb_chunks *owner; // NULL: no publisher uses its chunks any more
    struct pb_chunk chunks[];
};

struct pb_flight { // a frame whose memory has not come back
    uint64_t number, buffer;
    struct pb_chunk *chunk; // NULL: the frame has a buffer of its own
    size_t first, fences; // after the memory has come back: its first fence in `pb_producer.fences`, and the number of its fences
    bool back;
};

struct pb_producer {
    struct pb_channel ch;
    struct pb_cursor *cursors[PB_CONSUMERS]; // the cursors that were added, by seat
    struct pb_cursor *live[PB_CONSUMERS];    // the cursors of members whose seat in the roster is active or left
    size_t lives;
    uint64_t floor;      // no blocking consumer uses a number below `floor`
    uint64_t published, bytes; // frames that this producer published, and the bytes of their buffers
    uint64_t *described; // id of the description in each slot of the track
    struct pb_flight *flights, *back;
    size_t in_flight, came_back, room;
    uint64_t returned; // how many frames have come back
    size_t due;        // how many frames with buffers of their own the last `pb_reclaim` found that it did not take back
    struct pb_fence *fences;
    size_t fence_count, fence_room;
    // The fields for fair waits of producers: see the section "Waiting for room" of docs/streams.md.
    uint64_t ticket; // ticket of this producer; 0: this producer does not wait
    uint64_t calm;   // value of the word at PB_AT_TICKETS when no other producer waited
    uint64_t before, passed;
    int64_t before_until;
    uint64_t yielded; // the last ticket that this producer let go first
    unsigned yields;  // how many tickets it has let go first since its last frame
    int64_t patience; // how long a producer with a smaller ticket may take to use the room, in nanoseconds
};

struct pb_publication {
    struct pb_chunk *chunk; // NULL: the frame has a buffer of its own
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
    int hold; // index of the frame's hold; -1: the frame has no hold
    bool settled; // this consumer has ended its claim on the frame
};

struct pb_frame {
    uint64_t number, block, buffer, bytes, time, value, description_id;
    uint64_t base;               // where the frame's memory begins in its block
    uint64_t producer, timeline; // member id of the producer, and id of its timeline
    uint64_t missed;             // number of frames just before this frame that the consumer did not get
    uint64_t delivery;           // how often consumers have got this frame, with this time
    uint32_t word, meta_bytes;
    bool event;
    void *kept; // the object that pb_keep stored for a frame with this description; NULL: pb_take copied the description
};

// An object that a consumer keeps for frames of one producer that have the same block and description.
struct pb_kept {
    uint64_t block, producer, description_id, base;
    void *object; // NULL: the entry is empty
};

struct pb_consumer {
    struct pb_channel ch;
    struct pb_track tracks[PB_PRODUCERS];
    uint64_t producers[PB_PRODUCERS], timelines[PB_PRODUCERS]; // read from the roster
    uint32_t policy;
    bool begun, left;
    bool needs_producers; // whether pb_take returns PB_ABANDONED
    uint64_t next, floor, missed, all_missed, failed, spent, used;
    int64_t checked; // when this consumer last read every slot of a queue because no frame seemed to wait
    struct pb_hand hands[PB_HOLDS];
    size_t in_hand;
    uint64_t taken, bytes, dropped; // frames that this consumer took, the bytes of their buffers, and the sum of `missed`
    uint64_t busy[PB_HOLDS / 64]; // bits of the holds in use
    struct pb_kept *kept;
    size_t kept_room, kept_count;
    // The description, the event and the meta of the last frame that this consumer took.
    uint64_t description[PB_DESCRIPTION / 8], meta[(PB_EVENT + PB_META) / 8];
    uint64_t *layout; // that of the description: PB_LAYOUT bytes
};

struct pb_description {
    uint64_t base, offset, layout_bytes, shape[PB_NDIM];
    int64_t strides[PB_NDIM];
    unsigned ndim;
    bool strided;
    char dtype[17]; // ends with a zero
};

// shm.c: files, words, waiting

void pb_init(void);
bool pb_forked(uint64_t life); // whether this process was forked after pb_life() returned `life`
uint64_t pb_life(void);
int64_t pb_now(void); // monotonic time in nanoseconds
enum pb_result pb_file_open(struct pb_channel *ch, struct pb_file *file, int fd, size_t size, bool write, const char *what);
void pb_file_close(struct pb_file *file, uint64_t life);
int pb_futex_wait(pb_futex *word, uint32_t seen, int64_t ns); // returns an errno, or 0
int pb_futex_wake(pb_futex *word, int most);
uint32_t pb_arm(pb_futex *word); // sets bit 0, which says that the caller is about to sleep; returns the value to pass to pb_futex_wait
void pb_wake(pb_futex *word);    // if a member sleeps: changes the value and wakes all sleepers; call pb_wake after a full barrier
bool pb_moved(struct pb_channel *ch);
size_t pb_sequencer_size(uint64_t slots);
size_t pb_track_size(uint64_t slots);
size_t pb_cursor_size(uint64_t slots);
enum pb_result pb_channel_open(struct pb_channel *ch, int roster, int sequencer, uint32_t seat, uint64_t member);
void pb_channel_close(struct pb_channel *ch);
enum pb_result pb_complain(struct pb_channel *ch, enum pb_result result, const char *text, ...);
enum pb_result pb_odd(struct pb_channel *ch, const char *text); // returns PB_AGAIN, or PB_PROTOCOL after 100 ms
void pb_help(struct pb_channel *ch, uint64_t tail);
void pb_advance_head(struct pb_channel *ch, uint64_t tail);
pb_futex *pb_published(const struct pb_channel *ch);
pb_futex *pb_freed(const struct pb_channel *ch);

// producer.c

enum pb_result pb_producer_open(struct pb_producer *p, int roster, int sequencer, int track, uint32_t seat, uint64_t member);
void pb_producer_close(struct pb_producer *p);
enum pb_result pb_add_cursor(struct pb_producer *p, uint32_t seat, uint64_t member, int fd);
enum pb_result pb_publish(struct pb_producer *p, const struct pb_publication *what, bool waits, uint64_t *number);
void pb_end_wait(struct pb_producer *p);
bool pb_behind(const struct pb_producer *p, uint64_t *member, uint32_t *process); // finds the slowest consumer of a broadcast
// Takes back the memory of frames. Chunks become free; buffers are in `back`, valid until the next call, but stay in flight if `buffers` is
// false. PB_OK: something came back, or nothing is in flight; PB_NONE: wait on `freed`.
enum pb_result pb_reclaim(struct pb_producer *p, bool buffers);
bool pb_add_fence(struct pb_chunk *chunk, const struct pb_fence *fence); // false: no memory
void pb_free_chunk(struct pb_chunks *chunks, struct pb_chunk *chunk);
void pb_drop_arena(struct pb_arena *arena); // one user less

// consumer.c

enum pb_result pb_consumer_open(struct pb_consumer *c, int roster, int sequencer, int cursor, uint32_t seat, uint64_t member);
void pb_consumer_close(struct pb_consumer *c); // before this call, call pb_forget(c, 0, …)
enum pb_result pb_begin(struct pb_consumer *c); // call pb_begin when the service says that the consumer has joined
enum pb_result pb_add_track(struct pb_consumer *c, uint32_t seat, uint64_t member, int fd);
enum pb_result pb_take(struct pb_consumer *c, struct pb_frame *frame);
enum pb_result pb_settle(struct pb_consumer *c, uint64_t number, bool requeue, bool *stood); // the frame stays in hand
// Releases a frame. `done` replaces the fence of another frame in the slot only if that is `reached`, or of the same word and not greater.
enum pb_result pb_release(struct pb_consumer *c, uint64_t number, bool requeue, const struct pb_fence *done,
                          const struct pb_fence *reached, bool *stood);
struct pb_fence pb_stored(struct pb_consumer *c, uint64_t number); // the fence in the slot of a frame's number; value 0: none
void pb_leave(struct pb_consumer *c);
bool pb_keep(struct pb_consumer *c, const struct pb_kept *what, void **before); // false: no memory, or PB_MOST_KEPT objects are kept
struct pb_kept *pb_forget(struct pb_consumer *c, uint64_t block, size_t *count); // block 0: all; the caller frees the result
bool pb_check_description(const void *bytes, struct pb_description *to);
bool pb_check_meta(const void *bytes, size_t size);

// Words of shared memory

#ifdef PB_STUMBLE
void pb_stumble(void); // for tests: may delay any step
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

enum { // offsets in the roster and in its seats
    PB_AT_VERSION = 8,
    PB_AT_STATE = 16,
    PB_AT_END = 24,
    PB_AT_ABANDONED = 72,
    PB_AT_PRODUCERS = 4096,
    PB_AT_CONSUMERS = 8192,
    PB_SEAT = 64,
    PB_SEAT_POLICY = 4,
    PB_SEAT_MEMBER = 8,
    PB_SEAT_TIMELINE = 16,
    PB_SEAT_START = 24,
    PB_SEAT_PROCESS = 32,
    PB_SEAT_ENDING = 36,
};
enum { PB_AT_TICKETS = 192, PB_AT_DROPPED = 256, PB_AT_HEAD = 320, PB_AT_DROPS = 384, PB_AT_WAITING = 512, PB_AT_ORDER = PB_HEAD };
enum { PB_AT_USED = 16, PB_AT_MISSED = 24, PB_AT_TAKEN = 32, PB_AT_HOLDS = 4096, PB_AT_DONE = PB_HEAD };
enum { PB_AT_SENT = 16 }; // in a track. Here and at PB_AT_TAKEN stand the number of frames and the number of the last one
// The words of a frame's record in a track, which is the file of a producer. PB_RECORD_SMALL has the fence's word (16 bits), flags
// (16 bits) and the size of meta (32 bits).
enum {
    PB_RECORD_NUMBER, PB_RECORD_BLOCK, PB_RECORD_BUFFER, PB_RECORD_BYTES, PB_RECORD_TIME, PB_RECORD_VALUE, PB_RECORD_SMALL,
    PB_RECORD_DESCRIPTION
};

// A tail has three parts: the number of the newest frame, the seat of that frame's producer, and the lowest 10 bits of the roster's
// version.
static inline uint64_t pb_tail(const struct pb_channel *ch) { return PB_LOAD(pb_at(&ch->sequencer, 0)); }
static inline uint64_t pb_tail_number(uint64_t tail) { return tail >> 16; }
static inline uint32_t pb_tail_seat(uint64_t tail) { return (uint32_t)(tail >> 10) & 63; }
static inline uint64_t pb_version(const struct pb_channel *ch) { return PB_LOAD(pb_at(&ch->roster, PB_AT_VERSION)); }
static inline uint64_t pb_state(const struct pb_channel *ch) { return PB_LOAD(pb_at(&ch->roster, PB_AT_STATE)); }
static inline uint64_t pb_abandoned(const struct pb_channel *ch) { return PB_LOAD(pb_at(&ch->roster, PB_AT_ABANDONED)); }
static inline uint64_t pb_slot(const struct pb_channel *ch, uint64_t number) { return number & (ch->slots - 1); }

// Finds the word that says which producer published the frame `number`. The word has the number and the seat of that producer.
static inline pb_word *pb_entry(const struct pb_channel *ch, uint64_t number) {
    return pb_at(&ch->sequencer, PB_AT_ORDER + 8 * pb_slot(ch, number));
}

// pb_claim finds the word that says what has happened to the frame `number` of a queue. The word has the number and a tag: one of these
// values, or PB_CLAIMED plus the seat of the consumer that has taken the frame.
enum { PB_REQUEUED, PB_ACKNOWLEDGED, PB_CLAIMED };
static inline pb_word *pb_claim(const struct pb_channel *ch, uint64_t number) {
    return pb_at(&ch->sequencer, PB_AT_ORDER + 8 * (ch->slots + pb_slot(ch, number)));
}
static inline bool pb_claim_waits(uint64_t claim, uint64_t number) { // whether a published number waits for a consumer
    return claim >> 12 < number || claim == (number << 12 | PB_REQUEUED);
}
static inline bool pb_claim_over(uint64_t claim, uint64_t number) { // whether the number is acknowledged
    return claim >> 12 > number || claim == (number << 12 | PB_ACKNOWLEDGED);
}

// Finds the word that says how often consumers have got the frame `number` of a queue: the number and, in 16 bits, the count. Only the consumer
// with the claim on the frame writes the word.
static inline pb_word *pb_delivery(const struct pb_channel *ch, uint64_t number) {
    return pb_at(&ch->sequencer, PB_AT_ORDER + 8 * (2 * ch->slots + pb_slot(ch, number)));
}

// Whether the slot of a number has a frame of a queue that is not acknowledged.
static inline bool pb_slot_in_use(const struct pb_channel *ch, uint64_t number) {
    uint64_t stands = PB_LOAD(pb_entry(ch, number)) >> 6;
    return stands && !pb_claim_over(PB_LOAD(pb_claim(ch, number)), stands);
}

// Returns a frame number of a queue. A search from this number to `last` finds every frame that is not acknowledged, if the head in shared
// memory is right. A search from pb_oldest_slot goes through every slot.
static inline uint64_t pb_oldest_slot(const struct pb_channel *ch, uint64_t last) { return last >= ch->slots ? last - ch->slots + 1 : 1; }
static inline uint64_t pb_oldest_standing(const struct pb_channel *ch, uint64_t last) {
    uint64_t first = pb_oldest_slot(ch, last), head = PB_LOAD(pb_at(&ch->sequencer, PB_AT_HEAD));
    return head > first && head <= last + 1 ? head : first;
}

#endif
