// What the parts of the extension module share.
#ifndef POOLBRIDGE_NATIVE_H
#define POOLBRIDGE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "shm.h"

typedef struct {
    PyTypeObject *frame, *producer, *consumer, *lock, *lent, *shelf;
    PyObject *conditions[PB_FENCE + 1];
    PyObject *protocol, *invalid, *memory, *forked, *closed, *released;
} State;

// What a Producer and a Consumer begin with.
typedef struct Member {
    PyObject_HEAD
    struct pb_channel *ch;
    void (*unmap)(struct Member *);
    bool open;        // it has mappings
    bool closing;     // the last thread that waits ends them
    unsigned waiting; // threads that wait without the interpreter's lock
} Member;

// One try of something that may have to be waited for: PB_NONE and PB_AGAIN have it tried again.
typedef enum pb_result (*Attempt)(Member *, void *);

typedef struct {
    int64_t limit, spin; // nanoseconds
    bool freed;          // what is waited for is freed, not published
    const uint64_t *hurry; // not 0: look again after 2 ms
} Wait;

State *state_of(void *self);
bool usable(Member *m);                                           // this and those below: false or NULL with an exception set
bool count_is(Py_ssize_t given, Py_ssize_t least, Py_ssize_t most, const char *what);
bool number_of(void *self, PyObject *from, uint64_t most, const char *what, uint64_t *to);
bool wait_of(void *self, PyObject *const *args, Py_ssize_t given, Wait *to); // from a timeout and a spin, if given
bool wait_for(Member *m, Attempt attempt, void *with, const Wait *how, enum pb_result *r);
PyObject *result_of(Member *m, enum pb_result r); // a condition, or an exception
bool member_arguments(PyObject *args, PyObject *kwargs, int fds[3], const char *third, uint64_t *slot, uint64_t *member);
PyObject *add_file(Member *m, PyObject *const *args, Py_ssize_t given, uint64_t slots, const char *what,
                   enum pb_result (*add)(Member *, uint32_t slot, uint64_t member, int fd));
PyObject *unknown(Member *m, void *closure);
PyObject *close_member(Member *m, PyObject *ignored);
PyObject *new_frame(State *state, const struct pb_consumer *c, const struct pb_frame *frame);
void free_object(void *self);
struct pb_producer *producer_core(Member *m); // of a Producer
PyObject *blocks_of(Member *m);               // what came back to a Producer

extern PyType_Spec frame_spec, producer_spec, consumer_spec, lock_spec, lent_spec, shelf_spec;

#endif
