// The type Consumer.
#include "native.h"

#include <stdlib.h>

typedef struct {
    Member member;
    struct pb_consumer core;
    struct pb_frame last; // the frame that this consumer took last; number 0: no frame
    PyObject *offered;    // the Frame that this consumer took last, until the caller accepts the Frame; NULL: no Frame
    bool again;           // whether this consumer offers each frame until the caller accepts the frame
    bool making;          // a thread is making the Frame of `last`
    bool any_thread;      // whether one thread may take a frame and another thread may accept it
    unsigned taking;      // number of calls that take a frame at this moment
    const void *taker;    // the thread that takes a frame, or that took `offered`: the address of its `here`
} Consumer;

static _Thread_local char here;

// Drops the objects that this consumer keeps for the frames of a block; of all blocks, if `block` is 0. Returns whether there were any.
static bool drop_kept(Consumer *self, uint64_t block) {
    size_t count, dropped = 0;
    struct pb_kept *kept = pb_forget(&self->core, block, &count);
    self->last.kept = NULL; // the drop of an object may run a finaliser, and during it other threads may call `take`
    for (size_t i = 0; kept && i < count; i++)
        if (kept[i].object) {
            Py_DECREF((PyObject *)kept[i].object);
            dropped++;
        }
    free(kept);
    return dropped;
}

static void unmap(Member *m) {
    while (drop_kept((Consumer *)m, 0)) {} // a finaliser may keep an object again
    Py_CLEAR(((Consumer *)m)->offered);
    pb_consumer_close(&((Consumer *)m)->core);
}

static enum pb_result open_consumer(Member *m, const int fds[3], uint32_t seat, uint64_t member) {
    Consumer *self = (Consumer *)m;
    m->ch = &self->core.ch;
    m->unmap = unmap;
    return pb_consumer_open(&self->core, fds[0], fds[1], fds[2], seat, member);
}

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    return new_member(type, args, kwargs, "cursor", PB_CONSUMERS, open_consumer);
}

static int traverse(Consumer *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->offered);
    for (size_t i = 0; i < self->core.kept_room; i++) Py_VISIT((PyObject *)self->core.kept[i].object);
    return 0;
}

static int clear(Consumer *self) {
    drop_kept(self, 0);
    Py_CLEAR(self->offered);
    return 0;
}

static void dealloc(Consumer *self) {
    PyObject_GC_UnTrack(self);
    if (self->member.open) unmap(&self->member);
    free_object(self);
}

static enum pb_result add(Member *m, uint32_t seat, uint64_t member, int fd) {
    return pb_add_track(&((Consumer *)m)->core, seat, member, fd);
}

static PyObject *add_track(Consumer *self, PyObject *const *args, Py_ssize_t given) {
    return add_file(&self->member, args, given, PB_PRODUCERS, "add_track", add);
}

// begin(again=False)
static PyObject *begin(Consumer *self, PyObject *const *args, Py_ssize_t given) {
    if (!usable(&self->member) || !count_is(given, 0, 1, "begin")) return NULL;
    int again = given ? PyObject_IsTrue(args[0]) : 0;
    if (again < 0) return NULL;
    self->again = again;
    enum pb_result r = pb_begin(&self->core);
    return r ? result_of(&self->member, r) : PyLong_FromUnsignedLongLong(self->core.next);
}

// Returns whether this thread may take a frame. Raises an exception if another thread takes one at this moment, or has not accepted the
// frame that it took: both threads would get that frame.
static bool my_turn(Consumer *self) {
    if (self->again && !self->any_thread && self->taker != &here && (self->taking || self->offered)) {
        PyErr_SetString(state_of(self)->invalid, "another thread takes a frame of this subscription: subscribe once for each thread or task");
        return false;
    }
    self->taker = &here;
    return true;
}

// check_turn()
static PyObject *check_turn(Consumer *self, PyObject *ignored) {
    (void)ignored;
    return my_turn(self) ? Py_NewRef(Py_None) : NULL;
}

static enum pb_result try_take(Member *m, void *with) {
    Consumer *self = (Consumer *)m;
    (void)with;
    if (self->making) return PB_NONE;
    if (self->offered) return PB_OK;
    enum pb_result r = pb_take(&self->core, &self->last);
    if (r) self->last.number = 0;
    return r;
}

static PyObject *take_next(Consumer *self, const Wait *how) {
    enum pb_result r;
    self->taking++;
    bool fine = wait_for(&self->member, try_take, NULL, how, &r);
    self->taking--;
    if (!fine) return NULL;
    if (r) return result_of(&self->member, r);
    if (self->offered) return Py_NewRef(self->offered);
    // new_frame may run finalisers, and during a finaliser other threads may call `take`. If `again` is true, such a call must return
    // this same frame, not take a second frame. So `making` makes such a call wait until `offered` is set.
    self->making = self->again;
    PyObject *frame = new_frame(state_of(self), &self->core, &self->last);
    self->making = false;
    if (self->again) self->offered = Py_XNewRef(frame);
    return frame;
}

// take(timeout=None, spin=None)
static PyObject *take(Consumer *self, PyObject *const *args, Py_ssize_t given) {
    Wait how = {.limit = INT64_MAX};
    if (!usable(&self->member) || !count_is(given, 0, 2, "take") || !wait_of(self, args, given, &how) || !my_turn(self)) return NULL;
    return take_next(self, &how);
}

// Reads a word and a value from the arguments `args` of a Python call; missing arguments are 0.
static bool fence_of(Consumer *self, PyObject *const *args, Py_ssize_t given, struct pb_fence *to) {
    return (given < 1 || number_of(self, args[0], PB_WORDS - 1, "a word", &to->word)) &&
           (given < 2 || number_of(self, args[1], PB_VALUE_MAX, "the value of a fence", &to->value));
}

static PyObject *no_queue(Consumer *self) {
    PyErr_SetString(state_of(self)->invalid, "only a frame of a queue can be requeued; this channel is a broadcast: release the frame");
    return NULL;
}

static PyObject *let_go(Consumer *self, PyObject *const *args, Py_ssize_t given, const char *name, bool requeue) {
    struct pb_fence done = {0}, reached = {0};
    uint64_t number;
    bool stood;
    if (!usable(&self->member) || !count_is(given, 1, 5, name) || !number_of(self, args[0], UINT64_MAX, "a frame's number", &number) ||
        !fence_of(self, args + 1, given - 1, &done) || (given > 3 && !fence_of(self, args + 3, given - 3, &reached)))
        return NULL;
    if (requeue && !self->core.ch.queue) return no_queue(self);
    enum pb_result r = pb_release(&self->core, number, requeue, &done, &reached, &stood);
    return r ? result_of(&self->member, r) : PyBool_FromLong(stood);
}

// stored(number): the word and the value of the fence in the slot of a frame's number
static PyObject *stored(Consumer *self, PyObject *given) {
    uint64_t number;
    if (!usable(&self->member) || !number_of(self, given, UINT64_MAX, "a frame's number", &number)) return NULL;
    struct pb_fence fence = pb_stored(&self->core, number);
    return Py_BuildValue("KK", (unsigned long long)fence.word, (unsigned long long)fence.value);
}

// release(number, word=0, value=0, reached_word=0, reached_value=0)
static PyObject *release(Consumer *self, PyObject *const *args, Py_ssize_t given) {
    return let_go(self, args, given, "release", false);
}

// swap(number, timeout=None, spin=None): releases a frame without a fence, and takes the next frame
static PyObject *swap(Consumer *self, PyObject *const *args, Py_ssize_t given) {
    Wait how = {.limit = INT64_MAX};
    uint64_t number;
    bool stood;
    if (!usable(&self->member) || !count_is(given, 1, 3, "swap") || !number_of(self, args[0], UINT64_MAX, "a frame's number", &number) ||
        !wait_of(self, args + 1, given - 1, &how) || !my_turn(self))
        return NULL;
    enum pb_result r = pb_release(&self->core, number, false, &(struct pb_fence){0}, &(struct pb_fence){0}, &stood);
    if (r) return result_of(&self->member, r);
    return take_next(self, &how);
}

// requeue(number, word=0, value=0, reached_word=0, reached_value=0)
static PyObject *requeue(Consumer *self, PyObject *const *args, Py_ssize_t given) {
    return let_go(self, args, given, "requeue", true);
}

static PyObject *settle(Consumer *self, PyObject *arg, bool requeue) {
    uint64_t number;
    bool stood;
    if (!usable(&self->member) || !number_of(self, arg, UINT64_MAX, "a frame's number", &number)) return NULL;
    if (requeue && !self->core.ch.queue) return no_queue(self);
    enum pb_result r = pb_settle(&self->core, number, requeue, &stood);
    return r ? result_of(&self->member, r) : PyBool_FromLong(stood);
}

static PyObject *ack(Consumer *self, PyObject *arg) { return settle(self, arg, false); }
static PyObject *unclaim(Consumer *self, PyObject *arg) { return settle(self, arg, true); }

// keep(producer, block, description_id, object, base=0)
static PyObject *keep(Consumer *self, PyObject *const *args, Py_ssize_t given) {
    struct pb_kept what = {0};
    void *before;
    if (!usable(&self->member) || !count_is(given, 4, 5, "keep") || !number_of(self, args[0], UINT64_MAX, "a member id", &what.producer) ||
        !number_of(self, args[1], UINT64_MAX, "a block id", &what.block) ||
        !number_of(self, args[2], UINT64_MAX, "a description id", &what.description_id) ||
        (given > 4 && !number_of(self, args[4], INT64_MAX, "a base", &what.base)))
        return NULL;
    what.object = args[3];
    // A producer that invents descriptions must not fill the memory of this process. A finaliser may close this consumer.
    if (self->core.kept_count == PB_MOST_KEPT && drop_kept(self, 0) && !usable(&self->member)) return NULL;
    if (!pb_keep(&self->core, &what, &before)) return PyErr_NoMemory();
    Py_INCREF(args[3]);
    if (before && before == self->last.kept) self->last.kept = NULL;
    Py_XDECREF((PyObject *)before);
    Py_RETURN_NONE;
}

// forget(block=0): drops the objects that are kept for the frames of a block; 0: of all blocks
static PyObject *forget(Consumer *self, PyObject *const *args, Py_ssize_t given) {
    uint64_t block = 0;
    if (!usable(&self->member) || !count_is(given, 0, 1, "forget") ||
        (given && !number_of(self, args[0], UINT64_MAX, "a block id", &block)))
        return NULL;
    return PyBool_FromLong(drop_kept(self, block));
}

static PyObject *leave(Consumer *self, PyObject *ignored) {
    (void)ignored;
    if (!usable(&self->member)) return NULL;
    pb_leave(&self->core);
    Py_RETURN_NONE;
}

static PyObject *counts(Consumer *self, void *closure) {
    (void)closure;
    const struct pb_consumer *c = &self->core;
    return Py_BuildValue("(KKK)", (unsigned long long)c->taken, (unsigned long long)c->bytes, (unsigned long long)c->dropped);
}

static PyObject *offered(Consumer *self, void *closure) {
    (void)closure;
    return Py_NewRef(self->offered ? self->offered : Py_None);
}

static int accept(Consumer *self, PyObject *none, void *closure) {
    (void)closure;
    if (none != Py_None) {
        PyErr_SetString(PyExc_AttributeError, "the frame that is offered is accepted with `offered = None`");
        return -1;
    }
    Py_CLEAR(self->offered);
    return 0;
}

// producers: when the last one left, a list of process ids and how each left, and when the frame that this consumer took last was published
static PyObject *producers(Consumer *self, void *closure) {
    (void)closure;
    if (!usable(&self->member)) return NULL;
    const struct pb_channel *ch = &self->core.ch;
    PyObject *processes = PyList_New(0);
    for (uint32_t seat = 0; processes && seat < PB_PRODUCERS; seat++) {
        size_t at = PB_AT_PRODUCERS + PB_SEAT * seat;
        uint32_t ending = PB_LOAD(pb_at32(&ch->roster, at + PB_SEAT_ENDING));
        if (PB_LOAD(pb_at32(&ch->roster, at)) != PB_ACTIVE && !ending) continue;
        PyObject *process = Py_BuildValue("(II)", PB_LOAD(pb_at32(&ch->roster, at + PB_SEAT_PROCESS)), ending);
        if (!process || PyList_Append(processes, process)) Py_CLEAR(processes);
        Py_XDECREF(process);
    }
    return processes ? Py_BuildValue("(KNK)", (unsigned long long)pb_abandoned(ch), processes, (unsigned long long)self->last.time) : NULL;
}

static PyObject *in_hand(Consumer *self, void *closure) {
    (void)closure;
    // First copy the numbers, then make Python objects. To make an object may run finalisers, and during a finaliser other threads may take
    // and release frames.
    size_t count = self->core.in_hand;
    uint64_t *numbers = count ? malloc(count * sizeof *numbers) : NULL;
    if (count && !numbers) return PyErr_NoMemory();
    for (size_t i = 0; i < count; i++) numbers[i] = self->core.hands[i].number;
    PyObject *found = PyList_New(0);
    for (size_t i = 0; found && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (!number || PyList_Append(found, number)) Py_CLEAR(found);
        Py_XDECREF(number);
    }
    free(numbers);
    return found;
}

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL
static PyMethodDef methods[] = {
    {"add_track", FAST(add_track), NULL}, {"begin", FAST(begin), NULL},
    {"take", FAST(take), NULL},           {"swap", FAST(swap), NULL},
    {"release", FAST(release), NULL},     {"requeue", FAST(requeue), NULL},
    {"stored", (PyCFunction)stored, METH_O, NULL},
    {"ack", (PyCFunction)ack, METH_O, NULL}, {"unclaim", (PyCFunction)unclaim, METH_O, NULL},
    {"keep", FAST(keep), NULL},           {"check_turn", (PyCFunction)check_turn, METH_NOARGS, NULL},
    {"forget", FAST(forget), NULL}, {"leave", (PyCFunction)leave, METH_NOARGS, NULL},
    {"close", (PyCFunction)close_member, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL},
};
static PyGetSetDef getters[] = {
    {"counts", (getter)counts, NULL, NULL, NULL},
    {"waits", (getter)waits, NULL, NULL, NULL},
    {"unknown", (getter)unknown, NULL, NULL, NULL},
    {"waits_asleep", (getter)waits_asleep, NULL, NULL, NULL},
    {"producers", (getter)producers, NULL, NULL, NULL},
    {"offered", (getter)offered, (setter)accept, NULL, NULL},
    {"in_hand", (getter)in_hand, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef members[] = {
    {"any_thread", T_BOOL, offsetof(Consumer, any_thread), 0, NULL},
    {"needs_producers", T_BOOL, offsetof(Consumer, core.needs_producers), 0, NULL},
    {"failed", T_ULONGLONG, offsetof(Consumer, core.failed), READONLY, NULL},
    {"spent", T_ULONGLONG, offsetof(Consumer, core.spent), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, new}, {Py_tp_dealloc, dealloc}, {Py_tp_methods, methods}, {Py_tp_members, members}, {Py_tp_getset, getters},
    {Py_tp_traverse, traverse}, {Py_tp_clear, clear}, {0, NULL},
};
PyType_Spec consumer_spec = {
    "poolbridge._native.Consumer", sizeof(Consumer), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, slots,
};
