// Events, between event.c and ipcevent.c.
#ifndef SIMCUDA_EVENT_H
#define SIMCUDA_EVENT_H

#include "sim.h"

// One recording of an event. A waiting stream holds it, so that a later recording does not change what is waited for.
struct fence {
    int refs;
    bool done;
    struct stream *stream; // until it is done
    struct context *ctx;
    uint64_t ns;
};

// The state that processes share for one interprocess event.
struct shared_event {
    char magic[8];
    _Atomic uint32_t recorded, completed;
};

struct event {
    void *handle;
    struct context *ctx;
    unsigned flags;
    struct fence *last;
    struct shared_event *shared;
    int fd;
    bool opened; // from another process's handle
    char name[96];
};

struct event *event_new(struct context *ctx, unsigned flags);
CUresult shared_event_create(struct event *e);
void shared_event_close(struct event *e);
void shared_event_complete(struct shared_event *shared, uint32_t count);
bool shared_event_reached(struct shared_event *shared, uint32_t count);
// Waits, with the lock not held, until count is completed or stop says so.
void shared_event_wait(struct shared_event *shared, uint32_t count, bool (*stop)(void *arg), void *arg);

#endif
