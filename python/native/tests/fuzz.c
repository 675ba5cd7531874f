// This test gives any word of the shared memory any value at any time. The tested code must not crash, hang or read outside of the mapped
// memory. Usage: `fuzz [SEED [INPUTS]]`. An input is a few changed words and one call.
#include "world.h"

#include <time.h>

static uint64_t state;
static uint64_t chance(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

static uint64_t any_number(uint64_t near) {
    switch (chance(6)) {
    case 0: return near + chance(5) - 2;
    case 1: return chance(300);
    case 2: return UINT64_C(1) << chance(64);
    case 3: return (UINT64_C(1) << chance(64)) - 1;
    case 4: return near;
    default: return chance(UINT64_MAX);
    }
}

static uint64_t any_value(const struct world *w, uint64_t before) {
    uint64_t last = pb_tail_number(pb_tail(&w->ch)), number = any_number(last), seat = any_number(2);
    switch (chance(6)) {
    case 0: return before ^ UINT64_C(1) << chance(64);
    case 1: return number;
    case 2: return number << 6 | (seat & 63);
    case 3: return number << 12 | (seat & 4095);
    case 4: return number << 16 | (seat & 63) << 10 | (PB_PEEK(pb_at(&w->ch.roster, PB_AT_VERSION)) & 1023);
    default: return any_number(before);
    }
}

static void change(const struct world *w, const struct pb_file *file, size_t from, size_t to) {
    pb_word *word = pb_at(file, from + 8 * chance((to - from) / 8));
    PB_STORE(word, any_value(w, PB_PEEK(word)));
}

enum { FILES = 2 };

static void one_world(uint64_t inputs) {
    static struct world w;
    static struct pb_producer p;
    static struct pb_consumer c;
    static struct pb_frame frame;
    static const uint64_t capacities[] = {1, 3, 4, 32, 64};
    uint64_t N = capacities[chance(5)];
    world_open(&w, chance(2), N, (uint32_t)chance(4));
    N = w.ch.slots;
    PB_STORE(roster_word(&w, 64), chance(3)); // most deliveries of a frame
    struct pb_file tracks[FILES], cursors[FILES];
    for (uint32_t i = 0; i < FILES; i++) {
        prepare(&w, true, i, 0, chance(2));
        prepare(&w, false, i, (uint32_t)chance(4), chance(2));
        tracks[i] = map_file(w.tracks[i], pb_track_size(N));
        cursors[i] = w.cursor_maps[i];
    }
    uint64_t ids[2][FILES];
    for (uint32_t i = 0; i < FILES; i++)
        for (int producer = 0; producer < 2; producer++)
            ids[producer][i] = PB_LOAD(roster_word(&w, seat_at(producer, i) + PB_SEAT_MEMBER));
    if (pb_producer_open(&p, w.roster, w.sequencer, w.tracks[0], 0, ids[1][0])) fatal(p.ch.complaint);
    if (pb_consumer_open(&c, w.roster, w.sequencer, w.cursors[0], 0, ids[0][0])) fatal(c.ch.complaint);
    for (uint32_t i = 0; i < FILES; i++) {
        if (pb_add_cursor(&p, i, ids[0][i], w.cursors[i])) fatal(p.ch.complaint);
        if (pb_add_track(&c, i, ids[1][i], w.tracks[i])) fatal(c.ch.complaint);
        join(&w, true, i, false);
        join(&w, false, i, chance(2));
    }
    if (pb_begin(&c)) fatal(c.ch.complaint);
    unsigned char description[PB_DESCRIPTION + 9] = {[8] = 2, [10] = 1, [16] = 'u', '1', [32] = 3, [40] = 4, [PB_AT_LAYOUT] = 9};
    struct pb_publication what = {.description = description, .description_id = 1, .meta = "\x81\xa1" "a\xa3x\xc3\xa9"};
    char object;
    void *before;
    size_t count;
    for (uint64_t i = 0; i < inputs; i++) {
        for (uint64_t changes = chance(2) * chance(5); changes; changes--) {
            uint64_t last = pb_tail_number(pb_tail(&w.ch)), which = chance(FILES);
            size_t ring = (size_t)(pb_slot(&w.ch, last + chance(3) - 1));
            switch (chance(12)) {
            case 0: change(&w, &w.ch.sequencer, 0, 8); break;
            case 1: change(&w, &w.ch.sequencer, 64, 512 + 8 * 64); break;
            case 2: change(&w, &w.ch.sequencer, PB_AT_ORDER, pb_sequencer_size(N)); break;
            case 3: change(&w, &w.ch.sequencer, PB_AT_ORDER + 8 * (ring + chance(3) * N), pb_sequencer_size(N)); break;
            case 4: change(&w, &tracks[which], PB_PAGE + 64 * ring, PB_PAGE + 64 * ring + 64); break;
            case 5: change(&w, &tracks[which], PB_PAGE + 64 * N + 576 * ring, PB_PAGE + 64 * N + 576 * ring + 576); break;
            case 6: change(&w, &tracks[which], PB_PAGE + 640 * N + 8448 * ring, PB_PAGE + 640 * N + 8448 * ring + 64); break;
            case 7: change(&w, &cursors[which], 0, 24); break;
            case 8: change(&w, &cursors[which], 4096, pb_cursor_size(N)); break;
            case 9:
                if (chance(64)) bump(&w);
                else {
                    size_t seat = seat_at(chance(2), (uint32_t)which);
                    change(&w, &w.ch.roster, seat, seat + PB_SEAT);
                }
                break;
            case 10:
                if (!chance(64)) change(&w, &w.ch.roster, 8, 32);
                else if (!chance(8)) PB_STORE(roster_word(&w, PB_AT_STATE), chance(4));
                else if (!chance(8)) set_state(&w, chance(2), (uint32_t)which, (uint32_t)chance(4));
                break;
            default: tracks[which].base[PB_PAGE + 640 * N + 8448 * ring + chance(12)] = (unsigned char)chance(256);
            }
        }
        if (!chance(32)) { // repair the words that changes have made useless
            uint64_t last = chance(16) ? pb_tail_number(pb_tail(&w.ch)) & 0xFFFF : c.next + chance(3);
            PB_STORE(pb_at(&w.ch.sequencer, 0), last << 16 | chance(FILES) << 10 | (PB_PEEK(roster_word(&w, PB_AT_VERSION)) & 1023));
            PB_STORE(roster_word(&w, PB_AT_STATE), chance(8) ? PB_OPEN : PB_CLOSED);
            PB_STORE(roster_word(&w, PB_AT_END), last);
            for (uint32_t k = 0; k < FILES; k++)
                for (int producer = 0; producer < 2; producer++) {
                    set_state(&w, producer, k, k && !chance(4) ? PB_LEFT : PB_ACTIVE);
                    PB_STORE(pb_at32(&w.ch.roster, seat_at(producer, k) + PB_SEAT_POLICY), (uint32_t)chance(4));
                    PB_STORE(roster_word(&w, seat_at(producer, k) + PB_SEAT_MEMBER), ids[producer][k]);
                }
            for (uint64_t k = 0; k < N && !chance(4); k++) PB_STORE(pb_entry(&w.ch, k), 0), PB_STORE(pb_claim(&w.ch, k), 0);
            PB_STORE(pb_at(&w.ch.sequencer, PB_AT_HEAD), chance(2) * last);
            PB_STORE(pb_at(&cursors[1], 0), last + 1);
            bump(&w);
        }
        uint64_t number, held = c.in_hand ? c.hands[chance(c.in_hand)].number : chance(100);
        bool stood;
        enum pb_result r = PB_OK;
        switch (chance(9)) {
        case 0: case 1: case 2:
            what.block = chance(8);
            what.description_id = 1 + chance(4);
            what.event = chance(4) ? NULL : description;
            what.meta_bytes = chance(8) ? 7 : 0;
            r = pb_publish(&p, &what, chance(2), &number);
            if (chance(2)) pb_end_wait(&p);
            break;
        case 3: r = pb_reclaim(&p, true); break;
        case 4: case 5:
            r = pb_take(&c, &frame);
            if (r == PB_OK && frame.base > INT64_MAX) fatal("a base that no check has seen");
            if (r == PB_OK && !frame.kept && chance(2)) {
                struct pb_kept kept = {frame.block, frame.producer, frame.description_id, frame.base, &object};
                if (!pb_keep(&c, &kept, &before)) fatal("pb_keep");
            }
            break;
        case 6: pb_release(&c, held, chance(2), &(struct pb_fence){0, chance(PB_WORDS), chance(3)},
                           &(struct pb_fence){0, chance(PB_WORDS), chance(3)}, &stood); break;
        case 7: pb_settle(&c, held, chance(2), &stood); break;
        case 8: free(pb_forget(&c, chance(8), &count)); break;
        }
        if (c.in_hand > PB_HOLDS || p.lives > PB_CONSUMERS) fatal("too many");
        if (r == PB_PROTOCOL && !chance(4)) break;
        // The tested code reports a contradiction in the shared memory as an error if the contradiction lasts 100 ms. Sometimes the test
        // sets the begin of the contradiction back, so that the code reports the error at the next call.
        if (p.ch.odd_since && !chance(8)) p.ch.odd_since = 1;
        if (c.ch.odd_since && !chance(8)) c.ch.odd_since = 1;
    }
    if (chance(2)) pb_leave(&c);
    free(pb_forget(&c, 0, &count));
    if (c.kept_count) fatal("an object is kept after all were forgotten");
    pb_consumer_close(&c);
    pb_producer_close(&p);
    for (uint32_t i = 0; i < FILES; i++) munmap(tracks[i].base, tracks[i].size);
    world_close(&w);
}

// Each mapping of the tested code has 1 MiB of inaccessible addresses before it and after it, so that an access outside of the mapping
// crashes.
void *__real_mmap(void *, size_t, int, int, int, off_t);
int __real_munmap(void *, size_t);
enum { GUARD = 1 << 20 };

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    (void)at;
    char *room = __real_mmap(NULL, size + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return room;
    return __real_mmap(room + GUARD, size, protection, flags | MAP_FIXED, fd, offset);
}

int __wrap_munmap(void *at, size_t size) { return __real_munmap((char *)at - GUARD, size + 2 * GUARD); }

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1, inputs = argc > 2 ? strtoull(argv[2], NULL, 0) : 1000000;
    pb_init();
    int64_t slowest = 0, start = pb_now();
    for (uint64_t done = 0; done < inputs; done += 1000, seed++) {
        state = seed * UINT64_C(0x9E3779B97F4A7C15) | 1;
        int64_t begin = pb_now();
        one_world(1000);
        if (pb_now() - begin > slowest) slowest = pb_now() - begin;
        if (slowest > 20000 * PB_NS_MS) fatal("1,000 inputs took 20 s");
    }
    printf("%llu inputs, the next seed is %llu; %.1f s\n", (unsigned long long)inputs, (unsigned long long)seed,
           (double)(pb_now() - start) / 1e9);
    return 0;
}
