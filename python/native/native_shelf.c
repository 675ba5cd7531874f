// The types Lent and Shelf. They do a publisher's work for a frame if the publisher does not have to wait or to call the service.
//
// Each method here except `send_after` is one step for Python: no signal handler, finaliser or other thread runs during the method. In any
// unusual case a method returns None or False, and the Python code in `poolbridge._session.spares` does the rest of the work.
#include "native.h"

#include <stddef.h>

// How many milliseconds a publisher may take arrays from a shelf without Python code. After this time, the functions of this file leave the
// work to Python code, which also releases idle memory and checks whether other sessions want memory.
enum { ALONE_MS = 250 };

typedef struct { // a write lease whose memory a channel has, or has given back
    PyObject_HEAD
    PyObject *array, *fences, *shelf; // fences: a tuple
    PyObject *follower; // the Follower of the stream that writes the loan, or None
    PyObject *after;    // bytes: the pb_fence structures of the readers of the last frame
    unsigned long long block, buffer, nbytes;
    char owned;
} Lent;

typedef struct {
    PyObject_HEAD
    PyObject *free, *loan; // lists of Lent
    PyObject *strays;      // list of blocks that came back and that this shelf cannot keep; each is as `Producer.reclaim` returns it
    PyObject *owner;       // the native producer, or None
    PyObject *loans;       // dictionary of the loans that the channel has, by block; or None
    PyObject *described;   // the description, in the form that a track has
    PyObject *stream;      // the stream that wrote a loan last, or None
    PyObject *follower;    // the Follower of `stream`, or None
    PyObject *nothing; // empty bytes
    unsigned long long description_id;
    Py_ssize_t most, extra;
    char wanting, closed, busy, aside;
    char on_streams; // streams write the arrays, and wait for the fences of leases that came back
    double used;
    int64_t looked;
    State *state; // state of the module, which the type keeps alive
} Shelf;

// Life

static int traverse_lent(Lent *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->array);
    Py_VISIT(self->fences);
    Py_VISIT(self->shelf);
    Py_VISIT(self->follower);
    return 0;
}

static int clear_lent(Lent *self) {
    Py_CLEAR(self->array);
    Py_CLEAR(self->fences);
    Py_CLEAR(self->shelf);
    Py_CLEAR(self->follower);
    return 0;
}

static void dealloc_lent(Lent *self) {
    PyObject_GC_UnTrack(self);
    clear_lent(self);
    Py_CLEAR(self->after);
    free_object(self);
}

static PyObject *new_shelf(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs; // only the subclass in Python uses the arguments
    Shelf *self = (Shelf *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->state = state_of_base(type);
    self->free = PyList_New(0);
    self->loan = PyList_New(0);
    self->strays = PyList_New(0);
    self->owner = Py_NewRef(Py_None);
    self->loans = Py_NewRef(Py_None);
    self->stream = Py_NewRef(Py_None);
    self->follower = Py_NewRef(Py_None);
    self->nothing = PyBytes_FromStringAndSize(NULL, 0);
    self->described = Py_XNewRef(self->nothing);
    if (self->free && self->loan && self->strays && self->nothing) return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return NULL;
}

static int traverse_shelf(Shelf *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->free);
    Py_VISIT(self->loan);
    Py_VISIT(self->strays);
    Py_VISIT(self->owner);
    Py_VISIT(self->loans);
    Py_VISIT(self->stream);
    Py_VISIT(self->follower);
    return 0;
}

static int clear_shelf(Shelf *self) {
    Py_CLEAR(self->free);
    Py_CLEAR(self->loan);
    Py_CLEAR(self->strays);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->loans);
    Py_CLEAR(self->stream);
    Py_CLEAR(self->follower);
    return 0;
}

static void dealloc_shelf(Shelf *self) {
    PyObject_GC_UnTrack(self);
    clear_shelf(self);
    Py_CLEAR(self->described);
    Py_CLEAR(self->nothing);
    free_object(self);
}

// The fast way

// Returns the publisher's producer, or NULL if Python must handle the case.
static Member *at_hand(Shelf *self) {
    if (self->closed || self->busy || self->aside || !self->owner || Py_TYPE(self->owner) != self->state->producer) return NULL;
    Member *m = (Member *)self->owner;
    return m->open && !m->closing && !pb_forked(m->ch->life) && PyDict_Check(self->loans) ? m : NULL;
}

static Lent *lent_at(Shelf *self, PyObject *list, Py_ssize_t at) {
    PyObject *one = PyList_GetItem(list, at);
    return PyObject_TypeCheck(one, self->state->lent) ? (Lent *)one : NULL;
}

// Adds the lease of a frame's block to `free` if the publisher can reuse the block and the CPU need not wait for fences. The function makes
// no object that the garbage collector tracks: such an object could start the garbage collector, and a finaliser could change `core->back`
// while `collect` reads it.
static bool put_back(Shelf *self, const struct pb_producer *core, const struct pb_flight *flight) {
    PyObject *key = flight->fences && !self->on_streams ? NULL : PyLong_FromUnsignedLongLong(flight->block);
    PyObject *one = key ? PyDict_GetItemWithError(self->loans, key) : NULL;
    bool fits = one && PyObject_TypeCheck(one, self->state->lent);
    Lent *lent = (Lent *)one;
    fits = fits && lent->shelf == (PyObject *)self && lent->fences && PyTuple_Check(lent->fences) &&
           (self->on_streams || !PyTuple_Size(lent->fences)) && PyList_Size(self->free) < self->most + self->extra;
    PyObject *after = NULL;
    if (fits && flight->fences) {
        const char *from = (const char *)&core->fences[flight->first];
        fits = (after = PyBytes_FromStringAndSize(from, (Py_ssize_t)(flight->fences * sizeof(struct pb_fence))));
    }
    fits = fits && !PyList_Append(self->free, one);
    if (fits && after) {
        PyObject *before = lent->after;
        lent->after = after;
        after = before;
    }
    Py_XDECREF(after);
    if (fits) {
        lent->owned = 1;
        PyDict_DelItem(self->loans, key);
    }
    Py_XDECREF(key);
    PyErr_Clear(); // Python handles the errors
    return fits;
}

// Takes back the blocks of frames that the channel and its consumers do not need any more. Returns false if Python code must handle some of
// these blocks.
static bool collect(Shelf *self, Member *m) {
    struct pb_producer *core = producer_core(m);
    if (pb_reclaim(core)) return true; // nothing has come back, or Python finds the error
    size_t strays = 0;
    for (size_t i = 0; i < core->came_back; i++)
        if (!put_back(self, core, &core->back[i])) core->back[strays++] = core->back[i];
    core->came_back = strays;
    if (!strays) return true;
    PyObject *rest = blocks_of(m);
    if (rest) PyList_SetSlice(self->strays, PyList_Size(self->strays), PyList_Size(self->strays), rest);
    Py_XDECREF(rest);
    return false;
}

// take(): returns the array that is on loan, or an array whose memory the consumers do not need any more; None: Python code must handle the
// case.
static PyObject *take(Shelf *self, PyObject *ignored) {
    (void)ignored;
    Member *m = at_hand(self);
    int64_t now = pb_now();
    if (!m || now - self->looked > ALONE_MS * PB_NS_MS || PyList_Size(self->strays)) Py_RETURN_NONE;
    Lent *lent;
    if (PyList_Size(self->loan)) {
        lent = lent_at(self, self->loan, 0);
        return Py_NewRef(lent && lent->array ? lent->array : Py_None);
    }
    if (!PyList_Size(self->free)) {
        bool fine = collect(self, m);
        if (PyErr_Occurred()) return NULL;
        if (!fine || (self->wanting && PyList_Size(self->free) <= 1 + self->extra)) Py_RETURN_NONE;
    }
    if (!PyList_Size(self->free)) Py_RETURN_NONE;
    lent = lent_at(self, self->free, 0);
    if (!lent || !lent->array || PyList_Append(self->loan, (PyObject *)lent)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    PyList_SetSlice(self->free, 0, 1, NULL);
    self->used = (double)now / 1e9;
    return Py_NewRef(lent->array);
}

// Publishes the array that is on loan if the channel has room. Returns the frame's number; 0: the array is still on loan, with or without
// an exception.
static uint64_t publish(Shelf *self, PyObject *meta, uint64_t word, uint64_t value) {
    char *text = NULL, *described = NULL;
    Py_ssize_t text_bytes = 0, bytes = 0;
    if (meta && PyBytes_AsStringAndSize(meta, &text, &text_bytes)) return 0;
    Member *m = at_hand(self);
    if (!m || pb_now() - self->looked > ALONE_MS * PB_NS_MS || PyList_Size(self->loan) != 1) return 0;
    if (PyBytes_AsStringAndSize(self->described, &described, &bytes)) return 0;
    Lent *lent = lent_at(self, self->loan, 0);
    if (!lent || bytes != PB_DESCRIPTION || !self->description_id || text_bytes > PB_META || !pb_check_meta(text, (size_t)text_bytes))
        return 0;
    PyObject *key = PyLong_FromUnsignedLongLong(lent->block);
    if (!key || PyDict_SetItem(self->loans, key, (PyObject *)lent)) {
        Py_XDECREF(key);
        return 0;
    }
    struct pb_publication what = {.block = lent->block, .buffer = lent->buffer, .bytes = lent->nbytes,
                                  .description_id = self->description_id, .description = described,
                                  .meta = text, .meta_bytes = (uint32_t)text_bytes, .word = (uint32_t)word, .value = value};
    PyObject *follower = NULL; // this function drops the follower last, because the drop may run a finaliser
    uint64_t number = 0;
    enum pb_result r = pb_publish(producer_core(m), &what, false, &number);
    if (!r) {
        lent->owned = 0;
        follower = lent->follower;
        lent->follower = NULL;
        PyList_SetSlice(self->loan, 0, 1, NULL);
    } else {
        PyDict_DelItem(self->loans, key);
    }
    Py_DECREF(key);
    Py_XDECREF(follower);
    return r ? 0 : number;
}

// send(meta=b"", word=0, value=0): publishes the loan and returns the frame's number; None: the array is still on loan.
static PyObject *send(Shelf *self, PyObject *const *args, Py_ssize_t given) {
    uint64_t word = 0, value = 0;
    PyObject *invalid = self->state->invalid;
    if (!count_is(given, 0, 3, "send") || (given > 1 && !number_to(invalid, args[1], PB_WORDS - 1, "a word", &word)) ||
        (given > 2 && !number_to(invalid, args[2], PB_VALUE_MAX, "the value of a fence", &value)))
        return NULL;
    uint64_t number = publish(self, given ? args[0] : NULL, word, value);
    if (PyErr_Occurred()) return NULL;
    if (!number) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(number);
}

// Whether `stream`, which the program has passed, is `self->stream`, the stream that wrote an array of this shelf last.
static bool is_last(Shelf *self, PyObject *stream) {
    if (stream == self->stream) return stream != Py_None;
    if (!PyLong_CheckExact(stream) || !PyLong_Check(self->stream)) return false;
    int same = PyObject_RichCompareBool(stream, self->stream, Py_EQ);
    if (same < 0) PyErr_Clear();
    return same > 0;
}

// Whether streams other than the stream of the loan's follower may still write the loan, and their work has no fence yet.
static bool has_streams(Shelf *self, Lent *lent) {
    PyObject *lender = PyObject_GetAttr((PyObject *)lent, self->state->names[NAME_LENDER]);
    PyObject *streams = lender && lender != Py_None ? PyObject_GetAttr(lender, self->state->names[NAME_STREAMS]) : NULL;
    bool none = streams == Py_None || lender == Py_None;
    Py_XDECREF(streams), Py_XDECREF(lender);
    PyErr_Clear();
    return !none;
}

// follow(stream): whether the stream may write the array on loan without a wait; False: Python code must make the stream wait first.
static PyObject *follow(Shelf *self, PyObject *stream) {
    Lent *lent = at_hand(self) && PyList_Size(self->loan) == 1 ? lent_at(self, self->loan, 0) : NULL;
    if (!lent || !PyObject_TypeCheck(self->follower, self->state->follower) || !is_last(self, stream)) Py_RETURN_FALSE;
    if (lent->follower == self->follower && follower_is_anywhere((Follower *)lent->follower)) Py_RETURN_TRUE;
    if ((lent->follower && lent->follower != Py_None) || has_streams(self, lent)) Py_RETURN_FALSE;
    if (!follower_may_write((Follower *)self->follower, lent->fences, lent->after)) Py_RETURN_FALSE;
    PyObject *before = lent->follower;
    lent->follower = Py_NewRef(self->follower);
    Py_XDECREF(before);
    Py_RETURN_TRUE;
}

// send_after(meta, stream): makes the loan's stream write the fence of its work on the loan, and publishes the loan. Returns the frame's
// number; a tuple of word and value: the array is still on loan, with this fence; None: the array is still on loan, without a new fence.
static PyObject *send_after(Shelf *self, PyObject *const *args, Py_ssize_t given) {
    if (!count_is(given, 2, 2, "send_after")) return NULL;
    Lent *lent = at_hand(self) && PyList_Size(self->loan) == 1 ? lent_at(self, self->loan, 0) : NULL;
    if (!lent || !lent->follower || !PyObject_TypeCheck(lent->follower, self->state->follower)) Py_RETURN_NONE;
    if (args[1] != Py_None && !(lent->follower == self->follower && is_last(self, args[1]))) Py_RETURN_NONE;
    // Keep references to both objects: other threads run during the driver call, and they may replace these objects.
    PyObject *follower = Py_NewRef(lent->follower), *kept = Py_NewRef((PyObject *)lent);
    uint64_t word, value, number = 0;
    PyObject *fence = follower_write((Follower *)follower, &word, &value), *fences = fence ? PyTuple_Pack(1, fence) : NULL;
    if (fences) {
        PyObject *old[] = {lent->fences, lent->after};
        lent->fences = Py_NewRef(fences), lent->after = Py_NewRef(self->nothing);
        Py_XDECREF(old[0]), Py_XDECREF(old[1]);
        if (PyList_Size(self->loan) == 1 && PyList_GetItem(self->loan, 0) == kept) number = publish(self, args[0], word, value);
    }
    Py_XDECREF(fence), Py_DECREF(follower), Py_DECREF(kept);
    bool fenced = fences;
    Py_XDECREF(fences);
    if (PyErr_Occurred()) return NULL;
    if (number) return PyLong_FromUnsignedLongLong(number);
    if (fenced) return Py_BuildValue("KK", (unsigned long long)word, (unsigned long long)value);
    Py_RETURN_NONE;
}

// look(): notes the time. For the next ALONE_MS milliseconds, the publisher may use the shelf without Python code.
static PyObject *look(Shelf *self, PyObject *ignored) {
    (void)ignored;
    self->looked = pb_now();
    Py_RETURN_NONE;
}

#define OBJECT(type, name) {#name, T_OBJECT, offsetof(type, name), 0, NULL}
#define LIST(type, name) {#name, T_OBJECT, offsetof(type, name), READONLY, NULL}
#define FLAG(type, name) {#name, T_BOOL, offsetof(type, name), 0, NULL}
#define COUNT(type, name) {#name, T_ULONGLONG, offsetof(type, name), 0, NULL}
static PyMemberDef lent_members[] = {
    OBJECT(Lent, array), OBJECT(Lent, fences), OBJECT(Lent, shelf), OBJECT(Lent, follower), OBJECT(Lent, after), FLAG(Lent, owned),
    COUNT(Lent, block), COUNT(Lent, buffer), COUNT(Lent, nbytes), {NULL, 0, 0, 0, NULL},
};
static PyType_Slot lent_slots[] = {
    {Py_tp_members, lent_members}, {Py_tp_traverse, traverse_lent}, {Py_tp_clear, clear_lent}, {Py_tp_dealloc, dealloc_lent},
    {0, NULL},
};
PyType_Spec lent_spec = {
    "poolbridge._native.Lent", sizeof(Lent), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, lent_slots,
};

static PyMethodDef shelf_methods[] = {
    {"take", (PyCFunction)take, METH_NOARGS, NULL},
    {"send", (PyCFunction)(void (*)(void))send, METH_FASTCALL, NULL},
    {"follow", (PyCFunction)follow, METH_O, NULL},
    {"send_after", (PyCFunction)(void (*)(void))send_after, METH_FASTCALL, NULL},
    {"look", (PyCFunction)look, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef shelf_members[] = {
    LIST(Shelf, free), LIST(Shelf, loan), LIST(Shelf, strays), OBJECT(Shelf, owner), OBJECT(Shelf, loans), OBJECT(Shelf, described),
    OBJECT(Shelf, stream), OBJECT(Shelf, follower),
    COUNT(Shelf, description_id), {"most", T_PYSSIZET, offsetof(Shelf, most), 0, NULL},
    {"extra", T_PYSSIZET, offsetof(Shelf, extra), 0, NULL}, FLAG(Shelf, wanting), FLAG(Shelf, closed), FLAG(Shelf, busy),
    FLAG(Shelf, aside), FLAG(Shelf, on_streams), {"used", T_DOUBLE, offsetof(Shelf, used), 0, NULL}, {NULL, 0, 0, 0, NULL},
};
static PyType_Slot shelf_slots[] = {
    {Py_tp_new, new_shelf}, {Py_tp_members, shelf_members}, {Py_tp_methods, shelf_methods}, {Py_tp_traverse, traverse_shelf},
    {Py_tp_clear, clear_shelf}, {Py_tp_dealloc, dealloc_shelf}, {0, NULL},
};
PyType_Spec shelf_spec = {
    "poolbridge._native.Shelf", sizeof(Shelf), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, shelf_slots,
};
