// Capsules of Arrow's C data interface. Python fills in the structures; libraries release them in any thread.
#include "native.h"

#include <dlfcn.h>
#include <string.h>

typedef struct {
    void (*release)(char *structure);
    PyObject *keeper; // keeps all that the structure refers to
} Tail; // the last fields of an ArrowSchema and of an ArrowArray, with which an ArrowDeviceArray begins

enum { IN_SCHEMA = 7 * 8, IN_ARRAY = 8 * 8 };

// Whether the interpreter ends. Until CPython 3.13, the limited API does not have the function.
static bool ends(void) {
    int (*found)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (!found) found = (int (*)(void))dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    return !Py_IsInitialized() || (found && found());
}

static void release(Tail *tail) {
    tail->release = NULL;
    if (ends()) return; // CPython would end this thread, in code that may not be left so
    PyGILState_STATE state = PyGILState_Ensure();
    Py_CLEAR(tail->keeper);
    PyGILState_Release(state);
}

static void release_schema(char *schema) { release((Tail *)(schema + IN_SCHEMA)); }
static void release_array(char *array) { release((Tail *)(array + IN_ARRAY)); }

static bool is_schema(const char *name) { return !strcmp(name, "arrow_schema"); }

static void destroy(PyObject *capsule) {
    const char *name = PyCapsule_GetName(capsule);
    char *structure = PyCapsule_GetPointer(capsule, name);
    Tail *tail = (Tail *)(structure + (is_schema(name) ? IN_SCHEMA : IN_ARRAY));
    if (tail->release) tail->release(structure); // else a library has moved the structure elsewhere
    Py_DECREF(PyCapsule_GetContext(capsule));
}

// arrow_capsule(kind, address, structure, keeper): `kind` is an index of `names`, and `structure` owns the memory at `address`.
PyObject *arrow_capsule(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    static const char *const names[] = {"arrow_schema", "arrow_array", "arrow_device_array"};
    uint64_t kind, address;
    PyObject *invalid = ((State *)PyModule_GetState(module))->invalid;
    if (!count_is(given, 4, 4, "arrow_capsule") || !number_to(invalid, args[0], 2, "a kind", &kind) ||
        !number_to(invalid, args[1], UINT64_MAX, "an address", &address))
        return NULL;
    char *structure = (char *)(uintptr_t)address;
    PyObject *capsule = PyCapsule_New(structure, names[kind], destroy);
    if (!capsule) return NULL;
    PyCapsule_SetContext(capsule, Py_NewRef(args[2]));
    *(Tail *)(structure + (kind ? IN_ARRAY : IN_SCHEMA)) = (Tail){kind ? release_array : release_schema, Py_NewRef(args[3])};
    return capsule;
}
