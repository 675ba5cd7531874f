// The type Follower. A Follower checks whether the fences of a frame are reached, and makes a stream write a fence after the stream's work
// on the frame.
//
// `poolbridge._order.fences.Follower` is a subclass. In any unusual case, a function of this file does nothing and tells its caller so;
// Python code then handles the case.
#include "native.h"

#include <stddef.h>
#include <string.h>

enum {
    TURN_NS = 50000,        // longest time in nanoseconds for which a poll makes the other Python threads wait
    TOMBSTONE_SHIFT = 62,   // position of the bit that is set in a word after the process that writes the word has died
};

struct Follower {
    PyObject_HEAD
    PyObject *timelines, *own;          // the session's timelines, and the timeline that the stream writes
    PyObject *key, *words;              // the stream, and the words of `own` by stream
    PyObject *is_owned, *acquire, *release; // methods of the lock that a thread holds while it writes words
    PyObject *fence;                    // makes a fence from a timeline's id, a word and a value
    unsigned long long id;              // id of `own`
    unsigned long long capturing;       // the address of cuStreamIsCapturing
    unsigned long long function;        // the address of cuStreamWriteValue64; 0: only Python can call this function
    unsigned long long stream, address; // the stream's handle, and the address at which the stream finds the words of `own`
    double patience, shortest, longest; // seconds: the next poll takes at most `patience`
    char anywhere;                      // whether every thread can queue work on the stream
    State *state;                       // state of the module, which the type keeps alive
};

typedef enum { REACHED, DIED, PENDING, UNKNOWN, RAISED } Reach;

// Attributes

// Returns the attribute `name` of the object `of`. Returns NULL without an exception if `of` is NULL: Python code has then deleted the
// follower's attribute that held this object.
static PyObject *attribute(Follower *f, PyObject *of, enum name name) { return of ? PyObject_GetAttr(of, f->state->names[name]) : NULL; }

static bool number_in(Follower *f, PyObject *of, enum name name, uint64_t *to) {
    PyObject *found = attribute(f, of, name);
    *to = found ? PyLong_AsUnsignedLongLong(found) : 0;
    bool read = found && !PyErr_Occurred();
    Py_XDECREF(found);
    return read;
}

// Whether `own` is still the timeline of the session. False without an exception: the timeline `own` was closed.
static bool has_timeline(Follower *f) {
    PyObject *own = attribute(f, f->timelines, NAME_OWN);
    Py_XDECREF(own);
    return own && own == f->own;
}

// Fences

// Reads the word of a fence. Returns UNKNOWN if the word cannot be read, for example because a frame names a word that does not exist;
// Python code then handles the case. The service has forgotten a timeline whose page is None, so its process does not write any more.
static Reach read_word(State *state, PyObject *timelines, const struct pb_fence *fence) {
    Reach reach = UNKNOWN;
    PyObject *pages = timelines ? PyObject_GetAttr(timelines, state->names[NAME_PAGES]) : NULL;
    PyObject *id = pages ? PyLong_FromUnsignedLongLong(fence->timeline) : NULL;
    PyObject *page = id && PyDict_Check(pages) ? PyDict_GetItemWithError(pages, id) : NULL;
    PyObject *words = page && page != Py_None ? PyObject_GetAttr(page, state->names[NAME_WORDS]) : NULL;
    Py_buffer view;
    if (page == Py_None) reach = DIED;
    else if (words && !PyObject_GetBuffer(words, &view, PyBUF_SIMPLE)) { // fails if the page is unmapped
        if (fence->word < (uint64_t)view.len / 8) {
            uint64_t now = PB_LOAD((pb_word *)view.buf + fence->word), mask = (UINT64_C(1) << TOMBSTONE_SHIFT) - 1;
            bool behind = now < fence->value || now - fence->value > INT64_MAX;
            reach = behind ? PENDING : (now & mask) < fence->value ? DIED : REACHED;
        }
        PyBuffer_Release(&view);
    }
    PyErr_Clear();
    Py_XDECREF(words), Py_XDECREF(id), Py_XDECREF(pages);
    return reach;
}

static Reach look(Follower *f, const struct pb_fence *fence) { return read_word(f->state, f->timelines, fence); }

bool fence_is_over(State *state, PyObject *timelines, const struct pb_fence *fence) { return read_word(state, timelines, fence) <= DIED; }

// Reads the word of a fence until the fence is reached or the time is `until`. Lets other Python threads run after every TURN_NS
// nanoseconds.
static Reach poll_word(Follower *f, const struct pb_fence *fence, int64_t until) {
    int64_t turn = pb_now();
    for (;;) {
        Reach reach = look(f, fence);
        int64_t now = pb_now();
        if (reach != PENDING || now >= until) return reach;
        if (now - turn < TURN_NS) continue;
        Py_BEGIN_ALLOW_THREADS Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals()) return RAISED;
        turn = pb_now();
    }
}

// The index of the word that the stream writes; UINT64_MAX: the stream has no word yet.
static uint64_t own_word(Follower *f) {
    uint64_t index;
    PyObject *word = f->key && f->words && PyDict_Check(f->words) ? PyDict_GetItemWithError(f->words, f->key) : NULL;
    if (word && number_in(f, word, NAME_INDEX, &index)) return index;
    PyErr_Clear();
    return UINT64_MAX;
}

bool fence_from(PyObject *one, struct pb_fence *to) {
    uint64_t *numbers[] = {&to->timeline, &to->word, &to->value};
    for (Py_ssize_t i = 0; i < 3; i++) {
        PyObject *number = PySequence_GetItem(one, i);
        *numbers[i] = number ? PyLong_AsUnsignedLongLong(number) : 0;
        Py_XDECREF(number);
        if (PyErr_Occurred()) return false;
    }
    return true;
}

// Polls a fence until the fence is reached or the time is `*until`. If `*until` is 0 and the fence is not reached, the function first sets
// `*until` to now plus `patience`.
static Reach poll_fence(Follower *f, const struct pb_fence *fence, uint64_t mine, int64_t *until) {
    if (fence->timeline == f->id && fence->word == mine) return REACHED; // the fence is of the stream's own earlier work
    Reach reach = look(f, fence);
    if (reach != PENDING) return reach;
    if (!*until) *until = pb_now() + (int64_t)(f->patience * 1e9);
    return poll_word(f, fence, *until);
}

// poll(fences, write): waits a short time for the fences. Returns a list of the fences that are still not reached, each as a tuple of
// timeline, word and value; None: the caller must handle the fences with a `LeaseState`. `fences` can also be a frame, which has at most
// one fence.
static PyObject *poll(Follower *f, PyObject *const *args, Py_ssize_t given) {
    if (!count_is(given, 2, 2, "poll")) return NULL;
    int write = PyObject_IsTrue(args[1]);
    struct pb_fence fence;
    bool framed = PyObject_TypeCheck(args[0], f->state->frame);
    Py_ssize_t count = framed ? frame_fence(args[0], &fence) : PySequence_Size(args[0]);
    if (write < 0 || count < 0) return NULL;
    if (!f->timelines || !f->own || !has_timeline(f)) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }
    PyObject *left = PyList_New(0);
    uint64_t mine = count && left ? own_word(f) : 0;
    int64_t until = 0;
    for (Py_ssize_t i = 0; left && i < count; i++) {
        PyObject *one = framed ? NULL : PySequence_GetItem(args[0], i);
        Reach reach = framed || (one && fence_from(one, &fence)) ? poll_fence(f, &fence, mine, &until) : RAISED;
        if (reach == PENDING) {
            PyObject *triple = Py_BuildValue("KKK", (unsigned long long)fence.timeline, (unsigned long long)fence.word, (unsigned long long)fence.value);
            if (!triple || PyList_Append(left, triple)) reach = RAISED;
            Py_XDECREF(triple);
        }
        Py_XDECREF(one);
        if (reach == RAISED) Py_CLEAR(left);
        if (reach == UNKNOWN || (reach == DIED && !write)) {
            Py_DECREF(left);
            Py_RETURN_NONE;
        }
    }
    if (left && until) {
        double doubled = 2 * f->patience < f->longest ? 2 * f->patience : f->longest;
        f->patience = PyList_Size(left) ? doubled : f->shortest;
    }
    return left;
}

bool follower_is_anywhere(const Follower *f) { return f->anywhere; }

// Whether the follower's stream may write the memory of a loan now. Never waits. False: Python code must check the fences.
bool follower_may_write(Follower *f, const struct pb_fence *fences, size_t count) {
    if (!f->anywhere || !f->timelines || !f->own || !has_timeline(f)) {
        PyErr_Clear();
        return false;
    }
    uint64_t mine = own_word(f);
    for (size_t i = 0; i < count; i++)
        if (!(fences[i].timeline == f->id && fences[i].word == mine) && look(f, &fences[i]) > DIED) return false;
    return true;
}

// Writing

// Makes the stream write the next value of its word. Sets `*word` and `*value`. The caller holds the lock that `is_owned` checks. False:
// Python code must make the stream write the value.
static bool write_locked(Follower *f, uint64_t *word, uint64_t *value) {
    typedef int Write(void *stream, uint64_t address, uint64_t value, unsigned flags);
    PyObject *closed = attribute(f, f->own, NAME_CLOSED);
    bool open = closed == Py_False;
    Py_XDECREF(closed);
    PyObject *entry = open && f->key && f->words && PyDict_Check(f->words) ? PyDict_GetItemWithError(f->words, f->key) : NULL;
    if (!entry || !number_in(f, entry, NAME_INDEX, word) || !number_in(f, entry, NAME_VALUE, value)) return false;
    if (stream_is_captured(f->capturing, f->stream)) return false;
    Py_INCREF(entry);
    ++*value;
    PyObject *next = PyLong_FromUnsignedLongLong(*value);
    int result = -1;
    if (next) {
        // If the stream's queue is full, the driver's function waits, so let other Python threads run.
        Py_BEGIN_ALLOW_THREADS
        result = ((Write *)(uintptr_t)f->function)((void *)(uintptr_t)f->stream, f->address + 8 * *word, *value, 0);
        Py_END_ALLOW_THREADS
    }
    bool wrote = !result && !PyObject_SetAttr(entry, f->state->names[NAME_VALUE], next);
    Py_XDECREF(next);
    Py_DECREF(entry);
    return wrote;
}

// Makes the stream write its next fence, returns the fence, and sets `*word` and `*value`. NULL without an exception: Python code must make
// the stream write the fence.
PyObject *follower_write(Follower *f, uint64_t *word, uint64_t *value) {
    bool whole = f->function && f->capturing && f->own && f->is_owned && f->acquire && f->release && f->fence;
    if (!whole || !f->anywhere || !has_timeline(f)) return NULL;
    PyObject *owned = PyObject_CallNoArgs(f->is_owned);
    Py_XDECREF(owned);
    if (owned != Py_False) return NULL; // this is a finaliser in the thread that holds the lock
    // The call of `acquire` waits while another thread holds the lock. If a signal handler raises an error during the wait, this thread
    // does not get the lock.
    PyObject *release = Py_NewRef(f->release), *taken = PyObject_CallNoArgs(f->acquire);
    if (!taken) return Py_DECREF(release), NULL;
    Py_DECREF(taken);
    bool wrote = write_locked(f, word, value);
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *left = PyObject_CallNoArgs(release);
    Py_XDECREF(left), Py_DECREF(release);
    if (type) PyErr_Restore(type, error, trace);
    if (!wrote || !left) return NULL;
    PyObject *numbers = Py_BuildValue("KKK", f->id, (unsigned long long)*word, (unsigned long long)*value);
    PyObject *fence = numbers && f->fence ? PyObject_CallObject(f->fence, numbers) : NULL;
    Py_XDECREF(numbers);
    return fence;
}

// queue(): makes the stream write its next fence, and returns the fence; None: Python must make the stream write the fence.
static PyObject *queue(Follower *f, PyObject *ignored) {
    (void)ignored;
    uint64_t word, value;
    PyObject *fence = follower_write(f, &word, &value);
    if (fence || PyErr_Occurred()) return fence;
    Py_RETURN_NONE;
}

// Life

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs; // only the subclass in Python uses the arguments
    Follower *self = (Follower *)PyType_GenericAlloc(type, 0);
    if (self) self->state = state_of_base(type);
    return (PyObject *)self;
}

#define EACH(f) {&f->timelines, &f->own, &f->key, &f->words, &f->is_owned, &f->acquire, &f->release, &f->fence}

static int traverse(Follower *self, visitproc visit, void *arg) {
    PyObject **each[] = EACH(self);
    Py_VISIT(Py_TYPE((PyObject *)self));
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) Py_VISIT(*each[i]);
    return 0;
}

static int clear(Follower *self) {
    PyObject **each[] = EACH(self);
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) Py_CLEAR(*each[i]);
    return 0;
}

static void dealloc(Follower *self) {
    PyObject_GC_UnTrack(self);
    clear(self);
    free_object(self);
}

#define OBJECT(name) {#name, T_OBJECT, offsetof(Follower, name), 0, NULL}
#define NUMBER(name) {#name, T_ULONGLONG, offsetof(Follower, name), 0, NULL}
#define SECONDS(name) {#name, T_DOUBLE, offsetof(Follower, name), 0, NULL}
static PyMemberDef members[] = {
    OBJECT(timelines), OBJECT(own), OBJECT(key), OBJECT(words), OBJECT(is_owned), OBJECT(acquire), OBJECT(release), OBJECT(fence),
    NUMBER(id), NUMBER(capturing), NUMBER(function), NUMBER(stream), NUMBER(address), SECONDS(patience), SECONDS(shortest), SECONDS(longest),
    {"anywhere", T_BOOL, offsetof(Follower, anywhere), 0, NULL}, {NULL, 0, 0, 0, NULL},
};
static PyMethodDef methods[] = {
    {"poll", (PyCFunction)(void (*)(void))poll, METH_FASTCALL, NULL},
    {"queue", (PyCFunction)queue, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, new}, {Py_tp_members, members}, {Py_tp_methods, methods}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc}, {0, NULL},
};
PyType_Spec follower_spec = {
    "poolbridge._native.Follower", sizeof(Follower), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, slots,
};
