// Events: the interface between event.c and ipcevent.c.
#ifndef SIMCUDA_EVENT_H
#define SIMCUDA_EVENT_H

#include "sim.h"

// One recording of an event. A stream that waits for an event keeps a reference to the recording. So a later recording of the
// event does not change what the stream waits for.
struct fence {
    int refs;
    bool done;
    struct stream *stream; // set until the recording is done
    struct context *ctx;
    uint64_t ns;
};

// The state of one interprocess event, which processes share.
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
    bool opened; // the event was opened from the handle of another process
    char name[96];
};

struct event *event_new(struct context *ctx, unsigned flags);
CUresult shared_event_create(struct event *e);
void shared_event_close(struct event *e);
void shared_event_complete(struct shared_event *shared, uint32_t count);
bool shared_event_reached(struct shared_event *shared, uint32_t count);
// Waits until recording number `count` is complete, or until stop returns true. The caller must not hold sim_mu.
void shared_event_wait(struct shared_event *shared, uint32_t count, bool (*stop)(void *arg), void *arg);

#endif
