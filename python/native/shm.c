// The code that producers and consumers both use: for files, for words of shared memory, and for waits.
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// Forking

static _Atomic uint64_t lives; // number of forks that led to this process

static void forked(void) { atomic_fetch_add(&lives, 1); }

void pb_init(void) {
    static _Atomic bool registered;
    if (!atomic_exchange(&registered, true)) pthread_atfork(NULL, NULL, forked);
}

uint64_t pb_life(void) { return PB_PEEK(&lives); }
bool pb_forked(uint64_t life) { return PB_PEEK(&lives) != life; }

// Results

enum pb_result pb_complain(struct pb_channel *ch, enum pb_result result, const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(ch->complaint, sizeof ch->complaint, text, arguments);
    va_end(arguments);
    return result;
}

enum pb_result pb_odd(struct pb_channel *ch, const char *text) {
    int64_t now = pb_now();
    if (!ch->odd_since) ch->odd_since = now;
    if (now - ch->odd_since < PB_SLICE) return PB_AGAIN;
    return pb_complain(ch, PB_PROTOCOL, "the memory of the channel contradicts itself: %s", text);
}

int64_t pb_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// Files

enum pb_result pb_file_open(struct pb_channel *ch, struct pb_file *file, int fd, size_t size, bool write, const char *what) {
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &status)) return pb_complain(ch, PB_PROTOCOL, "descriptor %d is no memfd of a %s", fd, what);
    if (status.st_size < 0 || (size_t)status.st_size != size)
        return pb_complain(ch, PB_PROTOCOL, "the memfd of a %s must have %zu bytes, it has %lld", what, size,
                           (long long)status.st_size);
    if (~seals & (F_SEAL_SHRINK | F_SEAL_GROW))
        return pb_complain(ch, PB_PROTOCOL, "the memfd of a %s is not sealed against a change of its size", what);
    void *base = mmap(NULL, size, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return pb_complain(ch, errno == EPERM || errno == EACCES ? PB_PROTOCOL : PB_NO_MEMORY, "%zu bytes of a %s cannot be mapped: %s",
                           size, what, strerror(errno));
    if (madvise(base, size, MADV_DONTFORK)) {
        munmap(base, size);
        return pb_complain(ch, PB_NO_MEMORY, "a %s cannot be kept out of forked children: %s", what, strerror(errno));
    }
    *file = (struct pb_file){base, size};
    return PB_OK;
}

void pb_file_close(struct pb_file *file, uint64_t life) {
    // A forked child must not unmap: it does not have this mapping, and may have other memory at the same addresses.
    if (file->base && !pb_forked(life)) munmap(file->base, file->size);
    *file = (struct pb_file){0};
}

size_t pb_track_size(uint64_t slots) {
    size_t size = PB_PAGE + slots * (PB_RECORD + PB_DESCRIPTION + PB_META_SLOT + PB_LAYOUT);
    return (size + PB_PAGE - 1) / PB_PAGE * PB_PAGE;
}

size_t pb_sequencer_size(uint64_t slots) { return PB_AT_ORDER + 24 * slots; }
size_t pb_cursor_size(uint64_t slots) { return PB_AT_DONE + 32 * slots; }

enum pb_result pb_channel_open(struct pb_channel *ch, int roster, int sequencer, uint32_t seat, uint64_t member) {
    memset(ch, 0, sizeof *ch);
    ch->life = pb_life();
    ch->seat = seat;
    ch->member = member;
    ch->version = UINT64_MAX; // no version was read yet
    enum pb_result r = pb_file_open(ch, &ch->roster, roster, PB_ROSTER, false, "roster");
    if (r) return r;
    static const char magic[8] = "PBROST01";
    uint64_t expected, mode = PB_LOAD(pb_at(&ch->roster, 32));
    memcpy(&expected, magic, 8);
    ch->capacity = PB_LOAD(pb_at(&ch->roster, 40));
    ch->slots = PB_LOAD(pb_at(&ch->roster, 48));
    uint64_t policy = PB_LOAD(pb_at(&ch->roster, 56));
    ch->delivers = PB_LOAD(pb_at(&ch->roster, 64));
    if (PB_LOAD(pb_at(&ch->roster, 0)) != expected) return pb_complain(ch, PB_PROTOCOL, "the roster does not begin with PBROST01");
    if (ch->capacity < 1 || ch->capacity > PB_CAPACITY || ch->slots < PB_LEAST_SLOTS || ch->slots < 2 * ch->capacity || ch->slots > PB_MOST_SLOTS ||
        (ch->slots & (ch->slots - 1)) || mode > 1 || policy > PB_LATEST || ch->delivers > PB_DELIVERY)
        return pb_complain(ch, PB_PROTOCOL, "the roster has a value out of range: mode %llu, capacity %llu, %llu slots, policy %llu, %llu deliveries",
                           (unsigned long long)mode, (unsigned long long)ch->capacity, (unsigned long long)ch->slots,
                           (unsigned long long)policy, (unsigned long long)ch->delivers);
    ch->queue = mode;
    ch->policy = (uint32_t)policy;
    return pb_file_open(ch, &ch->sequencer, sequencer, pb_sequencer_size(ch->slots), true, "sequencer");
}

void pb_channel_close(struct pb_channel *ch) {
    pb_file_close(&ch->own, ch->life);
    pb_file_close(&ch->sequencer, ch->life);
    pb_file_close(&ch->roster, ch->life);
}

// Waiting

pb_futex *pb_published(const struct pb_channel *ch) { return pb_at32(&ch->sequencer, 64); }
pb_futex *pb_freed(const struct pb_channel *ch) { return pb_at32(&ch->sequencer, 128); }

int pb_futex_wait(pb_futex *word, uint32_t seen, int64_t ns) {
    struct timespec limit = {ns / 1000000000, ns % 1000000000};
    return syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0) ? errno : 0;
}

int pb_futex_wake(pb_futex *word, int most) { return (int)syscall(SYS_futex, word, FUTEX_WAKE, most, NULL, NULL, 0); }

// pb_arm sets bit 0 of the word on which the caller sleeps next. A hostile member may change the word again and again. So pb_arm returns
// after at most TRIES attempts, although bit 0 may not be set. The kernel then ends the sleep at once, because the word does not have the
// value that pb_arm returned.
enum { TRIES = 1000 };

uint32_t pb_arm(pb_futex *word) {
    uint32_t seen = PB_PEEK(word);
    for (int i = 0; i < TRIES && !(seen & 1); i++)
        if (PB_CAS(word, &seen, seen | 1)) seen |= 1;
    PB_FULL_BARRIER();
    return seen | 1;
}

void pb_wake(pb_futex *word) {
    uint32_t seen = PB_PEEK(word);
    for (int i = 0; i < TRIES && (seen & 1); i++)
        if (PB_CAS(word, &seen, seen + 1)) {
            pb_futex_wake(word, INT_MAX);
            return;
        }
}

bool pb_moved(struct pb_channel *ch) {
    return PB_PEEK(pb_at(&ch->sequencer, 0)) != ch->seen_tail || PB_PEEK(pb_at(&ch->roster, PB_AT_VERSION)) != ch->version ||
           PB_PEEK(pb_at(&ch->roster, PB_AT_STATE)) > PB_CLOSING;
}

// Numbers

void pb_help(struct pb_channel *ch, uint64_t tail) {
    uint64_t number = pb_tail_number(tail), entry = PB_LOAD(pb_entry(ch, number));
    if (pb_tail_seat(tail) != PB_VOID && entry >> 6 < number)
        PB_CAS(pb_entry(ch, number), &entry, number << 6 | pb_tail_seat(tail));
}

void pb_advance_head(struct pb_channel *ch, uint64_t tail) {
    pb_help(ch, tail);
    uint64_t last = pb_tail_number(tail), number = pb_oldest_standing(ch, last), oldest = last + 1;
    pb_word *word = pb_at(&ch->sequencer, PB_AT_HEAD);
    uint64_t head = PB_LOAD(word);
    if (number > last + 1 || head > last) return;
    bool every = head < number; // if true, any slot may have a frame with an older number
    for (; number <= last && (every || oldest > last); number++) {
        uint64_t stands = PB_LOAD(pb_entry(ch, number)) >> 6;
        if (stands && stands < oldest && !pb_claim_over(PB_LOAD(pb_claim(ch, number)), stands)) oldest = stands;
    }
    if (head < oldest) PB_CAS(word, &head, oldest);
}
