// Handles for callers. A handle consists of a slot and a generation, so that a destroyed handle never names another object.
#include "sim.h"

#include <stdlib.h>

enum { SLOT_BITS = 20, SLOT_SHIFT = 4, GENERATION_SHIFT = SLOT_SHIFT + SLOT_BITS, TAG_SHIFT = 40 };
static const uint64_t tag = 0x5C;

static struct slot { void *object; enum kind kind; uint16_t generation; } *slots;
static uint32_t slot_count, slot_cursor;

void *handle_new(enum kind kind, void *object) {
    uint32_t i = 0;
    while (i < slot_count && slots[slot_cursor].object) {
        slot_cursor = (slot_cursor + 1) % slot_count;
        i++;
    }
    if (i == slot_count) {
        uint32_t more = slot_count ? slot_count * 2 : 1024;
        if (more > 1u << SLOT_BITS) return NULL;
        struct slot *grown = realloc(slots, more * sizeof *slots);
        if (!grown) return NULL;
        for (uint32_t n = slot_count; n < more; n++) grown[n] = (struct slot){0};
        slots = grown;
        slot_cursor = slot_count;
        slot_count = more;
    }
    struct slot *s = &slots[slot_cursor];
    s->object = object;
    s->kind = kind;
    s->generation++;
    uint64_t handle = tag << TAG_SHIFT | (uint64_t)s->generation << GENERATION_SHIFT | slot_cursor << SLOT_SHIFT;
    slot_cursor = (slot_cursor + 1) % slot_count;
    return (void *)handle;
}

static struct slot *slot_of(const void *handle) {
    uint64_t h = (uint64_t)handle;
    uint32_t i = (uint32_t)(h >> SLOT_SHIFT) & ((1u << SLOT_BITS) - 1);
    if (h >> TAG_SHIFT != tag || (h & ((1u << SLOT_SHIFT) - 1)) != 0 || i >= slot_count) return NULL;
    struct slot *s = &slots[i];
    return s->object && s->generation == (uint16_t)(h >> GENERATION_SHIFT) ? s : NULL;
}

void *handle_get(enum kind kind, const void *handle) {
    struct slot *s = slot_of(handle);
    return s && s->kind == kind ? s->object : NULL;
}

void handle_drop(const void *handle) {
    struct slot *s = slot_of(handle);
    if (s) s->object = NULL;
}

void handle_each(enum kind kind, void (*visit)(void *object, void *arg), void *arg) {
    for (uint32_t i = 0; i < slot_count; i++) {
        if (slots[i].object && slots[i].kind == kind) visit(slots[i].object, arg);
    }
}
