// Producers and consumers run, and the test kills and replaces some of them at any moment. Only the channel's policy may drop frames.
// Consumers must get all other frames complete, in order, and only once. Usage: `stress [SEED [FRAMES [RUNS]]]`. With -DPB_STUMBLE, a
// member is delayed at random before about one step in 300. Each member is a process. With -DTHREADS each member is a thread, the test
// kills no member, and with the linker's --wrap=mmap all threads share one mapping of each file, so that the thread sanitizer sees all
// accesses.

#include "world.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define META "\x81\xa1\x61\xa1\x62" // {"a": "b"} in MessagePack
enum { PRODUCERS = 3, CONSUMERS = 3, BLOCKS = 18, MEMBERS = 1 << 14, WORDS = 32 };

#ifdef THREADS
#define CONTENT uint64_t // not atomic: the tested code must order the accesses, or the sanitizer reports a race
#else
#define CONTENT volatile uint64_t
#endif

// The memory that all members of the test share, in addition to the memory of the channel.
struct board {
    _Atomic uint64_t fds[2][PB_CONSUMERS];           // descriptors in the service's process, by role and seat
    _Atomic uint64_t published, dropped, ready[MEMBERS]; // ready: 1: the member has mapped its file, 2: it has joined
    _Atomic unsigned char taken[1 << 22];                // by frame number: how often the frame was acknowledged
    CONTENT blocks[PB_PRODUCERS * 64 + 1][WORDS];
};
static struct board *board;
static pid_t service;

static _Thread_local uint64_t state;
static uint64_t chance(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

#ifdef PB_STUMBLE
void pb_stumble(void) {
    if (!state || chance(300)) return;
    if (chance(4)) sched_yield();
    else nanosleep(&(struct timespec){0, 100000}, NULL);
}
#endif

// A member that fails ends the service, too: otherwise the service would wait for members that wait for this one.
static _Noreturn void fail(void) {
    if (getpid() != service) kill(service, SIGTERM);
    _exit(1);
}

#define CHECK(condition, ...)                                                                                                    \
    do {                                                                                                                         \
        if (!(condition)) {                                                                                                      \
            fprintf(stderr, "%s:%d: " #condition ": ", __FILE__, __LINE__);                                                      \
            fprintf(stderr, __VA_ARGS__);                                                                                        \
            fputc('\n', stderr);                                                                                                 \
            fail();                                                                                                              \
        }                                                                                                                        \
    } while (0)

static int fd_of(int role, uint32_t seat) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)service, (int)board->fds[role][seat]);
    return open(path, O_RDWR | O_CLOEXEC);
}

static void pause_for(pb_futex *word, enum pb_result (*again)(void *), void *with, enum pb_result *r) {
    uint32_t seen = pb_arm(word);
    *r = again(with);
    if (*r == PB_NONE) pb_futex_wait(word, seen, 2 * PB_NS_MS);
}

// A producer

struct work {
    struct pb_producer *p;
    struct pb_publication what;
    uint64_t number;
};
static enum pb_result try_publish(void *with) {
    struct work *w = with;
    return pb_publish(w->p, &w->what, true, &w->number);
}
static enum pb_result try_reclaim(void *with) { return pb_reclaim(((struct work *)with)->p, true); }

static bool settle_producer(struct pb_producer *p, enum pb_result r) {
    if (r == PB_UNKNOWN) {
        int fd = fd_of(0, p->ch.unknown_seat);
        if (fd >= 0) {
            // This call may fail without harm: by now, `fd` may be another file, which the service has not sealed yet.
            pb_add_cursor(p, p->ch.unknown_seat, p->ch.unknown_member, fd);
            close(fd);
        }
        return true;
    }
    if (r == PB_AGAIN) sched_yield();
    CHECK(r != PB_PROTOCOL && r != PB_NO_MEMORY, "%s", p->ch.complaint);
    return r == PB_NONE || r == PB_AGAIN || r == PB_NO_ROOM || r == PB_OK;
}

static void produce(struct world *w, uint32_t seat, uint64_t member, uint64_t frames, unsigned group) {
    static _Thread_local struct pb_producer p;
    unsigned char description[PB_DESCRIPTION] = {[16] = 'u', '1'};
    struct work work = {&p, {.description = description, .description_id = 1, .meta = META, .meta_bytes = sizeof META - 1}, 0};
    enum pb_result r = pb_producer_open(&p, w->roster, w->sequencer, w->tracks[seat], seat, member);
    CHECK(!r, "%s", p.ch.complaint);
    board->ready[member] = 1;
    // The state of the seat is not enough: a consumer may not know the producer before the roster has its new version.
    while (board->ready[member] != 2) sched_yield();
    uint64_t unused[BLOCKS], free = 0, sent[BLOCKS] = {0}; // `sent`: the buffer of each block's frame
    // Use as few blocks as possible, so that blocks are soon reused.
    for (uint64_t i = 0; i < w->ch.capacity + 2; i++) unused[free++] = group * 64 + i + 1;
    for (uint64_t count = 1; count <= frames; count++) {
        while (!free) {
            r = pb_reclaim(&p, true);
            if (r == PB_NONE) pause_for(pb_freed(&p.ch), try_reclaim, &work, &r);
            if (!r)
                for (size_t i = 0; i < p.came_back; i++) {
                    int which = 0;
                    while (which < BLOCKS && sent[which] != p.back[i].buffer) which++;
                    CHECK(which < BLOCKS, "buffer %llx came back, which was not sent", (unsigned long long)p.back[i].buffer);
                    sent[which] = 0;
                    unused[free++] = group * 64 + which + 1;
                }
            if (!settle_producer(&p, r)) return;
        }
        uint64_t block = unused[--free], content = member << 32 | count;
        for (int i = 0; i < WORDS; i++) board->blocks[block][i] = content;
        work.what.block = block;
        work.what.buffer = sent[block - group * 64 - 1] = content;
        do {
            r = try_publish(&work);
            if (r == PB_NONE) pause_for(pb_freed(&p.ch), try_publish, &work, &r);
            if (!settle_producer(&p, r)) return;
        } while (r);
        pb_end_wait(&p);
        atomic_fetch_add(&board->published, 1);
        if (!chance(64)) sched_yield();
    }
    pb_producer_close(&p);
}

// A consumer

static _Thread_local struct pb_consumer c;
static _Thread_local struct pb_frame frame;
static enum pb_result try_take(void *with) {
    (void)with;
    return pb_take(&c, &frame);
}

struct in_hand {
    uint64_t number, block, content;
};

static void check_content(const struct in_hand *hand) {
    for (int i = 0; i < WORDS; i++) {
        uint64_t found = board->blocks[hand->block][i];
        CHECK(found == hand->content, "frame %llu in block %llu has %llx instead of %llx", (unsigned long long)hand->number,
              (unsigned long long)hand->block, (unsigned long long)found, (unsigned long long)hand->content);
    }
}

static void consume(struct world *w, uint32_t seat, uint64_t member, uint32_t policy) {
    enum pb_result r = pb_consumer_open(&c, w->roster, w->sequencer, w->cursors[seat], seat, member);
    CHECK(!r, "%s", c.ch.complaint);
    board->ready[member] = 1;
    while (board->ready[member] != 2) sched_yield();
    r = pb_begin(&c);
    CHECK(!r || r == PB_EVICTED, "begin: %d", r);
    struct in_hand hands[8];
    size_t in_hand = 0, most = w->ch.capacity < 8 ? w->ch.capacity : 8;
    uint64_t before = c.next ? c.next - 1 : 0, lasts[MEMBERS / 16] = {0};
    for (;;) {
        r = try_take(NULL);
        if (r == PB_NONE) pause_for(pb_published(&c.ch), try_take, NULL, &r);
        CHECK(r != PB_PROTOCOL && r != PB_NO_MEMORY, "%s", c.ch.complaint);
        CHECK(r != PB_FAILED, "frame %llu failed", (unsigned long long)c.failed);
        if (r == PB_UNKNOWN) {
            int fd = fd_of(1, c.ch.unknown_seat);
            if (fd >= 0) {
                // This call may fail without harm: by now, the seat may belong to another member, and `fd` may be the track of that member.
                pb_add_track(&c, c.ch.unknown_seat, c.ch.unknown_member, fd);
                close(fd);
            }
        }
        if (r == PB_OK) {
            CHECK(frame.meta_bytes == sizeof META - 1 && !memcmp(c.meta, META, sizeof META - 1), "its meta is torn");
            uint64_t from = frame.buffer >> 32, count = frame.buffer & UINT32_MAX;
            CHECK(from == frame.producer, "it is said to be of %llu", (unsigned long long)frame.producer);
            if (!w->ch.queue) {
                CHECK(frame.number == before + 1 + frame.missed, "%llu after %llu, %llu missed", (unsigned long long)frame.number,
                      (unsigned long long)before, (unsigned long long)frame.missed);
                CHECK(policy > PB_FAIL || !frame.missed, "%llu were missed", (unsigned long long)frame.missed);
                CHECK(from >= MEMBERS / 16 || count > lasts[from], "out of order");
                if (from < MEMBERS / 16) lasts[from] = count;
            }
            else atomic_fetch_add(&board->dropped, frame.missed);
            before = frame.number;
            hands[in_hand++] = (struct in_hand){frame.number, frame.block, frame.buffer};
            check_content(&hands[in_hand - 1]);
        }
        bool over = r == PB_END || r == PB_EVICTED || r == PB_GONE;
        if (in_hand && !w->ch.queue && !chance(3)) {
            bool stood = false;
            CHECK(!pb_settle(&c, hands[chance(in_hand)].number, false, &stood) && stood, "a frame in hand cannot be acknowledged");
        }
        while (in_hand && (over || r == PB_NONE || in_hand == most || chance(2))) {
            size_t which = chance(in_hand);
            struct in_hand hand = hands[which];
            hands[which] = hands[--in_hand];
            check_content(&hand);
            bool stood = false, requeue = w->ch.queue && !chance(16) && !over;
            if (!requeue && w->ch.queue) atomic_fetch_add(&board->taken[hand.number % sizeof board->taken], 1);
            r = pb_release(&c, hand.number, requeue, &(struct pb_fence){0}, &(struct pb_fence){0}, &stood);
            CHECK(!r && stood, "release of %llu: %d", (unsigned long long)hand.number, r);
        }
        if (over) break;
    }
    pb_consumer_close(&c);
}

// The service

struct member {
    struct world *w;
    bool producer;
    uint32_t seat, policy;
    uint64_t member, frames, seed;
    pthread_t thread;
    pid_t process; // 0: no process
};

static void *live(void *with) {
    struct member *m = with;
    state = m->seed;
    if (m->producer) produce(m->w, m->seat, m->member, m->frames, m->seat);
    else consume(m->w, m->seat, m->member, m->policy);
    return NULL;
}

static void start(struct member *m, bool oldest) {
    m->member = prepare(m->w, m->producer, m->seat, m->policy, 0);
    assert(m->member < MEMBERS);
    board->fds[m->producer][m->seat] = (uint64_t)(m->producer ? m->w->tracks[m->seat] : m->w->cursors[m->seat]);
    m->seed = chance(UINT64_MAX) | 1;
#ifdef THREADS
    if (pthread_create(&m->thread, NULL, live, m)) fatal("pthread_create");
    m->process = 1;
#else
    m->process = fork();
    if (m->process < 0) fatal("fork");
    if (!m->process) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL)) fatal("prctl");
        live(m);
        _exit(0);
    }
#endif
    while (!board->ready[m->member]) sched_yield();
    join(m->w, m->producer, m->seat, oldest);
    board->ready[m->member] = 2;
}

static void wait_for_end(struct member *m, bool killed) {
    int status = 0;
    if (!m->process) return;
#ifdef THREADS
    pthread_join(m->thread, NULL);
#else
    if (waitpid(m->process, &status, 0) != m->process) fatal("waitpid");
#endif
    if (!(WIFEXITED(status) && !WEXITSTATUS(status)) && !(killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
        fprintf(stderr, "a member ended with status %x\n", status);
        exit(1);
    }
    m->process = 0;
}

static void kill_member(struct member *m) {
    kill(m->process, SIGKILL);
    wait_for_end(m, true);
    end_member(m->w, m->producer, m->seat, PB_LEFT); // a producer keeps its seat, because its frames are kept
    if (m->producer) return;
    if (m->w->ch.queue) give_claims_back(m->w, m->seat);
    end_member(m->w, false, m->seat, PB_FREE);
}

static void run(uint64_t seed, bool queue, uint32_t policy, uint64_t capacity, uint64_t frames, unsigned deaths) {
    static struct world w;
    static struct member producers[PRODUCERS], consumers[CONSUMERS];
    state = seed * 2654435761 | 1;
    memset(board, 0, sizeof *board);
    world_open(&w, queue, capacity, policy);
    for (uint32_t i = 0; i < CONSUMERS; i++) {
        consumers[i] = (struct member){.w = &w, .seat = i, .policy = queue || i ? policy : PB_BLOCK};
        start(&consumers[i], false);
    }
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct member){.w = &w, .producer = true, .seat = i, .frames = frames};
        start(&producers[i], false);
    }
    for (unsigned death = 0; death < deaths; death++) {
        nanosleep(&(struct timespec){0, (long)(1 + chance(5)) * 1000000}, NULL);
        struct member *m = death % 5 == 4 ? &producers[chance(PRODUCERS)] : &consumers[chance(CONSUMERS)];
        kill_member(m);
        // A dead producer keeps its seat. The producer that replaces it gets another seat and other blocks.
        if (m->producer) m->seat += PRODUCERS;
        else m->seat = (m->seat + CONSUMERS * (uint32_t)chance(2)) % 100;
        start(m, chance(2));
    }
    for (uint32_t i = 0; i < PRODUCERS; i++) wait_for_end(&producers[i], false);
    close_channel(&w);
    for (uint32_t i = 0; i < CONSUMERS; i++) wait_for_end(&consumers[i], false);
    uint64_t last = pb_tail_number(pb_tail(&w.ch)), acknowledged = 0, doubled = 0;
    for (uint64_t n = 1; n <= last && n < sizeof board->taken; n++) {
        acknowledged += board->taken[n] > 0;
        doubled += board->taken[n] > 1;
    }
    uint64_t published = board->published, dropped = board->dropped + PB_LOAD(pb_at(&w.ch.sequencer, PB_AT_DROPPED));
    printf("%s, %s, capacity %llu, %u deaths: %llu published, the last is %llu, %llu acknowledged, %llu dropped\n",
           queue ? "queue" : "broadcast", (const char *[]){"block", "fail", "drop-oldest", "latest"}[policy],
           (unsigned long long)capacity, deaths, (unsigned long long)published, (unsigned long long)last,
           (unsigned long long)acknowledged, (unsigned long long)dropped);
    fflush(stdout);
    // If a member counts a frame in `taken` and then dies before it acknowledges the frame, another member takes the frame and counts it
    // again.
    if (doubled > deaths * 8 || (queue && !deaths && (doubled || acknowledged + dropped != published))) {
        fprintf(stderr, "%llu were acknowledged more than once\n", (unsigned long long)doubled);
        exit(1);
    }
    world_close(&w);
}

#ifdef THREADS
// All threads share one mapping of each file.
void *__real_mmap(void *, size_t, int, int, int, off_t);
int __real_munmap(void *, size_t);
static struct {
    ino_t file;
    struct pb_file at;
} maps[4096];
static size_t mapped;
static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    struct stat status;
    if (fd < 0 || fstat(fd, &status)) return __real_mmap(at, size, protection, flags, fd, offset);
    pthread_mutex_lock(&mapping);
    size_t i = 0;
    while (i < mapped && maps[i].file != status.st_ino) i++;
    if (i == mapped) {
        assert(mapped < sizeof maps / sizeof *maps);
        maps[mapped].file = status.st_ino;
        maps[mapped++].at = (struct pb_file){__real_mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), size};
    }
    pthread_mutex_unlock(&mapping);
    return maps[i].at.base;
}

int __wrap_munmap(void *at, size_t size) {
    for (size_t i = 0; i < mapped; i++)
        if (maps[i].at.base == at) return 0; // other threads use the mapping
    return __real_munmap(at, size);
}
#endif

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1, frames = argc > 2 ? strtoull(argv[2], NULL, 0) : 20000;
    uint64_t runs = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;
    pb_init();
    service = getpid();
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) fatal("mmap");
#ifdef THREADS
    unsigned kinds = 1;
#else
    unsigned kinds = 2;
#endif
    for (uint64_t i = 0; i < runs * kinds; i++)
        for (int queue = 0; queue < 2; queue++)
            for (uint32_t policy = PB_BLOCK; policy <= PB_LATEST; policy++)
                run(seed + i, queue, policy, (uint64_t[]){4, 1, 16}[(seed + i + policy) % 3], frames, i % kinds * 12);
    return 0;
}
