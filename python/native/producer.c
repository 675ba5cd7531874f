// The work of a producer of a channel: it publishes frames, waits for room, and gets the blocks of its frames back.
#include "shm.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRIES = 64 };
#define PATIENCE (2 * PB_NS_MS)

enum pb_result pb_producer_open(struct pb_producer *p, int roster, int sequencer, int track, uint32_t seat, uint64_t member) {
    memset(p, 0, sizeof *p);
    p->patience = PATIENCE;
    enum pb_result r = pb_channel_open(&p->ch, roster, sequencer, seat, member);
    if (!r) r = pb_file_open(&p->ch, &p->ch.own, track, pb_track_size(p->ch.slots), true, "track");
    if (r) return r;
    if (!(p->described = calloc(p->ch.slots, sizeof *p->described)))
        return pb_complain(&p->ch, PB_NO_MEMORY, "no memory for a producer of %llu slots", (unsigned long long)p->ch.slots);
    static const char magic[8] = "PBTRCK01";
    uint64_t first;
    memcpy(&first, magic, 8);
    PB_STORE(pb_at(&p->ch.own, 8), member);
    PB_STORE(pb_at(&p->ch.own, 0), first);
    return PB_OK;
}

static void drop_cursor(struct pb_producer *p, uint32_t seat) {
    if (p->cursors[seat]) pb_file_close(&p->cursors[seat]->file, p->ch.life);
    free(p->cursors[seat]);
    p->cursors[seat] = NULL;
    p->lives = 0; // `live` may contain the cursor
    p->ch.version = UINT64_MAX;
}

void pb_producer_close(struct pb_producer *p) {
    for (uint32_t seat = 0; seat < PB_CONSUMERS; seat++) drop_cursor(p, seat);
    for (size_t i = 0; i < p->in_flight; i++)
        if (p->flights[i].chunk) pb_drop_arena(p->flights[i].chunk->arena);
    free(p->described);
    free(p->flights);
    free(p->back);
    free(p->fences);
    p->described = NULL;
    p->flights = p->back = NULL;
    p->fences = NULL;
    p->in_flight = p->came_back = p->room = p->fence_room = 0;
    pb_channel_close(&p->ch);
}

enum pb_result pb_add_cursor(struct pb_producer *p, uint32_t seat, uint64_t member, int fd) {
    struct pb_cursor *cursor = calloc(1, sizeof *cursor);
    if (!cursor) return pb_complain(&p->ch, PB_NO_MEMORY, "no memory for a cursor");
    enum pb_result r = pb_file_open(&p->ch, &cursor->file, fd, pb_cursor_size(p->ch.slots), false, "cursor");
    if (r) {
        free(cursor);
        return r;
    }
    drop_cursor(p, seat);
    cursor->member = member;
    p->cursors[seat] = cursor;
    return PB_OK;
}

// Reads the consumers' seats of the roster into `live`. Does not read the seats if the roster has the same version as when this producer
// read them last, or if the channel is open, the version is greater by one, and `tail` still has the version of then. Returns PB_EVICTED
// if this producer's own seat is not active any more, and PB_UNKNOWN if the file of a consumer is missing. The caller loads `state` and
// `tail` before this call.
static enum pb_result look_at_roster(struct pb_producer *p, uint64_t state, uint64_t tail) {
    struct pb_channel *ch = &p->ch;
    uint64_t version = pb_version(ch);
    if (version == ch->version || (!state && version == ch->version + 1 && !((tail ^ ch->version) & 1023))) return PB_OK;
    size_t own = PB_AT_PRODUCERS + PB_SEAT * ch->seat;
    if (PB_LOAD(pb_at32(&ch->roster, own)) != PB_ACTIVE || PB_LOAD(pb_at(&ch->roster, own + PB_SEAT_MEMBER)) != ch->member)
        return PB_EVICTED;
    p->lives = 0;
    ch->version = UINT64_MAX; // until all seats are read
    for (uint32_t seat = 0; seat < PB_CONSUMERS; seat++) {
        size_t at = PB_AT_CONSUMERS + PB_SEAT * seat;
        uint32_t membership = PB_LOAD(pb_at32(&ch->roster, at));
        if (membership != PB_ACTIVE && membership != PB_LEFT) continue;
        uint64_t member = PB_LOAD(pb_at(&ch->roster, at + PB_SEAT_MEMBER));
        struct pb_cursor *cursor = p->cursors[seat];
        if (!member) return pb_odd(ch, "a consumer's seat in the roster has no member");
        if (!cursor || cursor->member != member) {
            ch->unknown_seat = seat;
            ch->unknown_member = member;
            return PB_UNKNOWN;
        }
        cursor->state = membership;
        cursor->policy = PB_LOAD(pb_at32(&ch->roster, at + PB_SEAT_POLICY));
        cursor->timeline = PB_LOAD(pb_at(&ch->roster, at + PB_SEAT_TIMELINE));
        p->live[p->lives++] = cursor;
    }
    ch->version = version;
    p->floor = 0;
    return PB_OK;
}

static bool holds_up(const struct pb_cursor *cursor) {
    return cursor->state == PB_ACTIVE && (cursor->policy == PB_BLOCK || cursor->policy == PB_FAIL);
}

// Returns the smallest floor of the active consumers whose policy is to block or to fail. If `all` is true, returns the smallest floor of
// all active consumers. A consumer's floor is a frame number: the consumer does not use frames with smaller numbers any more, except the
// frames in its holds.
static uint64_t lowest_floor(const struct pb_producer *p, bool all) {
    uint64_t lowest = UINT64_MAX;
    for (size_t i = 0; i < p->lives; i++) {
        if (!holds_up(p->live[i]) && !(all && p->live[i]->state == PB_ACTIVE)) continue;
        uint64_t floor = PB_LOAD(pb_at(&p->live[i]->file, 0));
        if (floor < lowest) lowest = floor;
    }
    return lowest;
}

static enum pb_result room_in_broadcast(struct pb_producer *p, uint64_t number) {
    uint64_t capacity = p->ch.capacity;
    if (number <= capacity || number - capacity < p->floor) return PB_OK;
    p->floor = lowest_floor(p, false);
    if (number - capacity < p->floor) return PB_OK;
    for (size_t i = 0; i < p->lives; i++)
        if (holds_up(p->live[i]) && p->live[i]->policy == PB_FAIL && PB_LOAD(pb_at(&p->live[i]->file, 0)) <= number - capacity)
            return PB_NO_ROOM;
    return PB_NONE;
}

bool pb_behind(const struct pb_producer *p, uint64_t *member, uint32_t *process) {
    uint64_t lowest = UINT64_MAX;
    for (uint32_t seat = 0; seat < PB_CONSUMERS; seat++) {
        const struct pb_cursor *cursor = p->cursors[seat];
        if (p->ch.queue || !cursor || !holds_up(cursor)) continue;
        uint64_t floor = PB_LOAD(pb_at(&cursor->file, 0));
        if (floor >= lowest) continue;
        lowest = floor;
        *member = cursor->member;
        *process = PB_LOAD(pb_at32(&p->ch.roster, PB_AT_CONSUMERS + PB_SEAT * seat + PB_SEAT_PROCESS));
    }
    return lowest < UINT64_MAX;
}

// Returns PB_OK if the queue has room for one more frame. PB_AGAIN: the caller must check again, because this function has dropped a frame
// or made a number void (no frame gets that number), or because another member has changed the queue meanwhile.
static enum pb_result room_in_queue(struct pb_producer *p, uint64_t tail) {
    struct pb_channel *ch = &p->ch;
    uint64_t last = pb_tail_number(tail), capacity = ch->policy == PB_LATEST ? 1 : ch->capacity;
    uint64_t first = pb_oldest_standing(ch, last), waits = 0, oldest = UINT64_MAX, claim = 0;
    bool used = pb_slot_in_use(ch, last + 1);
    if (used || first > last || last + 1 - first >= capacity)
        for (uint64_t number = first; number <= last; number++) {
            uint64_t stands = PB_LOAD(pb_entry(ch, number)) >> 6, found = PB_LOAD(pb_claim(ch, number));
            if (!stands || stands > last || !pb_claim_waits(found, stands)) continue;
            waits++;
            if (stands > oldest) continue;
            oldest = stands;
            claim = found;
        }
    bool full = waits >= capacity;
    if (!full && used) { // the next number becomes void, if any slot is free
        uint64_t slot = 0;
        while (slot < ch->slots && pb_slot_in_use(ch, slot)) slot++;
        if (slot < ch->slots) {
            PB_CAS(pb_at(&ch->sequencer, 0), &tail, (last + 1) << 16 | PB_VOID << 10 | (tail & 1023));
            return PB_AGAIN;
        }
        full = true;
    }
    if (!full) return PB_OK;
    pb_advance_head(ch, tail);
    if (ch->policy == PB_FAIL) return PB_NO_ROOM;
    if (ch->policy == PB_BLOCK || !waits) return PB_NONE;
    if (PB_CAS(pb_claim(ch, oldest), &claim, oldest << 12 | PB_ACKNOWLEDGED)) {
        atomic_fetch_add(pb_at(&ch->sequencer, PB_AT_DROPPED), 1);
        atomic_fetch_add(pb_at(&ch->sequencer, PB_AT_DROPS), 1);
        PB_FULL_BARRIER();
        pb_wake(pb_freed(ch)); // the dropped frame's producer gets its block back
    }
    return PB_AGAIN;
}

static bool others_first(struct pb_producer *p) {
    struct pb_channel *ch = &p->ch;
    uint64_t tickets = PB_LOAD(pb_at(&ch->sequencer, PB_AT_TICKETS));
    if (!p->ticket && tickets == p->calm) return false;
    for (;;) {
        uint64_t lowest = p->ticket ? p->ticket : UINT64_MAX;
        uint64_t mine = lowest;
        for (uint32_t seat = 0; seat < PB_PRODUCERS; seat++) {
            uint64_t ticket = PB_LOAD(pb_at(&ch->sequencer, PB_AT_WAITING + 8 * seat));
            if (!ticket || seat == ch->seat || ticket <= p->passed || ticket >= lowest || ticket > tickets) continue;
            if (PB_LOAD(pb_at32(&ch->roster, PB_AT_PRODUCERS + PB_SEAT * seat)) == PB_ACTIVE) lowest = ticket;
        }
        if (lowest == mine) {
            if (!p->ticket) p->calm = tickets;
            return false;
        }
        int64_t now = pb_now();
        if (p->before != lowest) {
            // Each other producer has one ticket. So a producer that goes on showing new tickets cannot hold this producer up for ever.
            if (p->yielded != lowest && p->yields++ >= PB_PRODUCERS) return false;
            p->yielded = lowest;
            p->before = lowest;
            p->before_until = now + p->patience;
        }
        if (now < p->before_until) return true;
        p->passed = lowest; // the producer with this ticket does not use its turn: it was stopped, or it died
    }
}

static void begin_wait(struct pb_producer *p) {
    p->ticket = atomic_fetch_add(pb_at(&p->ch.sequencer, PB_AT_TICKETS), 1) + 1;
    PB_STORE(pb_at(&p->ch.sequencer, PB_AT_WAITING + 8 * p->ch.seat), p->ticket);
}

void pb_end_wait(struct pb_producer *p) {
    if (!p->ticket) return;
    p->ticket = p->before = 0;
    PB_STORE(pb_at(&p->ch.sequencer, PB_AT_WAITING + 8 * p->ch.seat), 0);
    PB_FULL_BARRIER();
    pb_wake(pb_freed(&p->ch)); // the producer with the next ticket sleeps on this word
}

static void copy_in(pb_word *to, const void *from, size_t size) {
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = 0;
        memcpy(&word, (const char *)from + at, size - at < 8 ? size - at : 8);
        PB_PUT(to + at / 8, word);
    }
}

// Writes a description, and the layout behind it, into a slot of the track.
static void write_description(struct pb_channel *ch, uint64_t slot, const char *description) {
    uint64_t bytes;
    memcpy(&bytes, description + PB_AT_LAYOUT, 8);
    copy_in(pb_at(&ch->own, PB_PAGE + PB_RECORD * ch->slots + PB_DESCRIPTION * slot), description, PB_DESCRIPTION);
    pb_word *layout = pb_at(&ch->own, PB_PAGE + (PB_RECORD + PB_DESCRIPTION + PB_META_SLOT) * ch->slots + PB_LAYOUT * slot);
    // The chunks of a publisher have descriptions of their own, and one layout.
    if (bytes && memcmp((const void *)layout, description + PB_DESCRIPTION, bytes)) copy_in(layout, description + PB_DESCRIPTION, bytes);
}

static void write_record(struct pb_producer *p, const struct pb_publication *what, uint64_t number) {
    struct pb_channel *ch = &p->ch;
    uint64_t slot = pb_slot(ch, number);
    pb_word *record = pb_at(&ch->own, PB_PAGE + PB_RECORD * slot);
    size_t meta = PB_PAGE + (PB_RECORD + PB_DESCRIPTION) * ch->slots + PB_META_SLOT * slot;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    PB_PUT(record, 0);
    atomic_thread_fence(memory_order_release);
    PB_PUT(record + PB_RECORD_BLOCK, what->block);
    PB_PUT(record + PB_RECORD_BUFFER, what->buffer);
    PB_PUT(record + PB_RECORD_BYTES, what->bytes);
    PB_PUT(record + PB_RECORD_TIME, (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec);
    PB_PUT(record + PB_RECORD_VALUE, what->value);
    PB_PUT(record + PB_RECORD_SMALL, what->word | (what->event ? UINT64_C(1) << 16 : 0) | (uint64_t)what->meta_bytes << 32);
    PB_PUT(record + PB_RECORD_DESCRIPTION, what->description_id);
    if (p->described[slot] != what->description_id) {
        write_description(ch, slot, what->description);
        p->described[slot] = what->description_id;
    }
    if (what->event) copy_in(pb_at(&ch->own, meta), what->event, PB_EVENT);
    copy_in(pb_at(&ch->own, meta + (what->event ? PB_EVENT : 0)), what->meta, what->meta_bytes);
    PB_STORE(record, number);
}

static bool make_room(struct pb_producer *p) {
    if (p->in_flight < p->room) return true;
    size_t room = p->room ? 2 * p->room : 64;
    struct pb_flight *flights = realloc(p->flights, room * sizeof *flights);
    if (flights) p->flights = flights;
    struct pb_flight *back = flights ? realloc(p->back, room * sizeof *back) : NULL;
    if (back) p->back = back, p->room = room;
    return back;
}

enum pb_result pb_publish(struct pb_producer *p, const struct pb_publication *what, bool waits, uint64_t *number) {
    struct pb_channel *ch = &p->ch;
    if (!make_room(p)) return pb_complain(ch, PB_NO_MEMORY, "no memory for %zu frames in flight", p->in_flight);
    for (uint64_t tries = 0; tries < TRIES + 2 * ch->slots; tries++) {
        uint64_t tail = pb_tail(ch), n = pb_tail_number(tail) + 1;
        uint64_t state = pb_state(ch);
        if (state) return state == PB_DESTROYED ? PB_GONE : PB_END;
        if (n > PB_NUMBER_MAX) return pb_odd(ch, "the greatest frame number is reached");
        enum pb_result r = look_at_roster(p, state, tail);
        if (r) return r;
        pb_help(ch, tail);
        r = ch->queue ? room_in_queue(p, tail) : room_in_broadcast(p, n);
        if (r == PB_AGAIN) continue;
        if (r == PB_NONE) p->before = 0;
        if (r == PB_OK && others_first(p)) r = PB_NONE;
        if (r == PB_NONE && waits && !p->ticket) begin_wait(p);
        if (r) {
            ch->odd_since = 0;
            return r;
        }
        write_record(p, what, n);
        if (!PB_CAS(pb_at(&ch->sequencer, 0), &tail, n << 16 | (uint64_t)ch->seat << 10 | (tail & 1023))) continue;
        pb_help(ch, n << 16 | (uint64_t)ch->seat << 10);
        PB_FULL_BARRIER();
        pb_wake(pb_published(ch));
        if (!ch->queue) pb_wake(pb_freed(ch)); // another producer may wait for the block of the frame that left the channel
        p->flights[p->in_flight++] = (struct pb_flight){.number = n, .buffer = what->buffer, .chunk = what->chunk};
        if (what->chunk) {
            what->chunk->arena->sent++;
            what->chunk->arena->users++;
        }
        ch->odd_since = 0;
        p->published++;
        PB_STORE(pb_at(&ch->own, PB_AT_SENT), p->published);
        PB_STORE(pb_at(&ch->own, PB_AT_SENT + 8), n);
        p->yields = 0;
        p->bytes += what->bytes;
        *number = n;
        return PB_OK;
    }
    return pb_odd(ch, "its tail moves without end");
}

// Memory that comes back

bool pb_add_fence(struct pb_chunk *chunk, const struct pb_fence *fence) {
    if (chunk->fence_count == chunk->fence_room) {
        size_t room = chunk->fence_room ? 2 * chunk->fence_room : 4;
        struct pb_fence *fences = realloc(chunk->fences, room * sizeof *fences);
        if (!fences) return false;
        chunk->fences = fences;
        chunk->fence_room = room;
    }
    chunk->fences[chunk->fence_count++] = *fence;
    return true;
}

void pb_free_chunk(struct pb_chunks *chunks, struct pb_chunk *chunk) {
    chunk->next = NULL;
    if (chunks->first) chunks->last->next = chunk;
    else chunks->first = chunk;
    chunks->last = chunk;
}

void pb_drop_arena(struct pb_arena *arena) {
    if (--arena->users) return;
    for (size_t i = 0; i < arena->count; i++) free(arena->chunks[i].fences);
    free(arena);
}

// Gives the chunk of a frame that came back to its publisher. Returns false if there is not enough memory for the fences of the readers.
static bool give_back(const struct pb_producer *p, const struct pb_flight *flight) {
    struct pb_chunk *chunk = flight->chunk;
    struct pb_arena *arena = chunk->arena;
    size_t before = chunk->fence_count;
    for (size_t i = 0; i < flight->fences; i++)
        if (!pb_add_fence(chunk, &p->fences[flight->first + i])) {
            chunk->fence_count = before;
            return false;
        }
    arena->sent--;
    if (arena->owner) pb_free_chunk(arena->owner, chunk);
    pb_drop_arena(arena);
    return true;
}

static struct pb_flight *find_flight(struct pb_producer *p, uint64_t number) {
    size_t low = 0, high = p->in_flight;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (p->flights[middle].number < number) low = middle + 1;
        else high = middle;
    }
    return low < p->in_flight && p->flights[low].number == number ? &p->flights[low] : NULL;
}

// Sets `back` to true for each frame in flight that the channel does not keep any more, and to false for the others. Returns how many are
// true. A consumer may still have such a frame in hand: the caller calls except_held next. In a broadcast, this function also sets `floor`.
static size_t find_passed(struct pb_producer *p, uint64_t tail, uint64_t state) {
    struct pb_channel *ch = &p->ch;
    uint64_t last = pb_tail_number(tail), end = UINT64_MAX;
    if (!ch->queue && state != PB_DESTROYED) {
        bool closed = state == PB_CLOSED;
        end = p->floor = lowest_floor(p, closed);
        uint64_t kept = closed ? UINT64_MAX : last >= ch->capacity ? last - ch->capacity + 1 : 0;
        if (kept < end) end = kept;
        if (closed) p->floor = 0;
    }
    size_t passed = 0;
    for (size_t i = 0; i < p->in_flight; i++) {
        struct pb_flight *flight = &p->flights[i];
        flight->back = flight->number < end && (!ch->queue || state == PB_DESTROYED ||
                                                pb_claim_over(PB_LOAD(pb_claim(ch, flight->number)), flight->number));
        passed += flight->back;
    }
    return passed;
}

// Sets `back` to false for frames that consumers still have in hand. A consumer stores a hold for a frame before it moves its floor past
// that frame. So this function reads all floors before it reads the holds: if it finds a floor past the frame, it also finds the hold.
static void except_held(struct pb_producer *p, bool destroyed) {
    for (size_t k = 0; k < p->lives && !p->ch.queue; k++) {
        const struct pb_cursor *cursor = p->live[k];
        if (cursor->policy > PB_FAIL || !(cursor->state == PB_LEFT || destroyed)) continue;
        uint64_t floor = PB_LOAD(pb_at(&cursor->file, 0)), next = PB_LOAD(pb_at(&cursor->file, 8));
        for (size_t i = 0; i < p->in_flight; i++)
            if (p->flights[i].number >= floor && p->flights[i].number < next) p->flights[i].back = false;
    }
    PB_FULL_BARRIER();
    for (size_t k = 0; k < p->lives; k++) {
        const struct pb_file *file = &p->live[k]->file;
        uint64_t used = PB_LOAD(pb_at(file, PB_AT_USED));
        for (uint64_t i = 0; i < used && i < PB_HOLDS; i++) {
            uint64_t number = PB_LOAD(pb_at(file, PB_AT_HOLDS + 16 * i));
            struct pb_flight *flight = number ? find_flight(p, number) : NULL;
            if (flight) flight->back = false;
        }
    }
}

// Reads the consumer's entry for the frame `number`. If the entry has a fence, adds the fence to `p->fences`: when the fence is reached,
// the consumer does not use the frame any more. Returns false if the consumer is writing the entry at this time. Also returns false if
// there is not enough memory, and then sets `*memory` to false.
static bool add_fence(struct pb_producer *p, const struct pb_cursor *cursor, uint64_t number, bool *memory) {
    pb_word *done = pb_at(&cursor->file, PB_AT_DONE + 32 * pb_slot(&p->ch, number));
    uint64_t before = PB_LOAD(done), value = PB_PEEK(done + 1), word = PB_PEEK(done + 2);
    atomic_thread_fence(memory_order_acquire);
    if (before != PB_PEEK(done)) return false;
    // Use the fence also if the entry's number is larger than `number`: the consumer has then overwritten the entry of frame `number`. It
    // overwrites an entry only if the old fence is reached, or cannot be reached later than the new fence. An entry that was never written
    // has only zeros.
    if (!before && (value || word)) return false;
    if (before < number || !value || value > PB_VALUE_MAX || word >= PB_WORDS) return true;
    if (p->fence_count == p->fence_room) {
        size_t room = p->fence_room ? 2 * p->fence_room : 64;
        struct pb_fence *fences = realloc(p->fences, room * sizeof *fences);
        if (!fences) return *memory = false;
        p->fences = fences;
        p->fence_room = room;
    }
    p->fences[p->fence_count++] = (struct pb_fence){cursor->timeline, word, value};
    return true;
}

enum pb_result pb_reclaim(struct pb_producer *p, bool buffers) {
    struct pb_channel *ch = &p->ch;
    p->came_back = p->fence_count = p->due = 0;
    if (!p->in_flight) return PB_OK;
    uint64_t state = pb_state(ch), tail = pb_tail(ch);
    enum pb_result r = look_at_roster(p, state, tail);
    if (r) return r;
    ch->odd_since = 0;
    if (!find_passed(p, tail, state)) return PB_NONE;
    PB_FULL_BARRIER();
    if (ch->queue) { // a consumer that joined meanwhile may have acknowledged a frame and still have the frame in hand
        tail = pb_tail(ch);
        if ((r = look_at_roster(p, pb_state(ch), tail))) return r;
    }
    except_held(p, state == PB_DESTROYED);
    size_t stay = 0, before = p->in_flight;
    bool memory = true;
    for (size_t i = 0; i < before; i++) {
        struct pb_flight flight = p->flights[i];
        flight.first = p->fence_count;
        p->due += flight.back && !buffers && !flight.chunk;
        flight.back = flight.back && (buffers || flight.chunk);
        for (size_t k = 0; k < p->lives && flight.back; k++)
            if (p->live[k]->timeline) flight.back = add_fence(p, p->live[k], flight.number, &memory);
        flight.fences = p->fence_count - flight.first;
        if (flight.back && flight.chunk && !give_back(p, &flight)) flight.back = memory = false;
        if (!flight.back || flight.chunk) p->fence_count = flight.first;
        if (!flight.back) p->flights[stay++] = flight;
        else if (!flight.chunk) p->back[p->came_back++] = flight;
    }
    p->in_flight = stay;
    p->returned += before - stay;
    if (stay < before) return PB_OK;
    return memory ? PB_NONE : pb_complain(ch, PB_NO_MEMORY, "no memory for the fences of frames");
}
