// This file makes the module poolbridge._native. It has the module's functions for words of shared memory, and the functions that producers
// and consumers both use.
#include "native.h"

#include <errno.h>
#include <limits.h>

State *state_of(void *self) { return PyType_GetModuleState(Py_TYPE((PyObject *)self)); }

State *state_of_base(PyTypeObject *type) {
    State *state = NULL;
    for (; type && !(state = PyType_GetModuleState(type)); PyErr_Clear()) type = PyType_GetSlot(type, Py_tp_base);
    return state;
}

void free_object(void *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

// Arguments

bool count_is(Py_ssize_t given, Py_ssize_t least, Py_ssize_t most, const char *what) {
    if (given >= least && given <= most) return true;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd arguments; %zd were given", what, least, most, given);
    return false;
}

bool number_to(PyObject *invalid, PyObject *from, uint64_t most, const char *what, uint64_t *to) {
    *to = PyLong_AsUnsignedLongLong(from);
    bool fits = *to != UINT64_MAX || !PyErr_Occurred();
    if (!fits && !PyErr_ExceptionMatches(PyExc_OverflowError)) return false;
    if (fits && *to <= most) return true;
    PyErr_Clear();
    PyErr_Format(invalid, "%s must be a number from 0 to %llu, not %R", what, (unsigned long long)most, from);
    return false;
}

bool number_of(void *self, PyObject *from, uint64_t most, const char *what, uint64_t *to) {
    return number_to(state_of(self)->invalid, from, most, what, to);
}

static bool time_to(PyObject *invalid, PyObject *from, int64_t *to) {
    if (from == Py_None) {
        *to = INT64_MAX;
        return true;
    }
    double seconds = PyFloat_AsDouble(from);
    if (seconds == -1.0 && PyErr_Occurred()) return false;
    if (!(seconds >= 0)) {
        PyErr_Format(invalid, "a time must be 0 or more seconds, not %R", from);
        return false;
    }
    *to = seconds < 9e9 ? (int64_t)(seconds * 1e9) : INT64_MAX;
    return true;
}

bool wait_of(void *self, PyObject *const *args, Py_ssize_t given, Wait *to) {
    PyObject *invalid = state_of(self)->invalid;
    to->adaptive = given < 2 || args[1] == Py_None;
    return (given < 1 || time_to(invalid, args[0], &to->limit)) && (to->adaptive || time_to(invalid, args[1], &to->spin));
}

PyObject *new_member(PyTypeObject *type, PyObject *args, PyObject *kwargs, const char *third, uint64_t seats, Opening open) {
    const char *names[] = {"roster", "sequencer", third, "seat", "member", NULL};
    unsigned long long seat, member;
    int fds[3];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiiKK", (char **)names, &fds[0], &fds[1], &fds[2], &seat, &member)) return NULL;
    Member *self = (Member *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    if (seat >= seats || !member) {
        PyErr_Format(state_of(self)->invalid, "a member has a seat below %llu and a member id that is not 0", (unsigned long long)seats);
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    enum pb_result r = open(self, fds, (uint32_t)seat, member);
    self->open = true;
    if (!r) return (PyObject *)self;
    result_of(self, r);
    Py_DECREF((PyObject *)self);
    return NULL;
}

PyObject *add_file(Member *m, PyObject *const *args, Py_ssize_t given, uint64_t seats, const char *what,
                   enum pb_result (*add)(Member *, uint32_t, uint64_t, int)) {
    uint64_t seat, member, fd;
    if (!usable(m) || !count_is(given, 3, 3, what) || !number_of(m, args[0], seats - 1, "a seat", &seat) ||
        !number_of(m, args[1], UINT64_MAX, "a member id", &member) || !number_of(m, args[2], INT_MAX, "a descriptor", &fd))
        return NULL;
    enum pb_result r = add(m, (uint32_t)seat, member, (int)fd);
    return r ? result_of(m, r) : Py_NewRef(Py_None);
}

// Results

PyObject *result_of(Member *m, enum pb_result r) {
    State *state = state_of(m);
    if (r <= PB_FENCE && state->conditions[r]) return Py_NewRef(state->conditions[r]);
    if (r == PB_NOT_HELD) PyErr_SetString(state->released, "the frame is not in hand: it was released, or never taken");
    else PyErr_SetString(r == PB_NO_MEMORY ? state->memory : state->protocol, m->ch->complaint);
    return NULL;
}

PyObject *unknown(Member *m, void *closure) {
    (void)closure;
    return Py_BuildValue("IK", m->ch->unknown_seat, (unsigned long long)m->ch->unknown_member);
}

// Life

bool usable(Member *m) {
    if (m->open && !m->closing && !pb_forked(m->ch->life)) return true;
    if (!m->open || m->closing) PyErr_SetString(state_of(m)->closed, "this end of the channel is closed");
    else PyErr_SetString(state_of(m)->forked, "this end of the channel belongs to the process that forked this one: make another");
    return false;
}

PyObject *close_member(Member *m, PyObject *ignored) {
    (void)ignored;
    if (m->open && !m->closing) {
        m->closing = true;
        if (m->waiting && !pb_forked(m->ch->life)) {
            // Threads wait in methods of this member: the last of them unmaps it. Wake all threads that wait for this channel,
            // in all processes. Those of this member find that it is closing, and return; the others sleep again. Arm first,
            // because pb_wake does nothing if nobody seems to sleep.
            pb_arm(pb_published(m->ch));
            pb_wake(pb_published(m->ch));
            pb_arm(pb_freed(m->ch));
            pb_wake(pb_freed(m->ch));
        } else {
            m->unmap(m);
            m->open = false;
        }
    }
    Py_RETURN_NONE;
}

// Words of any shared memory

typedef struct {
    Py_buffer view;
    void *word;
} Word;

// Finds the word of `size` bytes at the offset args[1] of the Python buffer args[0], and stores it in `to`. If the result is true, the
// caller must release to->view.
static bool find_word(PyObject *module, PyObject *const *args, size_t size, bool write, Word *to) {
    State *state = PyModule_GetState(module);
    uint64_t offset;
    if (!number_to(state->invalid, args[1], INT64_MAX, "an offset", &offset)) return false;
    if (PyObject_GetBuffer(args[0], &to->view, write ? PyBUF_WRITABLE : PyBUF_SIMPLE)) return false;
    to->word = (char *)to->view.buf + offset;
    uint64_t bytes = (uint64_t)to->view.len;
    if (bytes >= size && offset <= bytes - size && (uintptr_t)to->word % size == 0) return true;
    PyErr_Format(state->invalid, "there is no aligned word of %zu bytes at offset %llu of %zd bytes", size,
                 (unsigned long long)offset, to->view.len);
    PyBuffer_Release(&to->view);
    return false;
}

static PyObject *load_u64(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    Word at;
    if (!count_is(given, 2, 2, "load_u64") || !find_word(module, args, 8, false, &at)) return NULL;
    uint64_t value = PB_LOAD((pb_word *)at.word);
    PyBuffer_Release(&at.view);
    return PyLong_FromUnsignedLongLong(value);
}

static PyObject *store_u64(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    Word at;
    uint64_t value;
    State *state = PyModule_GetState(module);
    if (!count_is(given, 3, 3, "store_u64") || !number_to(state->invalid, args[2], UINT64_MAX, "a value", &value) ||
        !find_word(module, args, 8, true, &at))
        return NULL;
    PB_STORE((pb_word *)at.word, value);
    PyBuffer_Release(&at.view);
    Py_RETURN_NONE;
}

static PyObject *compare_exchange_u64(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    Word at;
    uint64_t expected, value;
    State *state = PyModule_GetState(module);
    if (!count_is(given, 4, 4, "compare_exchange_u64") || !number_to(state->invalid, args[2], UINT64_MAX, "a value", &expected) ||
        !number_to(state->invalid, args[3], UINT64_MAX, "a value", &value) || !find_word(module, args, 8, true, &at))
        return NULL;
    bool exchanged = PB_CAS((pb_word *)at.word, &expected, value);
    PyBuffer_Release(&at.view);
    return PyBool_FromLong(exchanged);
}

static PyObject *barrier(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    PB_FULL_BARRIER();
    Py_RETURN_NONE;
}

static PyObject *futex_wait(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    State *state = PyModule_GetState(module);
    Word at;
    uint64_t seen;
    int64_t limit;
    if (!count_is(given, 4, 4, "futex_wait") || !number_to(state->invalid, args[2], UINT32_MAX, "a value", &seen) ||
        !time_to(state->invalid, args[3], &limit) || !find_word(module, args, 4, false, &at))
        return NULL;
    int64_t now = pb_now(), until = limit < INT64_MAX - now ? now + limit : INT64_MAX;
    int error;
    do {
        int64_t left = until > now ? until - now : 0;
        Py_BEGIN_ALLOW_THREADS error = pb_futex_wait(at.word, (uint32_t)seen, left < PB_SLICE ? left : PB_SLICE);
        Py_END_ALLOW_THREADS now = pb_now();
    } while ((error == ETIMEDOUT || error == EINTR) && !PyErr_CheckSignals() && now < until);
    PyBuffer_Release(&at.view);
    if (PyErr_Occurred()) return NULL;
    return PyBool_FromLong(!error || error == EAGAIN);
}

static PyObject *futex_wake(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    Word at;
    uint64_t most = INT_MAX;
    State *state = PyModule_GetState(module);
    if (!count_is(given, 2, 3, "futex_wake") ||
        (given > 2 && !number_to(state->invalid, args[2], INT_MAX, "a count", &most)) || !find_word(module, args, 4, false, &at))
        return NULL;
    int woken = pb_futex_wake(at.word, (int)most);
    PyBuffer_Release(&at.view);
    return PyLong_FromLong(woken);
}

enum { STREAM_WORDS = 64 }; // greatest number of words that one call of stream_words takes

bool stream_is_captured(uint64_t function, uint64_t stream) {
    typedef int IsCapturing(void *stream, int *status);
    enum { CAPTURE_IMPLICIT = 906 }; // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: work of the legacy stream would be captured, too
    int status = 0, result = ((IsCapturing *)(uintptr_t)function)((void *)(uintptr_t)stream, &status);
    return result == CAPTURE_IMPLICIT || (!result && status);
}

// stream_words(function, capturing, stream, flags, address, value, …): calls `function`, which is the driver's cuStreamWriteValue64 or
// cuStreamWaitValue64, for each pair of address and value. Stops at the first result that is not 0 and returns that result, else 0. If
// `capturing`, the driver's cuStreamIsCapturing, says that the stream's work is being captured, stream_words does not call `function` and
// returns CAPTURED.
static PyObject *stream_words(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    typedef int StreamWord(void *stream, uint64_t address, uint64_t value, unsigned flags);
    enum { BEFORE = 4, MOST = BEFORE + 2 * STREAM_WORDS, CAPTURED = -1 };
    static const char *const names[] = {"a function", "a function", "a stream", "flags", "an address", "a value"};
    State *state = PyModule_GetState(module);
    uint64_t n[MOST];
    if (!count_is(given, BEFORE, MOST, "stream_words")) return NULL;
    if (given % 2) return PyErr_Format(PyExc_TypeError, "stream_words: an address has no value");
    for (Py_ssize_t i = 0; i < given; i++)
        if (!number_to(state->invalid, args[i], i == 3 ? UINT_MAX : UINT64_MAX, names[i < BEFORE ? i : BEFORE + (i - BEFORE) % 2], &n[i]))
            return NULL;
    if (stream_is_captured(n[1], n[2])) return PyLong_FromLong(CAPTURED);
    int result = 0;
    // If the stream's queue is full, the driver's function waits, so let other Python threads run.
    Py_BEGIN_ALLOW_THREADS for (Py_ssize_t i = BEFORE; !result && i < given; i += 2)
        result = ((StreamWord *)(uintptr_t)n[0])((void *)(uintptr_t)n[2], n[i], n[i + 1], (unsigned)n[3]);
    Py_END_ALLOW_THREADS return PyLong_FromLong(result);
}

// The module

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL

// Calls a function with one argument, unless the function `ending` returns true. If the function raises an error, calls it again, because a
// signal handler may have ended it halfway.
static PyObject *call_again(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (!count_is(given, 3, 3, "call_again")) return NULL;
    PyObject *ends = PyObject_CallNoArgs(args[0]), *type, *value, *trace;
    int ending = ends ? PyObject_IsTrue(ends) : -1;
    Py_XDECREF(ends);
    if (ending) return ending < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *done = PyObject_CallFunctionObjArgs(args[1], args[2], NULL);
    if (done) return done;
    PyErr_Fetch(&type, &value, &trace);
    for (int i = 0; !done && i < PB_TRIES; i++) {
        if (PyErr_CheckSignals()) PyErr_Clear();
        done = PyObject_CallFunctionObjArgs(args[1], args[2], NULL);
        PyErr_Clear();
    }
    Py_XDECREF(done);
    PyErr_Restore(type, value, trace);
    return NULL;
}

static PyMethodDef functions[] = {
    {"load_u64", FAST(load_u64), NULL},     {"store_u64", FAST(store_u64), NULL},   {"barrier", barrier, METH_NOARGS, NULL},
    {"compare_exchange_u64", FAST(compare_exchange_u64), NULL}, {"stream_words", FAST(stream_words), NULL},
    {"futex_wait", FAST(futex_wait), NULL}, {"futex_wake", FAST(futex_wake), NULL}, {"call_again", FAST(call_again), NULL},
    {"read_layout", read_layout, METH_O, NULL},
    {"arrow_capsule", FAST(arrow_capsule), NULL},
    {NULL, NULL, 0, NULL},
};

// The names of the members of the Python enum Condition. A method returns a Condition if it has no frame or number to return. The index of
// each name is the pb_result that the method returns as this Condition.
static const char *const CONDITIONS[] = {[PB_TIMEOUT] = "TIMEOUT", [PB_NO_ROOM] = "NO_ROOM", [PB_END] = "END", [PB_ABANDONED] = "ABANDONED",
                                         [PB_GONE] = "DESTROYED",  [PB_EVICTED] = "EVICTED", [PB_UNKNOWN] = "UNKNOWN_MEMBER",
                                         [PB_FAILED] = "FAILED",   [PB_SPENT] = "UNDELIVERABLE",
                                         [PB_HANDS] = "HANDS_FULL", [PB_FENCE] = "FENCE_PENDING"};

static bool add_conditions(PyObject *module, State *state) {
    PyObject *names = PyList_New(0), *kind = NULL, *library = PyImport_ImportModule("enum");
    bool added = names && library;
    for (int i = 0; added && i <= PB_FENCE; i++) {
        PyObject *name = CONDITIONS[i] ? PyUnicode_InternFromString(CONDITIONS[i]) : NULL;
        added = !CONDITIONS[i] || (name && !PyList_Append(names, name));
        Py_XDECREF(name);
    }
    PyObject *make = added ? PyObject_GetAttrString(library, "Enum") : NULL;
    PyObject *args = make ? Py_BuildValue("(sO)", "Condition", names) : NULL;
    PyObject *kwargs = args ? Py_BuildValue("{ss}", "module", "poolbridge._native") : NULL;
    if (kwargs) kind = PyObject_Call(make, args, kwargs);
    added = kind && !PyModule_AddObjectRef(module, "Condition", kind);
    for (int i = 0; added && i <= PB_FENCE; i++)
        if (CONDITIONS[i]) added = (state->conditions[i] = PyObject_GetAttrString(kind, CONDITIONS[i]));
    Py_XDECREF(names), Py_XDECREF(library), Py_XDECREF(make), Py_XDECREF(args), Py_XDECREF(kwargs), Py_XDECREF(kind);
    return added;
}

static bool add_errors(State *state) {
    PyObject *errors = PyImport_ImportModule("poolbridge.errors");
    struct {
        PyObject **to;
        const char *name;
    } wanted[] = {{&state->protocol, "ProtocolError"},      {&state->invalid, "InvalidArgumentError"},
                  {&state->memory, "DeviceMemoryError"},    {&state->forked, "ForkError"},
                  {&state->closed, "ClosedError"},          {&state->released, "LeaseReleasedError"}};
    bool found = errors;
    for (size_t i = 0; found && i < sizeof wanted / sizeof *wanted; i++)
        found = (*wanted[i].to = PyObject_GetAttrString(errors, wanted[i].name));
    Py_XDECREF(errors);
    return found;
}

static bool add_names(State *state) {
    static const char *const names[NAMES] = {[NAME_OWN] = "own",     [NAME_PAGES] = "pages", [NAME_WORDS] = "words", [NAME_CLOSED] = "closed",
                                             [NAME_INDEX] = "index", [NAME_VALUE] = "value", [NAME_STREAMS] = "streams"};
    for (int i = 0; i < NAMES; i++)
        if (!(state->names[i] = PyUnicode_InternFromString(names[i]))) return false;
    return true;
}

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type && PyModule_AddType(module, (PyTypeObject *)type)) Py_CLEAR(type);
    return (PyTypeObject *)type;
}

// Leases have no buffer protocol: see `_native.pyi`. The error text of this function names the method to use instead.
static int no_buffer(PyObject *self, Py_buffer *view, int flags) {
    (void)self, (void)flags;
    view->obj = NULL;
    // When NumPy makes an array of a lease, NumPy first calls this function and ignores its error. An interned text makes this error cheap.
    PyObject *text = PyUnicode_InternFromString("a lease has no buffer protocol: call its method memoryview() instead");
    if (text) PyErr_SetObject(PyExc_TypeError, text);
    Py_XDECREF(text);
    return -1;
}
static PyType_Slot no_buffer_slots[] = {{Py_bf_getbuffer, no_buffer}, {0, NULL}};
static PyType_Spec no_buffer_spec = {
    "poolbridge._native.NoBuffer", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, no_buffer_slots,
};

static bool add_no_buffer(PyObject *module) {
    PyTypeObject *type = add_type(module, &no_buffer_spec);
    Py_XDECREF((PyObject *)type);
    return type;
}

static int execute(PyObject *module) {
    State *state = PyModule_GetState(module);
    pb_init();
    pb_init_spinning();
    bool made = add_errors(state) && add_names(state) && add_conditions(module, state) && (state->frame = add_type(module, &frame_spec)) &&
                (state->producer = add_type(module, &producer_spec)) && (state->consumer = add_type(module, &consumer_spec)) &&
                (state->lock = add_type(module, &lock_spec)) && (state->arena = add_type(module, &arena_spec)) &&
                (state->chunks = add_type(module, &chunks_spec)) && (state->follower = add_type(module, &follower_spec)) && add_no_buffer(module);
    return made ? 0 : -1;
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    State *state = PyModule_GetState(module);
    Py_VISIT(state->frame);
    Py_VISIT(state->producer);
    Py_VISIT(state->consumer);
    Py_VISIT(state->lock);
    Py_VISIT(state->arena);
    Py_VISIT(state->chunks);
    Py_VISIT(state->follower);
    for (int i = 0; i <= PB_FENCE; i++) Py_VISIT(state->conditions[i]);
    return 0;
}

static int clear(PyObject *module) {
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->frame);
    Py_CLEAR(state->producer);
    Py_CLEAR(state->consumer);
    Py_CLEAR(state->lock);
    Py_CLEAR(state->arena);
    Py_CLEAR(state->chunks);
    Py_CLEAR(state->follower);
    for (int i = 0; i < NAMES; i++) Py_CLEAR(state->names[i]);
    for (int i = 0; i <= PB_FENCE; i++) Py_CLEAR(state->conditions[i]);
    Py_CLEAR(state->protocol);
    Py_CLEAR(state->invalid);
    Py_CLEAR(state->memory);
    Py_CLEAR(state->forked);
    Py_CLEAR(state->closed);
    Py_CLEAR(state->released);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "The members of a channel, docs/streams.md, and a lock.", sizeof(State), functions, slots, traverse, clear, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
