// Frames that a consumer took.
#include "native.h"

#include <string.h>

typedef struct {
    PyObject_HEAD
    struct pb_frame frame;
    PyObject *object, *description, *details; // the object kept for such frames, or NULL; copies of the description with its layout, and of event and meta
} Frame;

PyObject *new_frame(State *state, const struct pb_consumer *c, const struct pb_frame *frame) {
    // First copy the data of `frame` and `c`; these copies do not start the garbage collector. Then make the Frame object. Making the
    // object may run finalisers, and during a finaliser other threads may call `take`, which overwrites the data.
    struct pb_frame taken = *frame;
    PyObject *object = Py_XNewRef((PyObject *)taken.kept), *details = NULL, *description = NULL;
    Py_ssize_t size = (Py_ssize_t)taken.meta_bytes + (taken.event ? PB_EVENT : 0);
    if (size) details = PyBytes_FromStringAndSize((const char *)c->meta, size);
    if (!object) {
        size_t layout = c->description[PB_AT_LAYOUT / 8];
        if ((description = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(PB_DESCRIPTION + layout)))) {
            char *to = PyBytes_AsString(description);
            memcpy(to, c->description, PB_DESCRIPTION);
            if (layout) memcpy(to + PB_DESCRIPTION, c->layout, layout);
        }
    }
    bool fine = (!size || details) && (object || description);
    Frame *self = fine ? (Frame *)PyType_GenericAlloc(state->frame, 0) : NULL;
    if (self) {
        self->frame = taken;
        self->object = object;
        self->details = details;
        self->description = description;
        return (PyObject *)self;
    }
    Py_XDECREF(object), Py_XDECREF(details), Py_XDECREF(description);
    return NULL;
}

Py_ssize_t frame_fence(PyObject *frame, struct pb_fence *to) {
    const struct pb_frame *of = &((Frame *)frame)->frame;
    *to = (struct pb_fence){.timeline = of->timeline, .word = of->word, .value = of->value};
    return of->value && of->timeline;
}

static PyObject *event(Frame *self, void *closure) {
    (void)closure;
    if (!self->frame.event) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(PyBytes_AsString(self->details), PB_EVENT);
}

static PyObject *meta(Frame *self, void *closure) {
    (void)closure;
    if (!self->frame.event) return self->details ? Py_NewRef(self->details) : PyBytes_FromStringAndSize(NULL, 0);
    return PyBytes_FromStringAndSize(PyBytes_AsString(self->details) + PB_EVENT, self->frame.meta_bytes);
}

static PyObject *description(Frame *self, void *closure) {
    (void)closure;
    if (!self->description) Py_RETURN_NONE;
    struct pb_description d;
    pb_check_description(PyBytes_AsString(self->description), &d); // pb_take has checked this description before
    PyObject *shape = PyTuple_New(d.ndim), *strides = d.strided ? PyTuple_New(d.ndim) : Py_NewRef(Py_None);
    for (unsigned i = 0; shape && strides && i < d.ndim; i++) {
        PyTuple_SetItem(shape, i, PyLong_FromUnsignedLongLong(d.shape[i]));
        if (d.strided) PyTuple_SetItem(strides, i, PyLong_FromLongLong(d.strides[i]));
    }
    PyObject *all = shape && strides && !PyErr_Occurred() ? Py_BuildValue("(sOOK)", d.dtype, shape, strides, d.offset) : NULL;
    Py_XDECREF(shape), Py_XDECREF(strides);
    return all;
}

static PyObject *layout(Frame *self, void *closure) {
    (void)closure;
    Py_ssize_t bytes = self->description ? PyBytes_Size(self->description) - PB_DESCRIPTION : 0;
    return PyBytes_FromStringAndSize(bytes ? PyBytes_AsString(self->description) + PB_DESCRIPTION : NULL, bytes);
}

static int traverse(Frame *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->object);
    return 0;
}

static int clear(Frame *self) {
    Py_CLEAR(self->object);
    return 0;
}

static void dealloc(Frame *self) {
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_CLEAR(self->description);
    Py_CLEAR(self->details);
    free_object(self);
}

static PyObject *repr(Frame *self) {
    return PyUnicode_FromFormat("<poolbridge._native.Frame %llu, block %llu>", (unsigned long long)self->frame.number,
                                (unsigned long long)self->frame.block);
}

#define FIELD(name) {#name, T_ULONGLONG, offsetof(Frame, frame.name), READONLY, NULL}
static PyMemberDef members[] = {
    FIELD(number), FIELD(block), FIELD(buffer), FIELD(base), {"nbytes", T_ULONGLONG, offsetof(Frame, frame.bytes), READONLY, NULL},
    FIELD(time), FIELD(value), FIELD(description_id), FIELD(producer),
    FIELD(timeline), FIELD(missed), FIELD(delivery), {"word", T_UINT, offsetof(Frame, frame.word), READONLY, NULL},
    {"object", T_OBJECT, offsetof(Frame, object), READONLY, NULL}, {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef getters[] = {
    {"event", (getter)event, NULL, NULL, NULL},
    {"meta", (getter)meta, NULL, NULL, NULL},
    {"description", (getter)description, NULL, NULL, NULL},
    {"layout", (getter)layout, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_members, members}, {Py_tp_getset, getters}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc}, {Py_tp_repr, repr},      {0, NULL},
};
PyType_Spec frame_spec = {
    "poolbridge._native.Frame", sizeof(Frame), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots,
};
