// The functions with which a member waits for other members: the member spins, and then sleeps without the interpreter's lock.
#include "native.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

// Adaptive spinning. A wait spins before it sleeps, unless recent waits of the member spun without a result. If a wait spun without a
// result, the member's next wait does not spin. If the wait after that spins without a result too, the next 3 waits do not spin, then the
// next 7, and so on up to MOST_SLEEPS.
#define SPIN INT64_C(100000) // nanoseconds; the kernel needs about the same time to wake a thread
// If more than LOST nanoseconds pass between two clock reads of a spinning thread, another thread used the CPU: there are too few CPUs.
#define LOST INT64_C(20000)
enum { MOST_SLEEPS = 63 };

static _Atomic unsigned spinning; // number of threads of this process that spin adaptively
static _Atomic unsigned most;     // greatest number of threads that may spin: one for every four CPUs, but at least one; 0 with one CPU
static _Thread_local unsigned mine; // number of this thread's waits that spin: more than one if a signal handler waits during a wait

static void forked(void) { atomic_store(&spinning, mine); } // a signal handler may have forked while this thread was spinning

void pb_init_spinning(void) {
    cpu_set_t set;
    unsigned cpus = sched_getaffinity(0, sizeof set, &set) ? 2 : (unsigned)CPU_COUNT(&set);
    if (!atomic_exchange(&most, cpus < 2 ? 0 : cpus < 8 ? 1 : cpus / 4)) pthread_atfork(NULL, NULL, forked);
}

// Returns whether a wait of this member spins first. If true, the caller must call end_spin when it stops spinning.
static bool begin_spin(Member *m) {
    if (m->left) {
        m->left--;
        return false;
    }
    if (atomic_fetch_add(&spinning, 1) < PB_PEEK(&most)) {
        mine++;
        return true;
    }
    atomic_fetch_sub(&spinning, 1);
    return false;
}

static void end_spin(Member *m, bool found) {
    mine--;
    atomic_fetch_sub(&spinning, 1);
    m->sleeps = found ? 0 : m->sleeps < MOST_SLEEPS ? 2 * m->sleeps + 1 : MOST_SLEEPS;
    m->left = m->sleeps;
}

PyObject *waits_asleep(Member *m, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(m->left);
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

// Spins for a limited time, but not after `until`. A consumer spins until the tail changes: at most 1 ms in a broadcast, and at most 5 µs
// in a queue. A producer (`freed` is true) spins for 1 µs. Returns false if another thread used the CPU meanwhile.
static bool spin(struct pb_channel *ch, bool freed, int64_t until) {
    int64_t now = pb_now(), moment = freed ? 1000 : ch->queue ? 5000 : PB_NS_MS, before;
    bool alone = true;
    if (until > now + moment) until = now + moment;
    do {
        for (int i = 0; i < 16; i++) {
            if (!freed && pb_moved(ch)) return alone;
            relax();
        }
        before = now;
        now = pb_now();
        alone = alone && now - before < LOST;
    } while (now < until);
    return alone;
}

static void doze(int64_t ns) { nanosleep(&(struct timespec){0, ns}, NULL); }

// Calls `attempt`, spins and sleeps until `attempt` has a result or the time limit has passed, and sets `*r` to the result. `*spins` is the
// time at which an adaptive wait stops spinning; the function sets `*spins` to 0 after the wait has stopped spinning. Returns false if this
// function has set an exception.
static bool wait_until(Member *m, Attempt attempt, void *with, const Wait *how, int64_t *spins, enum pb_result *r) {
    struct pb_channel *ch = m->ch;
    pb_futex *word = how->freed ? pb_freed(ch) : pb_published(ch);
    int64_t now = pb_now(), until = how->limit < INT64_MAX - now ? now + how->limit : INT64_MAX;
    int64_t polls = how->spin < INT64_MAX - now ? now + how->spin : INT64_MAX;
    do {
        int64_t left = until - now, longest = how->hurry && *how->hurry ? 2 * PB_NS_MS : PB_SLICE;
        int64_t round = *spins ? *spins : polls;
        bool alone = true;
        m->waiting++;
        if (*r == PB_AGAIN) {
            Py_BEGIN_ALLOW_THREADS doze(50000);
            Py_END_ALLOW_THREADS
        } else if (now < round) {
            Py_BEGIN_ALLOW_THREADS alone = spin(ch, how->freed, round < until ? round : until);
            Py_END_ALLOW_THREADS
        } else {
            uint32_t seen = pb_arm(word);
            *r = attempt(m, with);
            if (*r == PB_NONE) {
                Py_BEGIN_ALLOW_THREADS pb_futex_wait(word, seen, left < longest ? left : longest);
                Py_END_ALLOW_THREADS
            }
        }
        if (!--m->waiting && m->closing && m->open && !pb_forked(ch->life)) {
            m->unmap(m);
            m->open = false;
        }
        if (*r != PB_NONE && *r != PB_AGAIN) return true;
        if (PyErr_CheckSignals() || !usable(m)) return false;
        now = pb_now();
        if (*spins && (now >= *spins || !alone)) {
            end_spin(m, false);
            *spins = 0;
        }
        *r = attempt(m, with);
        if (*r != PB_NONE && *r != PB_AGAIN) return true;
    } while (now < until);
    *r = PB_TIMEOUT;
    return true;
}

bool wait_for(Member *m, Attempt attempt, void *with, const Wait *how, enum pb_result *r) {
    *r = attempt(m, with);
    if (*r != PB_NONE && *r != PB_AGAIN) return true;
    if (!how->limit && *r == PB_NONE) {
        *r = PB_TIMEOUT;
        return true;
    }
    int64_t began = pb_now(), spins = how->adaptive && begin_spin(m) ? began + SPIN : 0;
    bool fine = wait_until(m, attempt, with, how, &spins, r), found = fine && *r != PB_TIMEOUT;
    if (spins) end_spin(m, found);
    if (!how->uncounted) {
        m->waits += found;
        m->waited += pb_now() - began;
    }
    return fine;
}

// waits: the number of waits that had a result, and the total time of all waits in seconds
PyObject *waits(Member *m, void *closure) {
    (void)closure;
    return Py_BuildValue("(Kd)", (unsigned long long)m->waits, (double)m->waited / 1e9);
}
