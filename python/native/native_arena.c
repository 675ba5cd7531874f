// The types Arena and Chunks. An arena is a buffer that is divided into chunks; Chunks has the chunks of a publisher, and does the publisher's
// work for a frame if the publisher does not have to wait or to call the service.
//
// Each method here except `send_after` and `publish` is one step for Python: no signal handler, finaliser or other thread runs during the
// method before it has done its work. In any unusual case a method returns None or False, and Python code handles the case.
#include "native.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    struct pb_arena *arena; // NULL: not divided yet
} Arena;

typedef struct {
    PyObject_HEAD
    struct pb_chunks core;
    PyObject *arenas;    // list of Arena
    PyObject *owner;     // the native producer, or None
    PyObject *timelines; // the session's timelines, or None
    PyObject *stream;    // the stream that wrote a loan last, or None
    PyObject *follower;  // the Follower of `stream`, or None
    PyObject *following; // the Follower of the stream that writes the array on loan, or None
    unsigned long long description_id; // id of the description of an arena's first chunk; 0: not set yet
    unsigned long long timeline;       // id of the session's own timeline
    unsigned long long nbytes;         // bytes of a frame
    double used;                       // when the publisher last took or published an array
    char closed, busy, on_streams;
    State *state; // state of the module, which the type keeps alive
    char *described; // the description of each chunk, but for its base, and the layout
} Chunks;

// Arenas

static PyObject *new_arena(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs; // only the subclass in Python uses the arguments
    return PyType_GenericAlloc(type, 0);
}

static void dealloc_arena(Arena *self) {
    PyObject_GC_UnTrack(self);
    if (self->arena) pb_drop_arena(self->arena);
    free_object(self);
}

static int traverse_arena(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static PyObject *fence_list(const struct pb_fence *fences, size_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *fence = Py_BuildValue("KKK", (unsigned long long)fences[i].timeline, (unsigned long long)fences[i].word,
                                        (unsigned long long)fences[i].value);
        if (!fence || PyList_SetItem(list, (Py_ssize_t)i, fence)) Py_CLEAR(list);
    }
    return list;
}

static bool set_fences(struct pb_chunk *chunk, PyObject *fences) {
    Py_ssize_t count = PySequence_Size(fences);
    struct pb_fence fence;
    chunk->fence_count = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = PySequence_GetItem(fences, i);
        bool read = one && fence_from(one, &fence);
        Py_XDECREF(one);
        if (!read) return false;
        if (!pb_add_fence(chunk, &fence)) return PyErr_NoMemory();
    }
    return count >= 0;
}

// divide(block, buffer, chunks, stride, fences): makes the chunks. `fences` must be reached before a chunk is written.
static PyObject *divide(Arena *self, PyObject *args) {
    unsigned long long block, buffer, chunks, stride;
    PyObject *fences;
    if (!PyArg_ParseTuple(args, "KKKKO:divide", &block, &buffer, &chunks, &stride, &fences)) return NULL;
    if (self->arena || !chunks || chunks > UINT32_MAX || !stride || stride > INT64_MAX / chunks) {
        PyErr_SetString(PyExc_ValueError, "an arena is divided once, into chunks that fit into a block");
        return NULL;
    }
    struct pb_arena *arena = calloc(1, sizeof *arena + chunks * sizeof *arena->chunks);
    if (!arena) return PyErr_NoMemory();
    arena->block = block, arena->buffer = buffer, arena->stride = stride, arena->count = chunks, arena->users = 1;
    for (size_t i = 0; i < chunks; i++) {
        arena->chunks[i].arena = arena;
        if (set_fences(&arena->chunks[i], fences)) continue;
        pb_drop_arena(arena);
        return NULL;
    }
    self->arena = arena;
    Py_RETURN_NONE;
}

// take_fences(): the fences of all chunks, which the chunks forget
static PyObject *take_fences(Arena *self, PyObject *ignored) {
    (void)ignored;
    PyObject *all = PyList_New(0);
    for (size_t i = 0; all && self->arena && i < self->arena->count; i++) {
        const struct pb_chunk *chunk = &self->arena->chunks[i];
        PyObject *fences = chunk->fence_count ? fence_list(chunk->fences, chunk->fence_count) : NULL;
        if (chunk->fence_count && (!fences || PyList_SetSlice(all, PyList_Size(all), PyList_Size(all), fences))) Py_CLEAR(all);
        Py_XDECREF(fences);
    }
    for (size_t i = 0; all && self->arena && i < self->arena->count; i++) self->arena->chunks[i].fence_count = 0;
    return all;
}

static PyObject *count_of(Arena *self, void *closure) {
    return PyLong_FromSize_t(!self->arena ? 0 : closure ? self->arena->sent : self->arena->count);
}

// Chunks: life

static PyObject *new_chunks(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs; // only the subclass in Python uses the arguments
    Chunks *self = (Chunks *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->state = state_of_base(type);
    self->owner = Py_NewRef(Py_None);
    self->timelines = Py_NewRef(Py_None);
    self->stream = Py_NewRef(Py_None);
    self->follower = Py_NewRef(Py_None);
    self->following = Py_NewRef(Py_None);
    if ((self->arenas = PyList_New(0))) return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return NULL;
}

static struct pb_arena *arena_at(Chunks *self, Py_ssize_t at) { return ((Arena *)PyList_GetItem(self->arenas, at))->arena; }

#define EACH_CHUNK(self, chunk)                                                                                                    \
    for (Py_ssize_t a = 0; (self)->arenas && a < PyList_Size((self)->arenas); a++)                                                  \
        for (struct pb_chunk *chunk = arena_at(self, a)->chunks; chunk < arena_at(self, a)->chunks + arena_at(self, a)->count; chunk++)

// Takes the chunks of the arenas `gone` out of this publisher. Drops the arrays last, because that may run finalisers.
static void take_out(Chunks *self, PyObject *gone) {
    PyObject *following = NULL;
    for (Py_ssize_t a = 0; a < PyList_Size(gone); a++) ((Arena *)PyList_GetItem(gone, a))->arena->owner = NULL;
    struct pb_chunk *chunk = self->core.first, *loan = self->core.loan;
    self->core = (struct pb_chunks){NULL, NULL, loan && loan->arena->owner ? loan : NULL};
    for (struct pb_chunk *next; chunk; chunk = next) {
        next = chunk->next;
        if (chunk->arena->owner) pb_free_chunk(&self->core, chunk);
    }
    if (!self->core.loan) following = self->following, self->following = Py_NewRef(Py_None);
    for (Py_ssize_t a = 0; a < PyList_Size(gone); a++) {
        struct pb_arena *arena = ((Arena *)PyList_GetItem(gone, a))->arena;
        for (size_t i = 0; i < arena->count; i++) {
            PyObject *array = arena->chunks[i].array, *keeper = arena->chunks[i].keeper;
            arena->chunks[i].array = arena->chunks[i].keeper = NULL;
            Py_XDECREF(array), Py_XDECREF(keeper);
        }
    }
    Py_XDECREF(following);
}

static int traverse_chunks(Chunks *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->arenas);
    Py_VISIT(self->owner);
    Py_VISIT(self->timelines);
    Py_VISIT(self->stream);
    Py_VISIT(self->follower);
    Py_VISIT(self->following);
    EACH_CHUNK(self, chunk) {
        Py_VISIT((PyObject *)chunk->array);
        Py_VISIT((PyObject *)chunk->keeper);
    }
    return 0;
}

static int clear_chunks(Chunks *self) {
    PyObject *arenas = self->arenas;
    self->arenas = NULL;
    if (arenas) take_out(self, arenas);
    Py_XDECREF(arenas);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->timelines);
    Py_CLEAR(self->stream);
    Py_CLEAR(self->follower);
    Py_CLEAR(self->following);
    return 0;
}

static void dealloc_chunks(Chunks *self) {
    PyObject_GC_UnTrack(self);
    clear_chunks(self);
    free(self->described);
    free_object(self);
}

// publish_with(producer, timelines, timeline, description_id, description, nbytes): says what each frame has in common
static PyObject *publish_with(Chunks *self, PyObject *args) {
    PyObject *owner, *timelines;
    unsigned long long timeline, id, nbytes;
    const char *described;
    struct pb_description d;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "OOKKy#K:publish_with", &owner, &timelines, &timeline, &id, &described, &size, &nbytes)) return NULL;
    if (Py_TYPE(owner) != self->state->producer || size < PB_DESCRIPTION || !id || nbytes > INT64_MAX ||
        !pb_check_description(described, &d) || d.layout_bytes + PB_DESCRIPTION != (size_t)size) {
        PyErr_SetString(self->state->invalid, "a publisher needs a native producer and a description in the form of docs/streams.md");
        return NULL;
    }
    PyObject *before[] = {self->owner, self->timelines};
    char *copy = malloc((size_t)size);
    if (!copy) return PyErr_NoMemory();
    free(self->described);
    self->described = memcpy(copy, described, (size_t)size);
    self->timeline = timeline, self->description_id = id, self->nbytes = nbytes;
    self->owner = Py_NewRef(owner), self->timelines = Py_NewRef(timelines);
    Py_XDECREF(before[0]), Py_XDECREF(before[1]);
    Py_RETURN_NONE;
}

// add(arena): adds an arena, whose chunks are free
static PyObject *add(Chunks *self, PyObject *one) {
    struct pb_arena *arena = PyObject_TypeCheck(one, self->state->arena) ? ((Arena *)one)->arena : NULL;
    if (!arena || arena->owner || arena->sent || !self->arenas || self->nbytes > arena->stride) {
        PyErr_SetString(PyExc_ValueError, "expected an arena that no publisher uses, with chunks for this publisher's frames");
        return NULL;
    }
    if (PyList_Append(self->arenas, one)) return NULL;
    arena->owner = &self->core;
    for (size_t i = 0; i < arena->count; i++) pb_free_chunk(&self->core, &arena->chunks[i]);
    Py_RETURN_NONE;
}

// let_go(free): takes all arenas out of this publisher and returns them. If `free` is true, leaves those with a chunk that is not free, and
// all while a call waits for a chunk.
static PyObject *let_go(Chunks *self, PyObject *free_only) {
    int only = PyObject_IsTrue(free_only);
    PyObject *gone = only < 0 ? NULL : PyList_New(0), *kept = gone ? PyList_New(0) : NULL;
    const struct pb_chunk *loan = self->core.loan;
    bool waits = self->busy && !loan, failed = !kept;
    for (Py_ssize_t a = 0; !failed && self->arenas && a < PyList_Size(self->arenas); a++) {
        const struct pb_arena *arena = arena_at(self, a);
        bool stays = only && (waits || arena->sent || (loan && loan->arena == arena));
        failed = PyList_Append(stays ? kept : gone, PyList_GetItem(self->arenas, a));
    }
    if (failed) {
        Py_XDECREF(gone), Py_XDECREF(kept);
        return NULL;
    }
    PyObject *before = self->arenas;
    self->arenas = kept;
    Py_XDECREF(before);
    take_out(self, gone);
    return gone;
}

// Loans

// Returns the publisher's producer, or NULL if Python must handle the case.
static Member *at_hand(Chunks *self) {
    if (self->closed || self->busy || !self->owner || Py_TYPE(self->owner) != self->state->producer) return NULL;
    Member *m = (Member *)self->owner;
    return m->open && !m->closing && !pb_forked(m->ch->life) ? m : NULL;
}

// Whether the CPU may write a chunk now. Removes the fences that are reached.
static bool is_reached(Chunks *self, struct pb_chunk *chunk) {
    while (chunk->fence_count && fence_is_over(self->state, self->timelines, &chunk->fences[chunk->fence_count - 1])) chunk->fence_count--;
    return !chunk->fence_count;
}

// Puts a free chunk on loan. A stream waits for the chunk's fences, so it gets the chunk that came back first; the CPU gets a chunk whose
// fences are reached. NULL: there is none.
static struct pb_chunk *put_on_loan(Chunks *self) {
    struct pb_chunk *before = NULL, *chunk = self->core.first;
    while (chunk && !self->on_streams && !is_reached(self, chunk)) before = chunk, chunk = chunk->next;
    if (!chunk) return NULL;
    *(before ? &before->next : &self->core.first) = chunk->next;
    if (self->core.last == chunk) self->core.last = before;
    return self->core.loan = chunk;
}

// take(): returns the array on loan. If there is none, puts a free chunk on loan and returns its array. None: there is no loan, or the loan
// has no array.
static PyObject *take(Chunks *self, PyObject *ignored) {
    (void)ignored;
    struct pb_chunk *chunk = self->core.loan;
    if (!chunk) {
        Member *m = at_hand(self);
        if (!m) Py_RETURN_NONE;
        if (!(chunk = put_on_loan(self))) { // looks for chunks that came back only then, because one look finds several
            pb_reclaim(producer_core(m), false);
            if (!(chunk = put_on_loan(self))) Py_RETURN_NONE;
        }
        self->used = (double)pb_now() / 1e9;
    } else if (!at_hand(self)) Py_RETURN_NONE;
    return Py_NewRef(chunk->array ? (PyObject *)chunk->array : Py_None);
}

// put_on_loan(): as `take` for a call of this publisher that waits. Returns whether a chunk is on loan.
static PyObject *loan_waiting(Chunks *self, PyObject *ignored) {
    (void)ignored;
    if (!self->core.loan && !self->closed && put_on_loan(self)) self->used = (double)pb_now() / 1e9;
    return PyBool_FromLong(self->core.loan != NULL);
}

static bool on_loan(Chunks *self) {
    if (!self->core.loan) PyErr_SetString(self->state->released, "there is no array on loan");
    return self->core.loan;
}

static PyObject *arena_of(Chunks *self, const struct pb_chunk *chunk) {
    for (Py_ssize_t a = 0; self->arenas && a < PyList_Size(self->arenas); a++)
        if (arena_at(self, a) == chunk->arena) return PyList_GetItem(self->arenas, a);
    return Py_None;
}

static uint64_t index_of(const struct pb_chunk *chunk) { return (uint64_t)(chunk - chunk->arena->chunks); }

static PyObject *loan(Chunks *self, void *closure) {
    (void)closure;
    const struct pb_chunk *chunk = self->core.loan;
    if (!chunk) Py_RETURN_NONE;
    return Py_BuildValue("OKOO", arena_of(self, chunk), (unsigned long long)(index_of(chunk) * chunk->arena->stride),
                         chunk->keeper ? (PyObject *)chunk->keeper : Py_None, chunk->array ? (PyObject *)chunk->array : Py_None);
}

// fit(array, keeper): sets the array of the loan, and the state that keeps the array's memory mapped
static PyObject *fit(Chunks *self, PyObject *const *args, Py_ssize_t given) {
    if (!count_is(given, 2, 2, "fit") || !on_loan(self)) return NULL;
    struct pb_chunk *chunk = self->core.loan;
    PyObject *before[] = {chunk->array, chunk->keeper};
    chunk->array = args[0] == Py_None ? NULL : Py_NewRef(args[0]);
    chunk->keeper = Py_NewRef(args[1]);
    Py_XDECREF(before[0]), Py_XDECREF(before[1]);
    Py_RETURN_NONE;
}

// put_back(): ends the loan; its chunk is the next one on loan
static PyObject *put_back(Chunks *self, PyObject *ignored) {
    (void)ignored;
    struct pb_chunk *chunk = self->core.loan;
    if (chunk) {
        self->core.loan = NULL;
        chunk->next = self->core.first;
        self->core.first = chunk;
        if (!chunk->next) self->core.last = chunk;
    }
    Py_RETURN_NONE;
}

static PyObject *loan_fences(Chunks *self, void *closure) {
    (void)closure;
    return on_loan(self) ? fence_list(self->core.loan->fences, self->core.loan->fence_count) : NULL;
}

static int set_loan_fences(Chunks *self, PyObject *fences, void *closure) {
    (void)closure;
    return fences && on_loan(self) && set_fences(self->core.loan, fences) ? 0 : -1;
}

// pending: the fences of the free chunk that came back first; the CPU may write none of the free chunks yet
static PyObject *pending(Chunks *self, void *closure) {
    (void)closure;
    return fence_list(self->core.first ? self->core.first->fences : NULL, self->core.first ? self->core.first->fence_count : 0);
}

// (chunks, free chunks)
static PyObject *counts(Chunks *self, void *closure) {
    (void)closure;
    Py_ssize_t all = 0, unused = 0;
    for (Py_ssize_t a = 0; self->arenas && a < PyList_Size(self->arenas); a++) all += (Py_ssize_t)arena_at(self, a)->count;
    for (struct pb_chunk *chunk = self->core.first; chunk; chunk = chunk->next) unused++;
    return Py_BuildValue("nn", all, unused);
}

// Publishing

typedef struct {
    Chunks *chunks;
    struct pb_publication what;
    bool waits;
    uint64_t number;
} Sending;

// Publishes the array on loan if the channel has room. PB_NOT_HELD: it is not on loan any more.
static enum pb_result try_send(Member *m, void *with) {
    Sending *sending = with;
    Chunks *self = sending->chunks;
    struct pb_chunk *chunk = sending->what.chunk;
    if (self->closed || self->core.loan != chunk) return PB_NOT_HELD;
    struct pb_fence fence = {self->timeline, sending->what.word, sending->what.value};
    if (fence.value && !chunk->fence_room && !pb_add_fence(chunk, &fence))
        return pb_complain(m->ch, PB_NO_MEMORY, "no memory for the fence of a frame");
    enum pb_result r = pb_publish(producer_core(m), &sending->what, sending->waits, &sending->number);
    if (r) return r;
    chunk->fence_count = 0; // the fence of the frame covers the fences for which its writer has waited
    if (fence.value) pb_add_fence(chunk, &fence);
    self->core.loan = NULL;
    self->used = (double)pb_now() / 1e9;
    return PB_OK;
}

static void drop_following(Chunks *self) { // the last step of a publication, because it may run a finaliser
    PyObject *following = self->following;
    self->following = Py_NewRef(Py_None);
    Py_XDECREF(following);
}

// Fills in `sending`. Returns false, with or without an exception, if the array on loan cannot be published so.
static bool prepare(Chunks *self, PyObject *meta, uint64_t word, uint64_t value, Sending *sending) {
    char *text = NULL;
    Py_ssize_t bytes = 0;
    struct pb_chunk *chunk = self->core.loan;
    if (meta && PyBytes_AsStringAndSize(meta, &text, &bytes)) return false;
    if (!chunk || !self->description_id || bytes > PB_META || !pb_check_meta(text, (size_t)bytes)) return false;
    uint64_t base = index_of(chunk) * chunk->arena->stride;
    memcpy(self->described + PB_AT_BASE, &base, sizeof base);
    sending->chunks = self;
    sending->what = (struct pb_publication){.chunk = chunk, .block = chunk->arena->block, .buffer = chunk->arena->buffer, .bytes = self->nbytes,
                                            .description_id = self->description_id + index_of(chunk), .description = self->described,
                                            .meta = text, .meta_bytes = (uint32_t)bytes, .word = (uint32_t)word, .value = value};
    return true;
}

// Returns the frame's number; 0: the array is still on loan, with or without an exception.
static uint64_t publish_at_once(Chunks *self, PyObject *meta, uint64_t word, uint64_t value) {
    Sending sending = {0};
    Member *m = at_hand(self);
    if (!m || !prepare(self, meta, word, value, &sending) || try_send(m, &sending)) return 0;
    drop_following(self);
    return sending.number;
}

static bool fence_of(Chunks *self, PyObject *const *args, Py_ssize_t given, uint64_t *word, uint64_t *value) {
    PyObject *invalid = self->state->invalid;
    return (given < 1 || number_to(invalid, args[0], PB_WORDS - 1, "a word", word)) &&
           (given < 2 || number_to(invalid, args[1], PB_VALUE_MAX, "the value of a fence", value));
}

// send(meta=b"", word=0, value=0): publishes the loan and returns the frame's number; None: the array is still on loan.
static PyObject *send(Chunks *self, PyObject *const *args, Py_ssize_t given) {
    uint64_t word = 0, value = 0;
    if (!count_is(given, 0, 3, "send") || !fence_of(self, args + 1, given - 1, &word, &value)) return NULL;
    uint64_t number = publish_at_once(self, given ? args[0] : NULL, word, value);
    if (PyErr_Occurred()) return NULL;
    if (!number) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(number);
}

// publish(meta, word, value, timeout): publishes the loan, and waits for room in the channel. Returns the frame's number or a Condition.
static PyObject *publish(Chunks *self, PyObject *const *args, Py_ssize_t given) {
    uint64_t word = 0, value = 0;
    Sending sending = {0};
    if (!count_is(given, 4, 4, "publish") || !fence_of(self, args + 1, 2, &word, &value)) return NULL;
    if (!self->owner || Py_TYPE(self->owner) != self->state->producer || !on_loan(self)) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    Member *m = (Member *)self->owner;
    Wait how = {.limit = INT64_MAX, .freed = true, .hurry = &producer_core(m)->before};
    if (!usable(m) || !wait_of(m, args + 3, 1, &how)) return NULL;
    if (!prepare(self, args[0], word, value, &sending)) {
        if (!PyErr_Occurred()) PyErr_SetString(self->state->invalid, "the meta is not in the form of docs/streams.md");
        return NULL;
    }
    // During the wait, another thread may replace the producer and the description.
    uint64_t layout;
    memcpy(&layout, self->described + PB_AT_LAYOUT, sizeof layout);
    char *described = malloc(PB_DESCRIPTION + layout);
    if (!described) return PyErr_NoMemory();
    sending.what.description = memcpy(described, self->described, PB_DESCRIPTION + layout);
    sending.waits = how.limit;
    enum pb_result r;
    Py_INCREF((PyObject *)m);
    bool fine = wait_for(m, try_send, &sending, &how, &r);
    if (m->open && !pb_forked(m->ch->life)) pb_end_wait(producer_core(m));
    PyObject *result = NULL;
    if (fine && !r) {
        result = PyLong_FromUnsignedLongLong(sending.number);
        drop_following(self);
    } else if (fine && r == PB_NOT_HELD) PyErr_SetString(self->state->closed, "this publisher was closed");
    else if (fine) result = result_of(m, r);
    Py_DECREF((PyObject *)m);
    free(described);
    return result;
}

// Whether `stream`, which the program has passed, is `self->stream`, the stream that wrote an array of this publisher last.
static bool is_last(Chunks *self, PyObject *stream) {
    if (stream == self->stream) return stream != Py_None;
    if (!PyLong_CheckExact(stream) || !PyLong_Check(self->stream)) return false;
    int same = PyObject_RichCompareBool(stream, self->stream, Py_EQ);
    if (same < 0) PyErr_Clear();
    return same > 0;
}

// Whether streams other than the stream of `following` may still write the loan, and their work has no fence yet.
static bool has_streams(Chunks *self) {
    PyObject *keeper = self->core.loan->keeper;
    PyObject *streams = keeper ? PyObject_GetAttr(keeper, self->state->names[NAME_STREAMS]) : NULL;
    bool none = !keeper || streams == Py_None;
    Py_XDECREF(streams);
    PyErr_Clear();
    return !none;
}

// follow(stream): whether the stream may write the array on loan without a wait; False: Python code must make the stream wait first.
static PyObject *follow(Chunks *self, PyObject *stream) {
    if (!at_hand(self) || !self->core.loan || !PyObject_TypeCheck(self->follower, self->state->follower) || !is_last(self, stream))
        Py_RETURN_FALSE;
    if (self->following == self->follower && follower_is_anywhere((Follower *)self->following)) Py_RETURN_TRUE;
    if (self->following != Py_None || has_streams(self)) Py_RETURN_FALSE;
    if (!follower_may_write((Follower *)self->follower, self->core.loan->fences, self->core.loan->fence_count)) Py_RETURN_FALSE;
    PyObject *before = self->following;
    self->following = Py_NewRef(self->follower);
    Py_XDECREF(before);
    Py_RETURN_TRUE;
}

// send_after(meta, stream): makes the loan's stream write the fence of its work on the loan, and publishes the loan. Returns the frame's
// number; a tuple of word and value: the array is still on loan, with this fence; None: the array is still on loan, without a new fence.
static PyObject *send_after(Chunks *self, PyObject *const *args, Py_ssize_t given) {
    if (!count_is(given, 2, 2, "send_after")) return NULL;
    struct pb_chunk *chunk = at_hand(self) ? self->core.loan : NULL;
    if (!chunk || !PyObject_TypeCheck(self->following, self->state->follower)) Py_RETURN_NONE;
    if (args[1] != Py_None && !(self->following == self->follower && is_last(self, args[1]))) Py_RETURN_NONE;
    // Keep a reference to the follower: other threads run during the driver call, and they may replace it.
    PyObject *follower = Py_NewRef(self->following);
    uint64_t word, value, number = 0;
    PyObject *fence = follower_write((Follower *)follower, &word, &value);
    if (fence && self->core.loan == chunk) {
        struct pb_fence written = {self->timeline, word, value};
        chunk->fence_count = 0;
        if (!pb_add_fence(chunk, &written)) PyErr_NoMemory();
        else number = publish_at_once(self, args[0], word, value);
    }
    Py_XDECREF(fence), Py_DECREF(follower);
    bool fenced = fence;
    if (PyErr_Occurred()) return NULL;
    if (number) return PyLong_FromUnsignedLongLong(number);
    if (fenced) return Py_BuildValue("KK", (unsigned long long)word, (unsigned long long)value);
    Py_RETURN_NONE;
}

#define OBJECT(name) {#name, T_OBJECT, offsetof(Chunks, name), 0, NULL}
#define FLAG(name) {#name, T_BOOL, offsetof(Chunks, name), 0, NULL}
#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL
static PyMethodDef arena_methods[] = {
    {"divide", (PyCFunction)divide, METH_VARARGS, NULL},
    {"take_fences", (PyCFunction)take_fences, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef arena_getters[] = {
    {"chunks", (getter)count_of, NULL, NULL, NULL},
    {"sent", (getter)count_of, NULL, NULL, (void *)1},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot arena_slots[] = {
    {Py_tp_new, new_arena}, {Py_tp_methods, arena_methods}, {Py_tp_getset, arena_getters}, {Py_tp_traverse, traverse_arena},
    {Py_tp_dealloc, dealloc_arena}, {0, NULL},
};
PyType_Spec arena_spec = {
    "poolbridge._native.Arena", sizeof(Arena), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, arena_slots,
};

static PyMethodDef chunks_methods[] = {
    {"publish_with", (PyCFunction)publish_with, METH_VARARGS, NULL},
    {"add", (PyCFunction)add, METH_O, NULL},
    {"let_go", (PyCFunction)let_go, METH_O, NULL},
    {"take", (PyCFunction)take, METH_NOARGS, NULL},
    {"put_on_loan", (PyCFunction)loan_waiting, METH_NOARGS, NULL},
    {"fit", FAST(fit), NULL},
    {"put_back", (PyCFunction)put_back, METH_NOARGS, NULL},
    {"send", FAST(send), NULL},
    {"publish", FAST(publish), NULL},
    {"follow", (PyCFunction)follow, METH_O, NULL},
    {"send_after", FAST(send_after), NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef chunks_members[] = {
    {"arenas", T_OBJECT, offsetof(Chunks, arenas), READONLY, NULL}, {"owner", T_OBJECT, offsetof(Chunks, owner), READONLY, NULL},
    OBJECT(stream), OBJECT(follower), OBJECT(following), FLAG(closed), FLAG(busy), FLAG(on_streams),
    {"used", T_DOUBLE, offsetof(Chunks, used), 0, NULL}, {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef chunks_getters[] = {
    {"loan", (getter)loan, NULL, NULL, NULL},
    {"fences", (getter)loan_fences, (setter)set_loan_fences, NULL, NULL},
    {"pending", (getter)pending, NULL, NULL, NULL},
    {"counts", (getter)counts, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot chunks_slots[] = {
    {Py_tp_new, new_chunks}, {Py_tp_members, chunks_members}, {Py_tp_methods, chunks_methods}, {Py_tp_getset, chunks_getters},
    {Py_tp_traverse, traverse_chunks}, {Py_tp_clear, clear_chunks}, {Py_tp_dealloc, dealloc_chunks}, {0, NULL},
};
PyType_Spec chunks_spec = {
    "poolbridge._native.Chunks", sizeof(Chunks), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, chunks_slots,
};
