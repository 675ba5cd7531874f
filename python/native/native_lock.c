// A lock whose holder also does the work that finalisers have left for the holder; see `poolbridge._sys.deferred`.
//
// The lock is written in C because CPython handles signals between the steps of Python code. If `acquire` or `release` were Python code, an
// exception of a signal handler could end them halfway. If a context manager is written in C, CPython 3.11 to 3.13 handle no signals while
// a `with` statement enters or leaves it.
#include "native.h"

typedef struct {
    PyObject_HEAD
    PyThread_type_lock lock;
    PyObject *left; // list of the work that finalisers have left
    bool held;
} Lock;

typedef struct {
    PyObject *type, *value, *trace;
} Error;

// Moves the current exception into `first`. If `first` already has an exception, drops the current exception.
static void keep(Error *first) {
    if (!PyErr_Occurred()) return;
    if (first->type) PyErr_Clear();
    else PyErr_Fetch(&first->type, &first->value, &first->trace);
}

static bool raise_kept(Error *first) {
    if (first->type) PyErr_Restore(first->type, first->value, first->trace);
    return !first->type;
}

static bool try_take(Lock *self) { return PyThread_acquire_lock(self->lock, NOWAIT_LOCK) && (self->held = true); }

// Takes the lock within `ns` nanoseconds; a negative `ns` means no limit. Returns false, with or without an exception, if
// this thread did not get the lock.
static bool take(Lock *self, int64_t ns) {
    if (try_take(self)) return true;
    int64_t until = pb_now() + ns;
    for (;;) {
        int64_t left = ns < 0 ? -1 : until - pb_now();
        PyLockStatus status;
        Py_BEGIN_ALLOW_THREADS status = PyThread_acquire_lock_timed(self->lock, ns < 0 ? -1 : left > 0 ? (left + 999) / 1000 : 0, 1);
        Py_END_ALLOW_THREADS
        if (status == PY_LOCK_ACQUIRED) return self->held = true;
        if (status == PY_LOCK_FAILURE || PyErr_CheckSignals()) return false;
    }
}

static void give_up(Lock *self) {
    self->held = false;
    PyThread_release_lock(self->lock);
}

// Does the first piece of work. If it raises an error, does it again, because a signal handler may have ended it halfway.
static void do_first(Lock *self) {
    PyObject *work = Py_NewRef(PyList_GetItem(self->left, 0));
    PyObject *done = PyList_SetSlice(self->left, 0, 1, NULL) ? NULL : PyObject_CallNoArgs(work);
    Error error = {NULL, NULL, NULL};
    for (int i = 0; !done && i < PB_TRIES; i++) {
        keep(&error);
        if (PyErr_CheckSignals()) keep(&error);
        done = PyObject_CallNoArgs(work);
    }
    keep(&error);
    Py_DECREF(work);
    Py_XDECREF(done);
    if (raise_kept(&error) || !PyErr_ExceptionMatches(PyExc_Exception)) return;
    PyErr_Fetch(&error.type, &error.value, &error.trace);
    PyErr_NormalizeException(&error.type, &error.value, &error.trace);
    PyErr_WarnFormat(PyExc_ResourceWarning, 1, "poolbridge: %R while giving memory back", error.value);
    Py_XDECREF(error.type), Py_XDECREF(error.value), Py_XDECREF(error.trace);
}

// Does all the work that finalisers have left. The caller holds the lock. After an error, for example in a signal handler, this function
// still does the rest of the work.
static void do_left(Lock *self, Error *first) {
    while (PyList_Size(self->left) > 0) {
        // Handle the signals that have arrived. Otherwise CPython would handle them during the next piece of work, and an exception
        // of a signal handler would end that piece of work halfway.
        if (PyErr_CheckSignals()) keep(first);
        do_first(self);
        keep(first);
    }
}

// Does the work that finalisers have left, if no thread holds the lock. A holder calls this function after it has released the lock.
static void settle(Lock *self, Error *first) {
    while (PyList_Size(self->left) > 0 && try_take(self)) {
        do_left(self, first);
        give_up(self);
    }
}

static PyObject *leave(Lock *self, Error *first) {
    give_up(self);
    settle(self, first);
    return raise_kept(first) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *enter(Lock *self, PyObject *ignored) {
    (void)ignored;
    Error first = {NULL, NULL, NULL};
    if (!take(self, -1)) return NULL;
    // First do the work that finalisers have left, then let the holder do its own work: if a finaliser has left the release of a lease, the
    // service must get this release before the holder's next request.
    do_left(self, &first);
    if (first.type) return leave(self, &first);
    Py_RETURN_NONE;
}

static PyObject *leave_with(Lock *self, PyObject *ignored) {
    (void)ignored;
    Error first = {NULL, NULL, NULL};
    if (self->held) return leave(self, &first);
    PyErr_SetString(PyExc_RuntimeError, "no thread holds the lock");
    return NULL;
}

static PyObject *later(Lock *self, PyObject *work) {
    Error first = {NULL, NULL, NULL};
    if (PyList_Append(self->left, work)) return NULL;
    settle(self, &first);
    return raise_kept(&first) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *rest(Lock *self, PyObject *limit) {
    Error first = {NULL, NULL, NULL};
    double seconds = PyFloat_AsDouble(limit);
    if (seconds == -1.0 && PyErr_Occurred()) return NULL;
    if (take(self, seconds > 0 ? seconds < 9e8 ? (int64_t)(seconds * 1e9) : (int64_t)9e17 : 0)) return leave(self, &first);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

// Life

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    const char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", (char **)names)) return NULL;
    Lock *self = (Lock *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->left = PyList_New(0);
    self->lock = PyThread_allocate_lock();
    if (self->left && self->lock) return (PyObject *)self;
    if (!PyErr_Occurred()) PyErr_NoMemory();
    Py_DECREF((PyObject *)self);
    return NULL;
}

static int traverse(Lock *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->left);
    return 0;
}

// The type Lock has no function `clear`: the garbage collector can clear the list `left` itself. A Lock keeps its list until `dealloc`,
// because finalisers may still add work.
static void dealloc(Lock *self) {
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->left);
    if (self->lock) {
        if (self->held) PyThread_release_lock(self->lock);
        PyThread_free_lock(self->lock);
    }
    free_object(self);
}

static PyMethodDef methods[] = {
    {"__enter__", (PyCFunction)enter, METH_NOARGS, NULL}, {"__exit__", (PyCFunction)leave_with, METH_VARARGS, NULL},
    {"later", (PyCFunction)later, METH_O, NULL},          {"rest", (PyCFunction)rest, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, new}, {Py_tp_dealloc, dealloc}, {Py_tp_methods, methods}, {Py_tp_traverse, traverse}, {0, NULL},
};
PyType_Spec lock_spec = {
    "poolbridge._native.DeferringLock", sizeof(Lock), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, slots,
};
