// The declarations that several files of the extension module use.
#ifndef POOLBRIDGE_NATIVE_H
#define POOLBRIDGE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "shm.h"

// Names of attributes of Python objects.
enum name { NAME_OWN, NAME_PAGES, NAME_WORDS, NAME_CLOSED, NAME_INDEX, NAME_VALUE, NAME_STREAMS, NAMES };

typedef struct {
    PyTypeObject *frame, *producer, *consumer, *lock, *arena, *chunks, *follower;
    PyObject *names[NAMES];
    PyObject *conditions[PB_FENCE + 1];
    PyObject *protocol, *invalid, *memory, *forked, *closed, *released;
} State;

// The first fields of a Producer and of a Consumer.
typedef struct Member {
    PyObject_HEAD
    struct pb_channel *ch;
    void (*unmap)(struct Member *);
    bool open;        // the member has mappings
    bool closing;     // the member is closing: the last thread that waits unmaps its files
    unsigned waiting; // number of threads that wait without the interpreter's lock
    // After a wait that spun without a result, the next `sleeps` waits do not spin; `left` is the number of these waits that remain.
    unsigned sleeps, left;
    uint64_t waits;   // number of waits that had a result
    int64_t waited;   // total time of all waits, in nanoseconds
} Member;

// One attempt of an operation. After PB_NONE or PB_AGAIN, wait_for tries the operation again.
typedef enum pb_result (*Attempt)(Member *, void *);

typedef struct {
    int64_t limit, spin; // nanoseconds
    bool adaptive;       // choose the spin time by the results of earlier waits, instead of `spin`
    bool freed;          // wait on `freed` instead of `published`
    const uint64_t *hurry; // while `*hurry` is not 0: a sleep takes at most 2 ms; NULL: sleeps have only the usual limit
    bool uncounted;        // the wait does not count in the member's `waits` and `waited`
} Wait;

State *state_of(void *self);
State *state_of_base(PyTypeObject *type); // the same for a subclass written in Python, which belongs to another module
bool usable(Member *m);                                           // `usable` and the functions below return false or NULL with an exception
bool count_is(Py_ssize_t given, Py_ssize_t least, Py_ssize_t most, const char *what);
bool number_to(PyObject *invalid, PyObject *from, uint64_t most, const char *what, uint64_t *to); // raises `invalid`
bool number_of(void *self, PyObject *from, uint64_t most, const char *what, uint64_t *to);
bool wait_of(void *self, PyObject *const *args, Py_ssize_t given, Wait *to); // reads the arguments `timeout` and `spin`
bool wait_for(Member *m, Attempt attempt, void *with, const Wait *how, enum pb_result *r);
void pb_init_spinning(void);
PyObject *result_of(Member *m, enum pb_result r); // returns a Condition, or raises
typedef enum pb_result (*Opening)(Member *m, const int fds[3], uint32_t seat, uint64_t member); // sets `ch` and `unmap`, and opens the files
PyObject *new_member(PyTypeObject *type, PyObject *args, PyObject *kwargs, const char *third, uint64_t seats, Opening open);
PyObject *add_file(Member *m, PyObject *const *args, Py_ssize_t given, uint64_t seats, const char *what,
                   enum pb_result (*add)(Member *, uint32_t seat, uint64_t member, int fd));
PyObject *unknown(Member *m, void *closure);
PyObject *waits_asleep(Member *m, void *closure);
PyObject *waits(Member *m, void *closure);
PyObject *close_member(Member *m, PyObject *ignored);
Py_ssize_t frame_fence(PyObject *frame, struct pb_fence *to); // reads a Frame's fence; returns 0 if the content is complete, else 1
PyObject *new_frame(State *state, const struct pb_consumer *c, const struct pb_frame *frame);
void free_object(void *self);
struct pb_producer *producer_core(Member *m); // the core of a Producer

typedef struct Follower Follower;
bool follower_is_anywhere(const Follower *f); // whether every thread can queue work on the follower's stream
bool follower_may_write(Follower *f, const struct pb_fence *fences, size_t count);
bool fence_is_over(State *state, PyObject *timelines, const struct pb_fence *fence); // whether the next writer need not wait for a fence
bool fence_from(PyObject *one, struct pb_fence *to); // reads a sequence of timeline, word and value
bool stream_is_captured(uint64_t function, uint64_t stream); // function: the address of cuStreamIsCapturing
PyObject *read_layout(PyObject *module, PyObject *layout);
PyObject *arrow_capsule(PyObject *module, PyObject *const *args, Py_ssize_t given); // a function of the module
PyObject *follower_write(Follower *f, uint64_t *word, uint64_t *value);

extern PyType_Spec frame_spec, producer_spec, consumer_spec, lock_spec, arena_spec, chunks_spec, follower_spec;

// How often work is done again that a signal handler may have ended. Handlers that raise come one by one.
#define PB_TRIES 16

#endif
