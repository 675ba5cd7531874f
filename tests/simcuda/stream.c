// Streams. Each stream has a queue of operations and a thread that executes them, so streams are as asynchronous as
// real ones.
#include "sim.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

static int workers; // number of living worker threads
static uint64_t next_id = 1;

struct op *op_new(size_t body, void (*run)(struct stream *, struct op *)) {
    struct op *op = calloc(1, sizeof *op + body);
    if (op) op->run = run;
    return op;
}

void op_depend(struct op *op, struct stream *s, uint64_t seq) {
    if (s->done >= seq) return;
    struct dependency *grown = realloc(op->deps, (size_t)(op->dep_count + 1) * sizeof *grown);
    if (!grown) abort();
    op->deps = grown;
    op->deps[op->dep_count++] = (struct dependency){s, seq};
    stream_ref(s);
}

void stream_ref(struct stream *s) { s->refs++; }

void stream_unref(struct stream *s) {
    if (--s->refs) return;
    pthread_cond_destroy(&s->work);
    free(s);
}

struct stream *stream_make(struct context *ctx, unsigned flags, int priority) {
    struct stream *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->ctx = ctx;
    s->flags = flags;
    s->priority = priority;
    s->refs = 1;
    s->id = next_id++;
    s->next = ctx->first;
    pthread_cond_init(&s->work, NULL);
    ctx->first = s;
    return s;
}

// Takes the stream out of its context. The worker continues until the queue is empty, like the real driver.
void stream_close(struct stream *s) {
    for (struct stream **p = &s->ctx->first; *p; p = &(*p)->next) {
        if (*p != s) continue;
        *p = s->next;
        break;
    }
    s->next = NULL;
    capture_drop(s);
    if (s->handle) {
        handle_drop(s->handle);
        counts_live(LIVE_STREAM, -1);
        s->handle = NULL;
    }
    s->closing = true;
    pthread_cond_signal(&s->work);
    pthread_cond_broadcast(&sim_progress);
    stream_unref(s);
}

bool stream_failed(struct stream *s) { return sim_stopping || s->aborted || s->ctx->error != CUDA_SUCCESS; }

static void finish(struct stream *s, struct op *op) {
    s->head = op->next;
    if (!s->head) s->tail = NULL;
    s->done = op->seq;
    if (op->drop) op->drop(op);
    for (int i = 0; i < op->dep_count; i++) stream_unref(op->deps[i].stream);
    free(op->deps);
    free(op);
    pthread_cond_broadcast(&sim_progress);
}

static void *work(void *arg) {
    struct stream *s = arg;
    LOCK();
    while (!sim_stopping) {
        struct op *op = s->head;
        if (!op) {
            if (s->closing) break;
            pthread_cond_wait(&s->work, &sim_mu);
            continue;
        }
        for (int i = 0; i < op->dep_count; i++) {
            struct dependency *d = &op->deps[i];
            while (d->stream->done < d->seq && !d->stream->aborted && !stream_failed(s)) {
                pthread_cond_wait(&sim_progress, &sim_mu);
            }
        }
        if (sim_stopping) break;
        if (op->always || !stream_failed(s)) {
            UNLOCK();
            op->run(s, op);
            LOCK();
        }
        finish(s, op);
    }
    s->running = false;
    workers--;
    stream_unref(s);
    pthread_cond_broadcast(&sim_progress);
    UNLOCK();
    return NULL;
}

// A worker blocks all signals, so that they go to the threads of the program, as Go and Python expect.
static void start_worker(struct stream *s) {
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    stream_ref(s);
    s->running = true;
    workers++;
    if (pthread_create(&thread, &attr, work, s) != 0) abort();
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

// The legacy default stream waits for every blocking stream of its context, and every blocking stream waits for the default stream.
static void order_with_default_stream(struct stream *s, struct op *op) {
    if (s->legacy) {
        for (struct stream *other = s->ctx->first; other; other = other->next) {
            if (other != s && !(other->flags & CU_STREAM_NON_BLOCKING)) op_depend(op, other, other->queued);
        }
    } else if (!(s->flags & CU_STREAM_NON_BLOCKING) && s->ctx->legacy) {
        op_depend(op, s->ctx->legacy, s->ctx->legacy->queued);
    }
}

void stream_submit(struct stream *s, struct op *op) {
    order_with_default_stream(s, op);
    uint64_t seq = op->seq = ++s->queued;
    bool at_once = config.prompt && op->brief && !s->head && !op->dep_count;
    if (s->tail) s->tail->next = op;
    else s->head = op;
    s->tail = op;
    if (s->running) pthread_cond_signal(&s->work);
    else start_worker(s);
    if (at_once) stream_wait(s, seq);
}

void stream_wait(struct stream *s, uint64_t seq) {
    stream_ref(s);
    while (s->done < seq && !stream_failed(s)) pthread_cond_wait(&sim_progress, &sim_mu);
    stream_unref(s);
}

static void wake_streams(void *object, void *arg) {
    (void)arg;
    for (struct stream *s = ((struct context *)object)->first; s; s = s->next) pthread_cond_signal(&s->work);
}

// When the process exits, all waits end. A worker inside a callback of the program may never return, so the process
// waits for the workers only for a limited time.
void streams_stop(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    LOCK();
    handle_each(KIND_CONTEXT, wake_streams, NULL);
    pthread_cond_broadcast(&sim_progress);
    while (workers && pthread_cond_timedwait(&sim_progress, &sim_mu, &until) == 0) {
    }
    UNLOCK();
}

void nap(unsigned *round) {
    if ((*round)++ < 64) {
        sched_yield();
        return;
    }
    unsigned shift = (*round - 64) / 16;
    struct timespec pause = {.tv_nsec = 20000L << (shift < 5 ? shift : 5)};
    nanosleep(&pause, NULL);
}
