// The work of a consumer of a channel: it takes frames, checks their records, and releases them.
#include "shm.h"

#include <stdlib.h>
#include <string.h>

enum { TRIES = 64 };

static pb_word *own(const struct pb_consumer *c, size_t offset) { return pb_at(&c->ch.own, offset); }
static bool drops(const struct pb_consumer *c) { return c->policy > PB_FAIL; }

enum pb_result pb_consumer_open(struct pb_consumer *c, int roster, int sequencer, int cursor, uint32_t seat, uint64_t member) {
    memset(c, 0, sizeof *c);
    enum pb_result r = pb_channel_open(&c->ch, roster, sequencer, seat, member);
    if (!r) r = pb_file_open(&c->ch, &c->ch.own, cursor, pb_cursor_size(c->ch.slots), true, "cursor");
    if (!r && !(c->layout = malloc(PB_LAYOUT))) r = pb_complain(&c->ch, PB_NO_MEMORY, "no memory for the layouts of frames");
    return r;
}

void pb_consumer_close(struct pb_consumer *c) {
    for (uint32_t seat = 0; seat < PB_PRODUCERS; seat++) pb_file_close(&c->tracks[seat].file, c->ch.life);
    pb_channel_close(&c->ch);
    free(c->layout);
    c->layout = NULL;
}

enum pb_result pb_add_track(struct pb_consumer *c, uint32_t seat, uint64_t member, int fd) {
    struct pb_track track = {.member = member};
    // The seat gets the producer also if its file cannot be mapped: then the frames of this producer fail, and no other frames.
    enum pb_result r = pb_file_open(&c->ch, &track.file, fd, pb_track_size(c->ch.slots), false, "track");
    pb_file_close(&c->tracks[seat].file, c->ch.life);
    c->tracks[seat] = track;
    return r;
}

// The consumer keeps Python objects for frames in a hash table. The key is the block, the producer and the description's id, because an
// arena is one block with a description for each of its chunks. At most half of the table's places are used.

static size_t kept_place(const struct pb_consumer *c, uint64_t block, uint64_t producer, uint64_t description_id) {
    uint64_t hash = (block * UINT64_C(0x9E3779B97F4A7C15) + description_id) * UINT64_C(0x9E3779B97F4A7C15);
    for (size_t at = (size_t)(hash >> 32);; at++) {
        const struct pb_kept *kept = &c->kept[at &= c->kept_room - 1];
        if (!kept->object || (kept->block == block && kept->producer == producer && kept->description_id == description_id)) return at;
    }
}

static struct pb_kept *kept_like(const struct pb_consumer *c, const struct pb_kept *what) {
    return &c->kept[kept_place(c, what->block, what->producer, what->description_id)];
}

// Moves all entries, except those of `block`, into a table of `room` places. Returns the old table, with the entries of `block` only. If
// there is not enough memory, changes nothing and returns NULL.
static struct pb_kept *move_kept(struct pb_consumer *c, size_t room, uint64_t block) {
    struct pb_kept *old = c->kept, *new = calloc(room, sizeof *new);
    size_t old_room = c->kept_room;
    if (!new) return NULL;
    c->kept = new;
    c->kept_room = room;
    for (size_t i = 0; i < old_room; i++) {
        if (!old[i].object || old[i].block == block) continue;
        *kept_like(c, &old[i]) = old[i];
        old[i].object = NULL;
    }
    return old;
}

bool pb_keep(struct pb_consumer *c, const struct pb_kept *what, void **before) {
    if (c->kept_count == PB_MOST_KEPT) return false;
    if (2 * (c->kept_count + 1) > c->kept_room) {
        size_t room = c->kept_room ? 2 * c->kept_room : 64;
        struct pb_kept *old = move_kept(c, room, 0);
        if (c->kept_room != room) return false;
        free(old);
    }
    struct pb_kept *place = kept_like(c, what);
    *before = place->object;
    c->kept_count += !place->object;
    *place = *what;
    return true;
}

// Removes the entries of a block, or all entries if `block` is 0. Returns a table of `*count` places that has the removed entries.
struct pb_kept *pb_forget(struct pb_consumer *c, uint64_t block, size_t *count) {
    size_t gone = 0;
    for (size_t i = 0; i < c->kept_room && block; i++) gone += c->kept[i].object && c->kept[i].block == block;
    *count = c->kept_room;
    struct pb_kept *old = gone ? move_kept(c, c->kept_room, block) : NULL;
    if (block && (old || !gone)) {
        c->kept_count -= gone;
        if (!gone) *count = 0;
        return old;
    }
    old = c->kept; // all entries; also without the memory for a new table, because nobody needs an entry
    c->kept = NULL;
    c->kept_room = c->kept_count = 0;
    return old;
}

// Frames in hand

static int free_hold(const struct pb_consumer *c) {
    for (int i = 0; i < PB_HOLDS / 64; i++)
        if (~c->busy[i]) return 64 * i + __builtin_ctzll(~c->busy[i]);
    return -1;
}

static int set_hold(struct pb_consumer *c, uint64_t number) {
    int hold = free_hold(c);
    c->busy[hold / 64] |= UINT64_C(1) << hold % 64;
    if (c->used <= (uint64_t)hold) PB_STORE(own(c, PB_AT_USED), c->used = (uint64_t)hold + 1);
    PB_STORE(own(c, PB_AT_HOLDS + 16 * (size_t)hold), number);
    return hold;
}

static void clear_hold(struct pb_consumer *c, int hold) {
    if (hold < 0) return;
    PB_STORE(own(c, PB_AT_HOLDS + 16 * (size_t)hold), 0);
    PB_STORE(own(c, PB_AT_HOLDS + 16 * (size_t)hold + 8), 0);
    c->busy[hold / 64] &= ~(UINT64_C(1) << hold % 64);
}

static void wake_producers(struct pb_consumer *c) {
    PB_FULL_BARRIER();
    pb_wake(pb_freed(&c->ch));
}

static void move_floor(struct pb_consumer *c) {
    if (c->ch.queue) return;
    uint64_t floor = c->next;
    for (size_t i = 0; i < c->in_hand; i++)
        if (c->hands[i].hold < 0) { // a hold keeps its frame, even if the floor moves past the frame
            floor = c->hands[i].number;
            break;
        }
    if (floor <= c->floor) return;
    PB_STORE(own(c, 0), c->floor = floor);
}

static void add_hand(struct pb_consumer *c, uint64_t number, uint64_t block, int hold) {
    size_t at = c->in_hand++;
    for (; at && c->hands[at - 1].number > number; at--) c->hands[at] = c->hands[at - 1];
    c->hands[at] = (struct pb_hand){.number = number, .block = block, .hold = hold};
    if (hold >= 0) PB_STORE(own(c, PB_AT_HOLDS + 16 * (size_t)hold + 8), block);
}

// Finds the entry of a frame that this consumer has in hand. If the consumer has requeued the frame and taken it again, the frame has two
// entries: the function then returns the entry whose field `settled` equals the argument `settled`.
static struct pb_hand *find_hand(struct pb_consumer *c, uint64_t number, bool settled) {
    struct pb_hand *found = NULL;
    for (size_t i = 0; i < c->in_hand && c->hands[i].number <= number; i++)
        if (c->hands[i].number == number && (!found || c->hands[i].settled == settled)) found = &c->hands[i];
    return found;
}

// Stores the number and the block of a frame in a hold in shared memory. The hold tells producers that this consumer uses the frame, so
// this consumer's floor (the smallest number that it may use without a hold) can then become greater than the frame's number.
static void hold_hand(struct pb_consumer *c, struct pb_hand *hand) {
    if (hand->hold >= 0) return;
    hand->hold = set_hold(c, hand->number);
    PB_STORE(own(c, PB_AT_HOLDS + 16 * (size_t)hand->hold + 8), hand->block);
}

// The roster

// Returns PB_OK if this member takes part in the channel. A caller that is about to use a frame first stores the frame's number in shared
// memory, then runs a full barrier, and then calls this function.
static enum pb_result takes_part(const struct pb_channel *ch) {
    size_t at = PB_AT_CONSUMERS + PB_SEAT * ch->seat;
    if (PB_LOAD(pb_at32(&ch->roster, at)) != PB_ACTIVE || PB_LOAD(pb_at(&ch->roster, at + PB_SEAT_MEMBER)) != ch->member)
        return PB_EVICTED;
    return pb_state(ch) == PB_DESTROYED ? PB_GONE : PB_OK;
}

static enum pb_result look_at_roster(struct pb_consumer *c) {
    struct pb_channel *ch = &c->ch;
    enum pb_result r = takes_part(ch);
    uint64_t version = pb_version(ch);
    if (r || version == ch->version) return r;
    c->policy = PB_LOAD(pb_at32(&ch->roster, PB_AT_CONSUMERS + PB_SEAT * ch->seat + PB_SEAT_POLICY));
    if (c->policy > PB_LATEST && !ch->queue) return pb_odd(ch, "the roster has an unknown policy");
    for (uint32_t seat = 0; seat < PB_PRODUCERS; seat++) {
        size_t at = PB_AT_PRODUCERS + PB_SEAT * seat;
        uint32_t state = PB_LOAD(pb_at32(&ch->roster, at));
        c->producers[seat] = state == PB_ACTIVE || state == PB_LEFT ? PB_LOAD(pb_at(&ch->roster, at + PB_SEAT_MEMBER)) : 0;
        c->timelines[seat] = PB_LOAD(pb_at(&ch->roster, at + PB_SEAT_TIMELINE));
    }
    ch->version = version;
    return PB_OK;
}

enum pb_result pb_begin(struct pb_consumer *c) {
    struct pb_channel *ch = &c->ch;
    ch->version = UINT64_MAX;
    enum pb_result r = look_at_roster(c);
    if (r) return r;
    if (!ch->queue && !c->begun) {
        uint64_t start = PB_LOAD(pb_at(&ch->roster, PB_AT_CONSUMERS + PB_SEAT * ch->seat + PB_SEAT_START));
        if (!start || start > PB_NUMBER_MAX)
            return pb_complain(ch, PB_PROTOCOL, "the roster lets this member begin with frame %llu, which is out of range",
                               (unsigned long long)start);
        PB_STORE(own(c, 8), c->next = start);
        c->floor = start;
    }
    c->begun = true;
    return PB_OK;
}

// Records

static bool utf8(const unsigned char *at, size_t size) {
    for (size_t i = 0; i < size;) {
        unsigned char first = at[i++];
        if (first < 0x80) continue;
        unsigned more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
        if (first < 0xC2 || first > 0xF4 || size - i < more) return false;
        uint32_t point = first & (0x3Fu >> more);
        for (unsigned k = 0; k < more; k++, i++) {
            if ((at[i] & 0xC0) != 0x80) return false;
            point = point << 6 | (at[i] & 0x3F);
        }
        if ((more == 2 && (point < 0x800 || (point >= 0xD800 && point < 0xE000))) ||
            (more == 3 && (point < 0x10000 || point > 0x10FFFF)))
            return false;
    }
    return true;
}

// The meta of a frame, in MessagePack. `at` is the next byte, `end` is behind the last.
struct meta {
    const unsigned char *at, *end;
};

enum meta_kind { META_WRONG, META_PLAIN, META_TEXT, META_BYTES, META_LIST, META_MAP };

// Says what begins with the byte `first`. `*head` is how many bytes the value begins with.
static enum meta_kind meta_kind(unsigned char first, size_t *head) {
    static const struct {
        unsigned char from, to, kind, bytes; // `bytes` follow the byte `from`, and each next byte has twice as many
    } kinds[] = {{0xC4, 0xC6, META_BYTES, 1}, {0xCA, 0xCB, META_PLAIN, 4}, {0xCC, 0xCF, META_PLAIN, 1}, {0xD0, 0xD3, META_PLAIN, 1},
                 {0xD9, 0xDB, META_TEXT, 1},  {0xDC, 0xDD, META_LIST, 2},  {0xDE, 0xDF, META_MAP, 2}};
    *head = 1;
    if (first < 0x80 || first >= 0xE0 || first == 0xC0 || first == 0xC2 || first == 0xC3) return META_PLAIN;
    if (first < 0x90) return META_MAP;
    if (first < 0xA0) return META_LIST;
    if (first < 0xC0) return META_TEXT;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (first >= kinds[i].from && first <= kinds[i].to) {
            *head = 1 + ((size_t)kinds[i].bytes << (first - kinds[i].from));
            return (enum meta_kind)kinds[i].kind;
        }
    return META_WRONG;
}

// Goes behind the next value, which is in maps and lists that are `depth` deep. Returns false if meta may not have it.
static bool check_value(struct meta *m, unsigned depth) {
    size_t head;
    if (m->at == m->end) return false;
    unsigned char first = *m->at;
    enum meta_kind kind = meta_kind(first, &head);
    if (kind == META_WRONG || (size_t)(m->end - m->at) < head) return false;
    uint64_t n = 0;
    for (size_t i = 1; i < head; i++) n = n << 8 | m->at[i];
    m->at += head;
    if (kind == META_PLAIN) return true;
    if (head == 1) n = first & (kind == META_TEXT ? 31 : 15);
    if (n > (size_t)(m->end - m->at)) return false; // every element has at least one byte
    if (kind == META_TEXT || kind == META_BYTES) {
        m->at += n;
        return kind == META_BYTES || utf8(m->at - n, n);
    }
    if (depth == PB_META_DEPTH) return false;
    const unsigned char *key = NULL;
    size_t length = 0;
    for (; n; n--) {
        if (kind == META_MAP) {
            const unsigned char *last = key;
            size_t before = length;
            if (m->at == m->end || meta_kind(*m->at, &head) != META_TEXT || (size_t)(m->end - m->at) < head) return false;
            key = m->at + head;
            if (!check_value(m, depth)) return false;
            length = (size_t)(m->at - key);
            int order = last ? memcmp(last, key, before < length ? before : length) : -1;
            if (order > 0 || (!order && before >= length)) return false; // keys ascend
        }
        if (!check_value(m, depth + 1)) return false;
    }
    return true;
}

bool pb_check_meta(const void *bytes, size_t size) {
    struct meta m = {bytes, (const unsigned char *)bytes + size};
    size_t head;
    return !size || (meta_kind(*m.at, &head) == META_MAP && check_value(&m, 0) && m.at == m.end);
}

bool pb_check_description(const void *bytes, struct pb_description *to) {
    const unsigned char *from = bytes;
    uint16_t ndim, strided;
    memcpy(&to->offset, from, 8);
    memcpy(&ndim, from + 8, 2);
    memcpy(&strided, from + 10, 2);
    memcpy(to->dtype, from + 16, 16);
    to->dtype[16] = 0;
    memcpy(to->shape, from + 32, sizeof to->shape);
    memcpy(to->strides, from + 288, sizeof to->strides);
    memcpy(&to->base, from + PB_AT_BASE, 8);
    memcpy(&to->layout_bytes, from + PB_AT_LAYOUT, 8);
    if (ndim > PB_NDIM || strided > 1 || to->offset > INT64_MAX || to->base > INT64_MAX || to->layout_bytes > PB_LAYOUT) return false;
    to->ndim = ndim;
    to->strided = strided;
    for (unsigned i = 0; i < ndim; i++)
        if (to->shape[i] > INT64_MAX) return false;
    size_t length = strlen(to->dtype);
    if (!length) return false;
    for (size_t i = 0; i < sizeof to->dtype; i++)
        if (i < length ? to->dtype[i] <= ' ' || to->dtype[i] > '~' : to->dtype[i]) return false;
    return true;
}

static void copy_out(uint64_t *to, const pb_word *from, size_t size) {
    for (size_t i = 0; i < (size + 7) / 8; i++) to[i] = PB_PEEK(from + i);
}

// Reads the description in a slot of a track, and its layout. The producer may write both meanwhile.
static void read_description(struct pb_consumer *c, const struct pb_file *track, uint64_t slot) {
    const struct pb_channel *ch = &c->ch;
    copy_out(c->description, pb_at(track, PB_PAGE + PB_RECORD * ch->slots + PB_DESCRIPTION * slot), PB_DESCRIPTION);
    uint64_t bytes = c->description[PB_AT_LAYOUT / 8];
    if (bytes > PB_LAYOUT) return; // pb_check_description refuses it
    copy_out(c->layout, pb_at(track, PB_PAGE + (PB_RECORD + PB_DESCRIPTION + PB_META_SLOT) * ch->slots + PB_LAYOUT * slot), bytes);
}

// Reads the record, which `store` of internal/shmchannel/track.go writes, too, and the meta of the frame `frame->number`. Reads the frame's description too, unless the
// consumer keeps a Python object from an earlier frame with this description in the same block. PB_AGAIN: the record has the number of another frame.
static enum pb_result read_record(struct pb_consumer *c, uint32_t seat, struct pb_frame *frame) {
    const struct pb_channel *ch = &c->ch;
    const struct pb_file *track = &c->tracks[seat].file;
    uint64_t slot = pb_slot(ch, frame->number);
    if (!track->base) return PB_FAILED;
    pb_word *record = pb_at(track, PB_PAGE + PB_RECORD * slot);
    if (PB_LOAD(record) != frame->number) return PB_AGAIN;
    frame->block = PB_PEEK(record + PB_RECORD_BLOCK);
    frame->buffer = PB_PEEK(record + PB_RECORD_BUFFER);
    frame->bytes = PB_PEEK(record + PB_RECORD_BYTES);
    frame->time = PB_PEEK(record + PB_RECORD_TIME);
    frame->value = PB_PEEK(record + PB_RECORD_VALUE);
    uint64_t small = PB_PEEK(record + PB_RECORD_SMALL);
    frame->description_id = PB_PEEK(record + PB_RECORD_DESCRIPTION);
    frame->word = small & 0xFFFF;
    frame->event = small >> 16 & 1;
    frame->meta_bytes = (uint32_t)(small >> 32);
    frame->producer = c->tracks[seat].member;
    frame->timeline = c->timelines[seat];
    frame->kept = NULL;
    size_t meta = frame->meta_bytes + (frame->event ? PB_EVENT : 0);
    bool sound = !(small >> 17 & 0x7FFF) && frame->meta_bytes <= PB_META && frame->word < PB_WORDS && frame->value <= PB_VALUE_MAX &&
                 (frame->timeline || !frame->value) && frame->block && frame->block <= INT64_MAX && frame->buffer <= INT64_MAX &&
                 frame->bytes <= INT64_MAX && frame->time <= INT64_MAX;
    if (sound && meta) copy_out(c->meta, pb_at(track, PB_PAGE + (PB_RECORD + PB_DESCRIPTION) * ch->slots + PB_META_SLOT * slot), meta);
    const struct pb_kept *kept =
        c->kept_count ? &c->kept[kept_place(c, frame->block, frame->producer, frame->description_id)] : NULL;
    if (kept && kept->object) {
        frame->kept = kept->object;
        frame->base = kept->base;
    } else read_description(c, track, slot);
    atomic_thread_fence(memory_order_acquire);
    if (PB_PEEK(record) != frame->number) return PB_AGAIN;
    struct pb_description checked;
    if (!sound || !pb_check_meta((const char *)c->meta + (frame->event ? PB_EVENT : 0), frame->meta_bytes)) return PB_FAILED;
    if (frame->kept) return PB_OK;
    if (!pb_check_description(c->description, &checked)) return PB_FAILED;
    frame->base = checked.base;
    return PB_OK;
}

// Finds the track of the producer in a seat. PB_FAILED: the seat has no producer.
static enum pb_result find_track(struct pb_consumer *c, uint32_t seat) {
    if (seat == PB_VOID || !c->producers[seat]) return PB_FAILED;
    if (c->tracks[seat].member == c->producers[seat]) return PB_OK;
    c->ch.unknown_seat = seat;
    c->ch.unknown_member = c->producers[seat];
    return PB_UNKNOWN;
}

// Taking

// Returns the result for a consumer that has taken every frame up to `last`. The service stores when the last producer left after that
// producer's last frame. So this function first loads this time, and then the tail.
static enum pb_result no_frame(const struct pb_consumer *c, uint64_t last) {
    const struct pb_channel *ch = &c->ch;
    return c->needs_producers && pb_abandoned(ch) && pb_tail_number(pb_tail(ch)) == last ? PB_ABANDONED : PB_NONE;
}

static enum pb_result take_from_broadcast(struct pb_consumer *c, struct pb_frame *frame) {
    struct pb_channel *ch = &c->ch;
    // Use the tail that this consumer loaded last, if producers never drop frames of this consumer, and if this consumer has not taken the
    // newest frame of that tail yet. Otherwise load the tail again.
    uint64_t tail = !drops(c) && pb_tail_number(ch->seen_tail) >= c->next ? ch->seen_tail : pb_tail(ch);
    uint64_t last = pb_tail_number(tail), oldest = last >= ch->capacity ? last - ch->capacity + 1 : 1;
    ch->seen_tail = tail;
    enum pb_result r = look_at_roster(c);
    if (r) return r;
    if (last < c->next) {
        if (last + 1 < c->next) return pb_odd(ch, "frames that were taken are not published");
        if (pb_state(ch) != PB_CLOSED) return no_frame(c, last);
        return c->next > PB_LOAD(pb_at(&ch->roster, PB_AT_END)) ? PB_END : pb_odd(ch, "the channel ends after its last frame");
    }
    if (c->in_hand == PB_HOLDS) return PB_HANDS;
    uint64_t number = c->policy == PB_LATEST ? last : c->next > oldest ? c->next : oldest;
    int hold = -1;
    if (drops(c)) {
        hold = set_hold(c, number);
        PB_FULL_BARRIER();
        tail = pb_tail(ch);
        if ((r = takes_part(ch)) || number + ch->capacity <= pb_tail_number(tail)) {
            clear_hold(c, hold);
            wake_producers(c);
            return r ? r : PB_AGAIN;
        }
    }
    uint64_t entry = PB_LOAD(pb_entry(ch, number));
    uint32_t seat = entry >> 6 == number ? entry & 63 : pb_tail_seat(tail);
    bool known = entry >> 6 == number || (entry >> 6 < number && pb_tail_number(tail) == number);
    frame->number = number;
    r = known ? find_track(c, seat) : PB_AGAIN;
    if (!r) r = read_record(c, seat, frame);
    if (r == PB_UNKNOWN || r == PB_AGAIN) {
        clear_hold(c, hold);
        if (hold >= 0) wake_producers(c);
        ch->seen_tail = 0;
        // Has a producer dropped the frame since this function loaded the tail?
        if (r == PB_UNKNOWN || number + ch->capacity <= pb_tail_number(pb_tail(ch))) return r;
        if (!known) return pb_odd(ch, "a frame has no producer");
        r = PB_FAILED;
        hold = -1;
    }
    uint64_t missed = number - c->next;
    PB_STORE(own(c, 8), c->next = number + 1);
    if (missed) {
        c->missed += missed;
        PB_STORE(own(c, PB_AT_MISSED), c->all_missed += missed);
    }
    if (!r && !drops(c)) {
        PB_FULL_BARRIER();
        if ((r = takes_part(ch))) return r;
    }
    if (r) {
        clear_hold(c, hold);
        c->failed = number;
    } else {
        add_hand(c, number, frame->block, hold);
        frame->missed = c->missed;
        frame->delivery = 1;
        c->missed = 0;
    }
    uint64_t floor = c->floor;
    move_floor(c);
    if (r || floor != c->floor) wake_producers(c);
    return r;
}

struct standing {
    uint64_t number, entry, claim; // number: UINT64_MAX if no frame waits
};

// Finds a frame of a queue that waits. Goes through the slots of the numbers from `first` to `last`. If `every` is true, finds the oldest of
// these frames, else the first.
static struct standing find_waiting(const struct pb_channel *ch, uint64_t first, uint64_t last, bool every) {
    struct standing found = {.number = UINT64_MAX};
    for (uint64_t number = first; number <= last && (every || found.number > last); number++) {
        uint64_t e = PB_LOAD(pb_entry(ch, number)), k = PB_LOAD(pb_claim(ch, number));
        if (!(e >> 6) || e >> 6 > last || e >> 6 >= found.number || !pb_claim_waits(k, e >> 6)) continue;
        found = (struct standing){e >> 6, e, k};
    }
    return found;
}

// Whether this call must read every slot, because the head may be wrong: any member can write it. Then frames below the head wait. If no
// other frame waits, the consumer finds them after 100 ms, and else with one of its next 256 frames. A consumer that would find the end of the
// channel checks always.
static bool checks_head(struct pb_consumer *c, bool found) {
    if (found) return c->taken % 256 == 255;
    int64_t now = pb_now();
    if (pb_state(&c->ch) != PB_CLOSED && now - c->checked < PB_SLICE) return false;
    c->checked = now;
    return true;
}

static bool all_done(const struct pb_channel *ch) {
    for (uint64_t slot = 0; slot < ch->slots; slot++)
        if (pb_slot_in_use(ch, slot)) return false;
    return true;
}

static enum pb_result take_from_queue(struct pb_consumer *c, struct pb_frame *frame) {
    struct pb_channel *ch = &c->ch;
    uint64_t tail = pb_tail(ch), last = pb_tail_number(tail);
    ch->seen_tail = tail;
    enum pb_result r = look_at_roster(c);
    if (r) return r;
    if (c->in_hand == PB_HOLDS) return PB_HANDS;
    pb_help(ch, tail);
    uint64_t first = pb_oldest_slot(ch, last), number = pb_oldest_standing(ch, last);
    // `number` is the number at which the search begins. If the head in shared memory is less than `number`, the loop checks every entry,
    // because any entry may have the oldest waiting frame. Otherwise the loop stops at the first waiting frame, which is the
    // oldest.
    struct standing standing = find_waiting(ch, number, last, PB_LOAD(pb_at(&ch->sequencer, PB_AT_HEAD)) < number);
    if (number > first && checks_head(c, standing.number <= last)) standing = find_waiting(ch, first, last, true);
    uint64_t found = standing.number, claim = standing.claim;
    if (found > last) {
        enum pb_result none = pb_state(ch) == PB_CLOSED ? PB_END : no_frame(c, last);
        if (none == PB_NONE) return none;
        pb_advance_head(ch, tail);
        return all_done(ch) ? none : PB_NONE;
    }
    uint32_t seat = standing.entry & 63;
    if ((r = find_track(c, seat)) == PB_UNKNOWN) return r;
    int hold = set_hold(c, found);
    PB_FULL_BARRIER();
    enum pb_result part = takes_part(ch);
    uint64_t mine = found << 12 | (PB_CLAIMED + ch->seat);
    if (part || !PB_CAS(pb_claim(ch, found), &claim, mine)) {
        clear_hold(c, hold);
        wake_producers(c);
        return part ? part : PB_AGAIN;
    }
    frame->number = found;
    pb_word *delivery = pb_delivery(ch, found);
    uint64_t delivered = PB_LOAD(delivery) >> 16 == found ? PB_PEEK(delivery) & PB_DELIVERY : 0;
    if (!r && ch->delivers && delivered >= ch->delivers) r = PB_SPENT;
    if (!r) r = read_record(c, seat, frame) ? PB_FAILED : PB_OK;
    if (r) {
        PB_CAS(pb_claim(ch, found), &mine, found << 12 | PB_ACKNOWLEDGED);
        clear_hold(c, hold);
        c->failed = found;
        c->spent = delivered;
    } else {
        frame->delivery = delivered + (delivered < PB_DELIVERY);
        PB_STORE(delivery, found << 16 | frame->delivery);
        add_hand(c, found, frame->block, hold);
        pb_word *dropped = pb_at(&ch->sequencer, PB_AT_DROPPED);
        frame->missed = PB_PEEK(dropped) ? atomic_exchange(dropped, 0) : 0;
    }
    wake_producers(c); // the queue has room, because a taken frame does not count
    return r;
}

enum pb_result pb_take(struct pb_consumer *c, struct pb_frame *frame) {
    if (!c->begun || c->left) return PB_EVICTED;
    enum pb_result r = PB_AGAIN;
    for (int tries = 0; r == PB_AGAIN && tries < TRIES; tries++) {
        r = c->ch.queue ? take_from_queue(c, frame) : take_from_broadcast(c, frame);
        if (c->ch.odd_since && r == PB_AGAIN) return r;
    }
    if (r == PB_AGAIN) return pb_odd(&c->ch, "its tail moves without end");
    if (r != PB_PROTOCOL) c->ch.odd_since = 0;
    if (!r) {
        c->taken++;
        c->bytes += frame->bytes;
        c->dropped += frame->missed;
        PB_STORE(own(c, PB_AT_TAKEN), c->taken);
        PB_STORE(own(c, PB_AT_TAKEN + 8), frame->number);
    }
    return r;
}

// Releasing

// Ends this consumer's claim of a frame: replaces the claim with `tag`. Does nothing and returns true in a broadcast, or if the claim has
// ended before. Returns false if the service has taken the claim away from this consumer.
static bool end_claim(struct pb_consumer *c, struct pb_hand *hand, uint64_t tag) {
    uint64_t mine = hand->number << 12 | (PB_CLAIMED + c->ch.seat);
    if (!c->ch.queue || hand->settled) return true;
    hand->settled = true;
    return PB_CAS(pb_claim(&c->ch, hand->number), &mine, hand->number << 12 | tag);
}

// Wakes other members after this consumer has ended a claim or a hold. `requeued`: the consumer has requeued the frame.
static void tell(struct pb_consumer *c, bool requeued) {
    if (c->ch.queue) pb_advance_head(&c->ch, pb_tail(&c->ch));
    wake_producers(c);
    if (c->ch.queue && (requeued || pb_state(&c->ch) || pb_abandoned(&c->ch))) pb_wake(pb_published(&c->ch)); // consumers may wait for the frame or the end
}

enum pb_result pb_settle(struct pb_consumer *c, uint64_t number, bool requeue, bool *stood) {
    struct pb_hand *hand = find_hand(c, number, false);
    if (!hand) return PB_NOT_HELD;
    *stood = end_claim(c, hand, requeue ? PB_REQUEUED : PB_ACKNOWLEDGED);
    if (!c->ch.queue) {
        hold_hand(c, hand);
        move_floor(c);
    }
    tell(c, requeue);
    return PB_OK;
}

enum pb_result pb_release(struct pb_consumer *c, uint64_t number, bool requeue, const struct pb_fence *done,
                          const struct pb_fence *reached, bool *stood) {
    struct pb_hand *hand = find_hand(c, number, true);
    if (!hand) return PB_NOT_HELD;
    if (done->value) {
        pb_word *entry = own(c, PB_AT_DONE + 32 * pb_slot(&c->ch, number));
        uint64_t before = PB_PEEK(entry), value = PB_PEEK(entry + 1), word = PB_PEEK(entry + 2);
        // Go keeps the greater value of the same word instead: see storeFence.
        bool replaceable = value == reached->value && word == reached->word;
        if (value && !replaceable && (word != done->word || value > done->value)) return PB_FENCE;
        PB_PUT(entry, 0);
        atomic_thread_fence(memory_order_release);
        PB_PUT(entry + 1, done->value);
        PB_PUT(entry + 2, done->word);
        PB_STORE(entry, before > number ? before : number); // a consumer can release the frames of a slot in any order
    }
    *stood = end_claim(c, hand, requeue ? PB_REQUEUED : PB_ACKNOWLEDGED);
    clear_hold(c, hand->hold);
    size_t after = c->in_hand-- - (size_t)(hand - c->hands) - 1;
    memmove(hand, hand + 1, after * sizeof *hand);
    move_floor(c);
    tell(c, requeue);
    return PB_OK;
}

struct pb_fence pb_stored(struct pb_consumer *c, uint64_t number) {
    pb_word *entry = own(c, PB_AT_DONE + 32 * pb_slot(&c->ch, number));
    struct pb_fence fence = {.word = PB_PEEK(entry + 2), .value = PB_PEEK(entry + 1)};
    return fence.word < PB_WORDS && fence.value <= PB_VALUE_MAX ? fence : (struct pb_fence){0};
}

void pb_leave(struct pb_consumer *c) {
    for (size_t i = 0; i < c->in_hand; i++) hold_hand(c, &c->hands[i]);
    c->left = true;
    if (c->begun) move_floor(c);
    wake_producers(c);
}
