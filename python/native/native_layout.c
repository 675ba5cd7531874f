// Reads the layout of a buffer of several arrays, docs/protocol.md, in one pass. A layout may have 150,000 arrays, and a program that asks for a
// model waits for this. Only plain layouts are read: poolbridge._memory.layout reads any other, and says what is wrong with it.
#include "native.h"

#include <string.h>

typedef struct {
    const unsigned char *at, *end;
} Bytes;

// Skips `size` bytes that are `expected`.
static bool skip(Bytes *b, const char *expected, size_t size) {
    if ((size_t)(b->end - b->at) < size || memcmp(b->at, expected, size) != 0) return false;
    b->at += size;
    return true;
}

// Reads a number of 0 to 2^63 - 1 in its shortest form.
static bool number(Bytes *b, uint64_t *to) {
    if (b->at == b->end) return false;
    unsigned first = *b->at++;
    *to = first;
    if (first < 0x80) return true;
    if (first < 0xCC || first > 0xCF) return false;
    size_t size = (size_t)1 << (first - 0xCC);
    if ((size_t)(b->end - b->at) < size) return false;
    *to = 0;
    for (size_t i = 0; i < size; i++) *to = *to << 8 | *b->at++;
    return *to >> 63 == 0 && *to >= (size == 1 ? 0x80 : (uint64_t)1 << (4 * size));
}

// Reads the length of a string or an array: `few` is the first byte for a length of 0 to `most`, and `many` that of a longer one, whose length
// has `size` bytes.
static bool length(Bytes *b, unsigned few, unsigned most, unsigned many, size_t size, size_t *to) {
    if (b->at == b->end) return false;
    unsigned first = *b->at++;
    if (first >= few && first <= few + most) return *to = first - few, true;
    if (first != many || (size_t)(b->end - b->at) < size) return false;
    *to = 0;
    for (size_t i = 0; i < size; i++) *to = *to << 8 | *b->at++;
    return *to > most;
}

// Reads a name of printable ASCII.
static PyObject *name(Bytes *b) {
    size_t size;
    if (!length(b, 0xA0, 31, 0xD9, 1, &size) || !size || (size_t)(b->end - b->at) < size) return NULL;
    for (size_t i = 0; i < size; i++)
        if (b->at[i] < 0x20 || b->at[i] > 0x7E) return NULL;
    b->at += size;
    return PyUnicode_FromStringAndSize((const char *)b->at - size, (Py_ssize_t)size);
}

// Skips the keys `dt`, `sh` and `st` of a Tensor and their values. Python decodes them, once for all arrays that have the same.
static bool skip_form(Bytes *b, unsigned *keys) {
    size_t size;
    if (!skip(b, "\xA2" "dt", 3) || !length(b, 0xA0, 31, 0xD9, 1, &size) || (size_t)(b->end - b->at) < size) return false;
    b->at += size;
    *keys = 1;
    static const char *const lists[] = {"\xA2" "sh", "\xA2" "st"};
    for (int i = 0; i < 2; i++) {
        if (!skip(b, lists[i], 3)) continue;
        ++*keys;
        if (!length(b, 0x90, 15, 0xDC, 2, &size)) return false;
        for (; size && b->at < b->end; size--) {
            unsigned first = *b->at++;
            size_t more = first >= 0xCC && first <= 0xCF ? (size_t)1 << (first - 0xCC) : first >= 0xD0 && first <= 0xD3 ? (size_t)1 << (first - 0xD0) : 0;
            if ((size_t)(b->end - b->at) < more) return false;
            b->at += more;
        }
        if (size) return false;
    }
    return true;
}

// Adds an array: its name to `names`, with the number of names before it; its form, which is a Tensor without an offset, to `forms`; and the
// number of its form and its offset to `places`. The result is 1; 0: it is not plain; -1: there is an exception.
static int add(Bytes *b, PyObject *names, PyObject *forms, PyObject *places) {
    if (!skip(b, "\x82\xA2nm", 4)) return 0;
    PyObject *key = name(b), *form = NULL, *known = NULL, *count = NULL;
    if (!key) return PyErr_Occurred() ? -1 : 0;
    int result = 0;
    unsigned keys, given;
    uint64_t place[2] = {0, 0};
    if (!skip(b, "\xA1t", 2) || b->at == b->end) goto end;
    given = *b->at++;
    const unsigned char *begin = b->at;
    if (!skip_form(b, &keys)) goto end;
    Py_ssize_t size = b->at - begin;
    unsigned char header = (unsigned char)(0x80 | keys);
    if (skip(b, "\xA2of", 3)) {
        keys++;
        if (!number(b, &place[1]) || !place[1]) goto end;
    }
    if (given != (0x80 | keys)) goto end;
    result = -1;
    form = PyBytes_FromStringAndSize((const char *)begin - 1, size + 1);
    count = PyLong_FromSsize_t(PyDict_Size(forms));
    if (!form || !count) goto end;
    *PyBytes_AsString(form) = (char)header;
    if (!(known = Py_XNewRef(PyDict_GetItemWithError(forms, form)))) {
        if (PyErr_Occurred() || PyDict_SetItem(forms, form, count)) goto end;
        known = Py_NewRef(count);
    }
    place[0] = PyLong_AsUnsignedLongLong(known);
    Py_ssize_t before = PyDict_Size(names), at = PyByteArray_Size(places);
    Py_DECREF(count);
    if (!(count = PyLong_FromSsize_t(before)) || PyDict_SetItem(names, key, count)) goto end;
    if (PyDict_Size(names) == before) {
        result = 0;
        goto end;
    }
    if (PyByteArray_Resize(places, at + (Py_ssize_t)sizeof place)) goto end;
    memcpy(PyByteArray_AsString(places) + at, place, sizeof place);
    result = 1;
end:
    Py_DECREF(key), Py_XDECREF(form), Py_XDECREF(known), Py_XDECREF(count);
    return result;
}

PyObject *read_layout(PyObject *module, PyObject *layout) {
    (void)module;
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(layout, &data, &size)) return NULL;
    PyObject *names = PyDict_New(), *forms = PyDict_New(), *places = PyByteArray_FromStringAndSize(NULL, 0);
    int result = names && forms && places ? 1 : -1;
    const unsigned char *at = (const unsigned char *)data, *end = at + size;
    while (result == 1 && at < end) {
        result = 0;
        if (end - at < 4) break;
        uint32_t bytes = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        at += 4;
        if (bytes > PB_LAYOUT || (size_t)(end - at) < bytes) break;
        Bytes part = {at, at + bytes};
        at += bytes;
        size_t count;
        if (!skip(&part, "\x81\xA2" "ar", 4) || !length(&part, 0x90, 15, 0xDC, 2, &count) || count > PB_ELEMENTS) break;
        result = 1;
        for (; result == 1 && count; count--) result = add(&part, names, forms, places);
        if (result == 1 && part.at != part.end) result = 0;
    }
    PyObject *found = result == 1 && PyDict_Size(names) ? PyTuple_Pack(3, names, forms, places) : result < 0 ? NULL : Py_NewRef(Py_None);
    Py_XDECREF(names), Py_XDECREF(forms), Py_XDECREF(places);
    return found;
}
