// For tests without a service, this code does what the service does for a channel: it makes the files and changes the roster.
#ifndef WORLD_H
#define WORLD_H

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../shm.h"

struct world {
    struct pb_channel ch; // its roster is mapped for writing
    int roster, sequencer;
    int tracks[PB_PRODUCERS], cursors[PB_CONSUMERS]; // descriptors by seat
    struct pb_file cursor_maps[PB_CONSUMERS];
    uint64_t members;
};

static inline void fatal(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    abort();
}

static inline int make_file(const char *name, size_t size) {
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)size) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) fatal("a memfd");
    return fd;
}

static inline struct pb_file map_file(int fd, size_t size) {
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) fatal("a mapping");
    return (struct pb_file){base, size};
}

static inline pb_word *roster_word(struct world *w, size_t at) { return pb_at(&w->ch.roster, at); }

static inline void world_open(struct world *w, bool queue, uint64_t capacity, uint32_t policy) {
    memset(w, 0, sizeof *w);
    uint64_t slots = 64;
    while (slots < 2 * capacity) slots *= 2;
    w->ch.slots = slots;
    w->ch.capacity = capacity;
    w->ch.queue = queue;
    w->roster = make_file("roster", PB_ROSTER);
    w->sequencer = make_file("sequencer", pb_sequencer_size(slots));
    w->ch.roster = map_file(w->roster, PB_ROSTER);
    w->ch.sequencer = map_file(w->sequencer, pb_sequencer_size(slots));
    memcpy(w->ch.roster.base, "PBROST01", 8);
    PB_STORE(roster_word(w, 32), queue);
    PB_STORE(roster_word(w, 40), capacity);
    PB_STORE(roster_word(w, 48), slots);
    PB_STORE(roster_word(w, 56), policy);
}

static inline void wake_everybody(struct world *w) {
    PB_FULL_BARRIER();
    pb_arm(pb_published(&w->ch));
    pb_wake(pb_published(&w->ch));
    pb_arm(pb_freed(&w->ch));
    pb_wake(pb_freed(&w->ch));
}

static inline size_t seat_at(bool producer, uint32_t seat) {
    return (producer ? PB_AT_PRODUCERS : PB_AT_CONSUMERS) + PB_SEAT * (size_t)seat;
}

static inline void set_state(struct world *w, bool producer, uint32_t seat, uint32_t state) {
    PB_STORE(pb_at32(&w->ch.roster, seat_at(producer, seat)), state);
}

// Makes the file of a new member, and writes the member's seat in the roster, except the seat's state.
static inline uint64_t prepare(struct world *w, bool producer, uint32_t seat, uint32_t policy, uint64_t timeline) {
    int *fd = producer ? &w->tracks[seat] : &w->cursors[seat];
    size_t size = producer ? pb_track_size(w->ch.slots) : pb_cursor_size(w->ch.slots), at = seat_at(producer, seat);
    if (*fd) close(*fd);
    *fd = make_file(producer ? "track" : "cursor", size);
    if (!producer) {
        if (w->cursor_maps[seat].base) munmap(w->cursor_maps[seat].base, size);
        w->cursor_maps[seat] = map_file(*fd, size);
    }
    PB_STORE(pb_at32(&w->ch.roster, at + PB_SEAT_POLICY), policy);
    PB_STORE(roster_word(w, at + PB_SEAT_MEMBER), ++w->members);
    PB_STORE(roster_word(w, at + PB_SEAT_TIMELINE), timeline);
    return w->members;
}

// Stores the roster's version in the channel's tail, if that tail still equals the argument `tail`. Returns false if it does not.
static inline bool new_version(struct world *w, uint64_t tail) {
    uint64_t version = PB_PEEK(roster_word(w, PB_AT_VERSION));
    return PB_CAS(pb_at(&w->ch.sequencer, 0), &tail, (tail & ~UINT64_C(1023)) | (version & 1023));
}

static inline void bump(struct world *w) {
    PB_STORE(roster_word(w, PB_AT_VERSION), PB_PEEK(roster_word(w, PB_AT_VERSION)) + 1);
}

static inline void join(struct world *w, bool producer, uint32_t seat, bool oldest) {
    for (bool first = true;; first = false) {
        uint64_t tail = pb_tail(&w->ch), last = pb_tail_number(tail);
        uint64_t start = !last ? 1 : !oldest ? last : last >= w->ch.capacity ? last - w->ch.capacity + 1 : 1;
        if (!producer && !w->ch.queue) {
            PB_STORE(roster_word(w, seat_at(false, seat) + PB_SEAT_START), start);
            PB_STORE(pb_at(&w->cursor_maps[seat], 0), start);
            PB_STORE(pb_at(&w->cursor_maps[seat], 8), start);
        }
        if (first) {
            set_state(w, producer, seat, PB_ACTIVE);
            bump(w);
        }
        if (new_version(w, tail)) break;
    }
    wake_everybody(w);
}

static inline void end_member(struct world *w, bool producer, uint32_t seat, uint32_t state) {
    if (state == PB_FREE) PB_STORE(roster_word(w, seat_at(producer, seat) + PB_SEAT_MEMBER), 0);
    set_state(w, producer, seat, state);
    bump(w);
    while (!new_version(w, pb_tail(&w->ch))) {
    }
    wake_everybody(w);
}

// Ends the claims of a queue's consumer, as the service does when the consumer's process is gone.
static inline void give_claims_back(struct world *w, uint32_t seat) {
    for (uint64_t i = 0; i < w->ch.slots; i++) {
        uint64_t claim = PB_LOAD(pb_claim(&w->ch, i));
        if ((claim & 4095) == PB_CLAIMED + seat) PB_CAS(pb_claim(&w->ch, i), &claim, claim & ~UINT64_C(4095));
    }
}

static inline void close_channel(struct world *w) {
    PB_STORE(roster_word(w, PB_AT_STATE), PB_CLOSING);
    bump(w);
    while (!new_version(w, pb_tail(&w->ch))) {
    }
    PB_STORE(roster_word(w, PB_AT_END), pb_tail_number(pb_tail(&w->ch)));
    PB_STORE(roster_word(w, PB_AT_STATE), PB_CLOSED);
    bump(w);
    wake_everybody(w);
}

static inline void world_close(struct world *w) {
    size_t cursor = pb_cursor_size(w->ch.slots);
    for (int i = 0; i < PB_PRODUCERS; i++)
        if (w->tracks[i]) close(w->tracks[i]);
    for (int i = 0; i < PB_CONSUMERS; i++) {
        if (w->cursors[i]) close(w->cursors[i]);
        if (w->cursor_maps[i].base) munmap(w->cursor_maps[i].base, cursor);
    }
    munmap(w->ch.roster.base, w->ch.roster.size);
    munmap(w->ch.sequencer.base, w->ch.sequencer.size);
    close(w->roster);
    close(w->sequencer);
}

#endif
