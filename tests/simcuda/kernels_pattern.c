// The kernels of package cuda/pattern, on the CPU. Their names, parameters and results are equal to those of the real kernels.
#include "kernel.h"

#include <stdbool.h>
#include <string.h>

enum { KEPT = 8 };

struct mismatch { uint64_t index, got; };

struct result {
    uint64_t count;
    uint32_t lock, unused;
    struct mismatch first[KEPT]; // the mismatches with the lowest indices, in order; ~0 marks an empty place
};

// One pass of a kernel over its elements.
struct pass {
    uint64_t (*at)(const struct pass *p, uint64_t i); // the bits that element i should have
    int width;
    uint64_t first, done; // first: index of the first element in the pattern; done: number of elements that are done
    double scale, offset, tolerance;
    uint32_t multiply, add, mask, salt;
    uint64_t a, b; // Fibonacci: F(first + done) and the number after it
    struct result found;
};

static float affine(const struct pass *p, double x) { return (float)(p->scale * x + p->offset); }

static uint64_t affine_at(const struct pass *p, uint64_t i) {
    float value = affine(p, (double)i);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static uint64_t masked_at(const struct pass *p, uint64_t i) { return (p->multiply * (uint32_t)i + p->add) ^ p->mask; }

static uint64_t frame_at(const struct pass *p, uint64_t i) {
    uint32_t x = (uint32_t)i * 0x9e3779b1u + p->salt;
    x ^= x >> 15;
    x *= 0x2c1b3c6du;
    return x ^ x >> 13;
}

static uint64_t fibonacci_at(const struct pass *p, uint64_t i) {
    (void)i;
    return p->a;
}

static void insert(struct result *r, struct mismatch m) {
    for (int k = 0; k < KEPT; k++) {
        if (r->first[k].index <= m.index) continue;
        struct mismatch moved = r->first[k];
        r->first[k] = m;
        m = moved;
    }
}

static bool same(const struct pass *p, uint64_t got, uint64_t want) {
    if (got == want) return true;
    if (p->at != affine_at) return false;
    float g, w;
    memcpy(&g, &got, 4);
    memcpy(&w, &want, 4);
    double difference = (double)g - (double)w;
    return g == w || (difference <= p->tolerance && -difference <= p->tolerance);
}

static void advance(struct pass *p) {
    uint64_t next = p->a + p->b;
    p->a = p->b;
    p->b = next;
    p->done++;
}

static void fill(uint8_t *at, uint64_t size, void *arg) {
    struct pass *p = arg;
    for (uint64_t k = 0; k < size; k += (uint64_t)p->width, advance(p)) {
        uint64_t bits = p->at(p, p->first + p->done);
        memcpy(at + k, &bits, (size_t)p->width);
    }
}

static void verify(uint8_t *at, uint64_t size, void *arg) {
    struct pass *p = arg;
    for (uint64_t k = 0; k < size; k += (uint64_t)p->width, advance(p)) {
        uint64_t got = 0, want = p->at(p, p->first + p->done);
        memcpy(&got, at + k, (size_t)p->width);
        if (same(p, got, want)) continue;
        p->found.count++;
        insert(&p->found, (struct mismatch){p->done, got});
    }
}

static void transform(uint8_t *at, uint64_t size, void *arg) {
    const struct pass *p = arg;
    for (uint64_t k = 0; k < size; k += 4) {
        float x;
        memcpy(&x, at + k, 4);
        x = affine(p, x);
        memcpy(at + k, &x, 4);
    }
}

// Adds the mismatches of this launch to those of earlier launches in the result, like the real kernel.
static void report(uint8_t *at, uint64_t size, void *arg) {
    const struct pass *p = arg;
    struct result r;
    if (size < sizeof r) return;
    memcpy(&r, at, sizeof r);
    r.count += p->found.count;
    for (int k = 0; k < KEPT; k++) {
        if (p->found.first[k].index != UINT64_MAX) insert(&r, p->found.first[k]);
    }
    memcpy(at, &r, sizeof r);
}

static CUresult run_fill(const struct launch *l, struct pass p) {
    p.first = l->param[1];
    uint64_t n = l->param[2];
    return n ? kernel_memory(l, l->param[0], n * (uint64_t)p.width, ACCESS_WRITE, fill, &p) : CUDA_SUCCESS;
}

static CUresult run_verify(const struct launch *l, struct pass p, int result) {
    p.first = l->param[1];
    memset(p.found.first, 0xff, sizeof p.found.first);
    uint64_t n = l->param[2];
    CUresult r = n ? kernel_memory(l, l->param[0], n * (uint64_t)p.width, ACCESS_READ, verify, &p) : CUDA_SUCCESS;
    if (r != CUDA_SUCCESS || !p.found.count) return r;
    return kernel_memory(l, l->param[result], sizeof p.found, ACCESS_WRITE, report, &p);
}

static double float64(uint64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

static struct pass affine_pass(const struct launch *l) {
    return (struct pass){.at = affine_at, .width = 4, .scale = float64(l->param[3]), .offset = float64(l->param[4]),
                         .tolerance = float64(l->param[5])};
}

static struct pass masked_pass(const struct launch *l) {
    return (struct pass){.at = masked_at, .width = 4, .multiply = (uint32_t)l->param[3],
                         .add = (uint32_t)l->param[4], .mask = (uint32_t)l->param[5]};
}

static struct pass frame_pass(const struct launch *l) {
    uint64_t seq = l->param[3];
    return (struct pass){.at = frame_at, .width = 4,
                         .salt = (uint32_t)seq * 0x85ebca77u + (uint32_t)(seq >> 32) * 0xc2b2ae3du};
}

static struct pass fibonacci_pass(const struct launch *l) {
    uint64_t n = l->param[1], a = 0, b = 1;
    for (int bit = 63; bit >= 0; bit--) {
        uint64_t c = a * (2 * b - a), d = a * a + b * b;
        bool odd = n >> bit & 1;
        a = odd ? d : c;
        b = odd ? c + d : d;
    }
    return (struct pass){.at = fibonacci_at, .width = 8, .a = a, .b = b};
}

#define PATTERN(name, result)                                                                               \
    static CUresult fill_##name(const struct launch *l) { return run_fill(l, name##_pass(l)); }             \
    static CUresult verify_##name(const struct launch *l) { return run_verify(l, name##_pass(l), result); }
PATTERN(affine, 6)
PATTERN(masked, 6)
PATTERN(frame, 4)
PATTERN(fibonacci, 3)

static CUresult transform_affine(const struct launch *l) {
    struct pass p = {.scale = float64(l->param[2]), .offset = float64(l->param[3])};
    uint64_t n = l->param[1];
    return n ? kernel_memory(l, l->param[0], n * 4, ACCESS_WRITE, transform, &p) : CUDA_SUCCESS;
}

static void load(uint8_t *at, uint64_t size, void *arg) {
    if (size == 8) *(uint64_t *)arg = __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
}

static CUresult hold(const struct launch *l) {
    uint64_t start = kernel_now(), gate = 0;
    for (unsigned round = 0; kernel_now() - start < l->param[1] && !stream_failed(l->stream);) {
        CUresult r = kernel_memory(l, l->param[0], 8, ACCESS_READ, load, &gate);
        if (r != CUDA_SUCCESS || gate) return r;
        nap(&round);
    }
    return CUDA_SUCCESS;
}

const struct kernel pattern_kernels[] = {
    {"poolbridge_fill_affine_f32", 6, {8, 8, 8, 8, 8, 8}, fill_affine},
    {"poolbridge_verify_affine_f32", 7, {8, 8, 8, 8, 8, 8, 8}, verify_affine},
    {"poolbridge_fill_masked_u32", 6, {8, 8, 8, 4, 4, 4}, fill_masked},
    {"poolbridge_verify_masked_u32", 7, {8, 8, 8, 4, 4, 4, 8}, verify_masked},
    {"poolbridge_fill_frame_u32", 4, {8, 8, 8, 8}, fill_frame},
    {"poolbridge_verify_frame_u32", 5, {8, 8, 8, 8, 8}, verify_frame},
    {"poolbridge_fill_fibonacci_u64", 3, {8, 8, 8}, fill_fibonacci},
    {"poolbridge_verify_fibonacci_u64", 4, {8, 8, 8, 8}, verify_fibonacci},
    {"poolbridge_transform_affine_f32", 4, {8, 8, 8, 8}, transform_affine},
    {"poolbridge_spin", 1, {8}, kernel_spin},
    {"poolbridge_hold", 2, {8, 8}, hold},
    {NULL, 0, {0}, NULL},
};
