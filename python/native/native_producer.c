// The type Producer.
#include "native.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    Member member;
    struct pb_producer core;
    uint64_t checked; // id of the description that `publish` checked last
    uint64_t roused;  // how often `rouse` was called
} Producer;

typedef struct {
    uint64_t returned, roused; // the values when the wait began
} Awaited;

static void unmap(Member *m) { pb_producer_close(&((Producer *)m)->core); }

static enum pb_result open_producer(Member *m, const int fds[3], uint32_t seat, uint64_t member) {
    Producer *self = (Producer *)m;
    m->ch = &self->core.ch;
    m->unmap = unmap;
    return pb_producer_open(&self->core, fds[0], fds[1], fds[2], seat, member);
}

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    return new_member(type, args, kwargs, "track", PB_PRODUCERS, open_producer);
}

static void dealloc(Producer *self) {
    if (self->member.open) unmap(&self->member);
    free_object(self);
}

static enum pb_result add(Member *m, uint32_t seat, uint64_t member, int fd) {
    return pb_add_cursor(&((Producer *)m)->core, seat, member, fd);
}

static PyObject *add_cursor(Producer *self, PyObject *const *args, Py_ssize_t given) {
    return add_file(&self->member, args, given, PB_CONSUMERS, "add_cursor", add);
}

typedef struct {
    struct pb_publication what;
    uint64_t number;
    bool waits;
} Publishing;

static enum pb_result try_publish(Member *m, void *with) {
    Publishing *p = with;
    return pb_publish(&((Producer *)m)->core, &p->what, p->waits, &p->number);
}

static bool bytes_of(Producer *self, PyObject *from, const char *what, Py_ssize_t least, Py_ssize_t most, const void **to,
                     Py_ssize_t *size) {
    char *bytes;
    if (PyBytes_AsStringAndSize(from, &bytes, size)) return false;
    *to = bytes;
    if (*size >= least && *size <= most) return true;
    PyErr_Format(state_of(self)->invalid, "%s must have %zd to %zd bytes, not %zd", what, least, most, *size);
    return false;
}

// publish(block, buffer, bytes, description_id, description, meta=b"", word=0, value=0, event=None, timeout=None, spin=None)
static PyObject *publish(Producer *self, PyObject *const *args, Py_ssize_t given) {
    Publishing p = {.waits = true};
    Py_ssize_t size = 0, described;
    uint64_t word = 0;
    uint64_t layout;
    Wait how = {.limit = INT64_MAX, .freed = true, .hurry = &self->core.before};
    if (!usable(&self->member) || !count_is(given, 5, 11, "publish") ||
        !number_of(self, args[0], UINT64_MAX, "a block id", &p.what.block) ||
        !number_of(self, args[1], UINT64_MAX, "a buffer id", &p.what.buffer) ||
        !number_of(self, args[2], UINT64_MAX, "a number of bytes", &p.what.bytes) ||
        !number_of(self, args[3], UINT64_MAX, "a description id", &p.what.description_id) ||
        !bytes_of(self, args[4], "a description", PB_DESCRIPTION, PB_DESCRIPTION + PB_LAYOUT, &p.what.description, &described) ||
        (given > 5 && !bytes_of(self, args[5], "meta", 0, PB_META, &p.what.meta, &size)) ||
        (given > 6 && !number_of(self, args[6], PB_WORDS - 1, "a word", &word)) ||
        (given > 7 && !number_of(self, args[7], PB_VALUE_MAX, "the value of a fence", &p.what.value)))
        return NULL;
    p.what.meta_bytes = (uint32_t)size;
    p.what.word = (uint32_t)word;
    if (given > 8 && args[8] != Py_None && !bytes_of(self, args[8], "an event", PB_EVENT, PB_EVENT, &p.what.event, &size)) return NULL;
    if (!wait_of(self, args + 9, given - 9, &how)) return NULL;
    memcpy(&layout, (const char *)p.what.description + PB_AT_LAYOUT, sizeof layout);
    bool known = p.what.description_id && p.what.description_id == self->checked;
    if (!(known || (p.what.description_id && pb_check_description(p.what.description, &(struct pb_description){0}))) ||
        layout != (uint64_t)described - PB_DESCRIPTION ||
        !pb_check_meta(p.what.meta, p.what.meta_bytes)) {
        PyErr_SetString(state_of(self)->invalid, "the description or the meta is not in the form of docs/streams.md, or its id is 0");
        return NULL;
    }
    self->checked = p.what.description_id;
    p.waits = how.limit;
    enum pb_result r;
    bool fine = wait_for(&self->member, try_publish, &p, &how, &r);
    if (self->member.open && !pb_forked(self->core.ch.life)) pb_end_wait(&self->core);
    if (!fine) return NULL;
    return r ? result_of(&self->member, r) : PyLong_FromUnsignedLongLong(p.number);
}

struct pb_producer *producer_core(Member *m) { return &((Producer *)m)->core; }

// Takes back what came back. `with` is the number of frames that had come back before: other threads take frames back meanwhile.
static enum pb_result try_reclaim(Member *m, void *with) {
    struct pb_producer *p = producer_core(m);
    enum pb_result r = pb_reclaim(p, true);
    return r && r != PB_NONE ? r : p->returned == *(uint64_t *)with ? PB_NONE : PB_OK;
}

// Takes chunks back, and looks whether buffers came back.
static enum pb_result try_await(Member *m, void *with) {
    struct pb_producer *p = producer_core(m);
    const Awaited *before = with;
    enum pb_result r = pb_reclaim(p, false);
    if (r && r != PB_NONE) return r;
    return p->due || p->returned != before->returned || ((Producer *)m)->roused != before->roused ? PB_OK : PB_NONE;
}

// Copies an array. A caller copies data of the producer before the caller makes Python objects: to make an object may run finalisers, and
// during a finaliser other threads may use or close the producer. The copy of an empty array is NULL.
static void *copy_of(const void *from, size_t size, bool *fine) {
    void *copy = size ? malloc(size) : NULL;
    if (copy) memcpy(copy, from, size);
    *fine = *fine && (copy || !size);
    return copy;
}

static PyObject *fences_of(const struct pb_fence *from, const struct pb_flight *flight) {
    PyObject *fences = PyTuple_New((Py_ssize_t)flight->fences);
    for (size_t i = 0; fences && i < flight->fences; i++) {
        const struct pb_fence *t = &from[flight->first + i];
        PyObject *fence = Py_BuildValue("KKK", (unsigned long long)t->timeline, (unsigned long long)t->word, (unsigned long long)t->value);
        if (!fence || PyTuple_SetItem(fences, (Py_ssize_t)i, fence)) Py_CLEAR(fences);
    }
    return fences;
}

static PyObject *buffers_of(Member *m) {
    const struct pb_producer *p = producer_core(m);
    size_t count = p->came_back;
    bool fine = true;
    struct pb_flight *back = copy_of(p->back, count * sizeof *back, &fine);
    struct pb_fence *from = copy_of(p->fences, count ? p->fence_count * sizeof *from : 0, &fine);
    PyObject *buffers = fine ? PyList_New((Py_ssize_t)count) : PyErr_NoMemory();
    for (size_t i = 0; buffers && i < count; i++) {
        PyObject *fences = fences_of(from, &back[i]);
        PyObject *buffer = fences ? Py_BuildValue("KN", (unsigned long long)back[i].buffer, fences) : NULL;
        if (!buffer || PyList_SetItem(buffers, (Py_ssize_t)i, buffer)) Py_CLEAR(buffers);
    }
    free(back);
    free(from);
    return buffers;
}

// reclaim(timeout=0.0, spin=None)
static PyObject *reclaim(Producer *self, PyObject *const *args, Py_ssize_t given) {
    Wait how = {.freed = true, .uncounted = true};
    enum pb_result r;
    uint64_t returned = self->core.returned;
    if (!usable(&self->member) || !count_is(given, 0, 2, "reclaim") || !wait_of(self, args, given, &how) ||
        !wait_for(&self->member, try_reclaim, &returned, &how, &r))
        return NULL;
    if (r && r != PB_TIMEOUT) return result_of(&self->member, r);
    return buffers_of(&self->member);
}

// await_back(timeout, roused)
static PyObject *await_back(Producer *self, PyObject *const *args, Py_ssize_t given) {
    Wait how = {.freed = true, .uncounted = true};
    enum pb_result r;
    Awaited before = {.returned = self->core.returned};
    if (!usable(&self->member) || !count_is(given, 2, 2, "await_back") || !wait_of(self, args, 1, &how) ||
        !number_of(self, args[1], UINT64_MAX, "a number of calls", &before.roused) ||
        !wait_for(&self->member, try_await, &before, &how, &r))
        return NULL;
    return r && r != PB_TIMEOUT ? result_of(&self->member, r) : Py_NewRef(Py_None);
}

static PyObject *rouse(Producer *self, PyObject *ignored) {
    (void)ignored;
    self->roused++;
    if (self->member.open && !pb_forked(self->core.ch.life)) {
        PB_FULL_BARRIER();
        pb_wake(pb_freed(&self->core.ch));
    }
    Py_RETURN_NONE;
}

static PyObject *behind(Producer *self, void *closure) {
    (void)closure;
    uint64_t member;
    uint32_t process;
    if (!usable(&self->member)) return NULL;
    if (!pb_behind(&self->core, &member, &process)) Py_RETURN_NONE;
    return Py_BuildValue("KI", (unsigned long long)member, process);
}

static PyObject *consumers(Producer *self, void *closure) {
    (void)closure;
    if (!usable(&self->member)) return NULL;
    unsigned long active = 0;
    for (size_t seat = 0; seat < PB_CONSUMERS; seat++)
        active += PB_LOAD(pb_at32(&self->core.ch.roster, PB_AT_CONSUMERS + PB_SEAT * seat)) == PB_ACTIVE;
    return PyLong_FromUnsignedLong(active);
}

static PyObject *in_flight(Producer *self, void *closure) {
    (void)closure;
    size_t count = self->core.in_flight;
    bool fine = true;
    struct pb_flight *flights = copy_of(self->core.flights, count * sizeof *flights, &fine);
    PyObject *found = fine ? PyList_New(0) : PyErr_NoMemory();
    for (size_t i = 0; found && i < count; i++) {
        const struct pb_flight *flight = &flights[i];
        PyObject *pair = Py_BuildValue("KK", (unsigned long long)flight->number, (unsigned long long)flight->buffer);
        if (!pair || PyList_Append(found, pair)) Py_CLEAR(found);
        Py_XDECREF(pair);
    }
    free(flights);
    return found;
}

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL
static PyMethodDef methods[] = {
    {"add_cursor", FAST(add_cursor), NULL},
    {"publish", FAST(publish), NULL},
    {"reclaim", FAST(reclaim), NULL},
    {"await_back", FAST(await_back), NULL},
    {"rouse", (PyCFunction)rouse, METH_NOARGS, NULL},
    {"close", (PyCFunction)close_member, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyObject *patience(Producer *self, void *closure) {
    (void)closure;
    return PyFloat_FromDouble((double)self->core.patience / 1e9);
}

static int set_patience(Producer *self, PyObject *seconds, void *closure) {
    (void)closure;
    double value = seconds ? PyFloat_AsDouble(seconds) : -1;
    if (PyErr_Occurred()) return -1;
    if (!(value >= 0 && value <= 3600)) {
        PyErr_SetString(PyExc_ValueError, "patience must be a number of seconds from 0 to 3600");
        return -1;
    }
    self->core.patience = (int64_t)(value * 1e9);
    return 0;
}

static PyObject *counts(Producer *self, void *closure) {
    (void)closure;
    return Py_BuildValue("(KK)", (unsigned long long)self->core.published, (unsigned long long)self->core.bytes);
}

static PyGetSetDef getters[] = {
    {"counts", (getter)counts, NULL, NULL, NULL},
    {"waits", (getter)waits, NULL, NULL, NULL},
    {"patience", (getter)patience, (setter)set_patience, NULL, NULL},
    {"unknown", (getter)unknown, NULL, NULL, NULL},
    {"waits_asleep", (getter)waits_asleep, NULL, NULL, NULL},
    {"in_flight", (getter)in_flight, NULL, NULL, NULL},
    {"behind", (getter)behind, NULL, NULL, NULL},
    {"consumers", (getter)consumers, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef members[] = {{"roused", T_ULONGLONG, offsetof(Producer, roused), READONLY, NULL}, {NULL, 0, 0, 0, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_new, new}, {Py_tp_dealloc, dealloc}, {Py_tp_methods, methods}, {Py_tp_members, members}, {Py_tp_getset, getters}, {0, NULL},
};
PyType_Spec producer_spec = {
    "poolbridge._native.Producer", sizeof(Producer), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots,
};
