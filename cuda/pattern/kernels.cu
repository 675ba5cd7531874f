// The kernels of package pattern. What they compute is defined by the package's Go code, bit by bit; change both together,
// and the simulated driver's third copy, and then `make ptx`.
//
// Memory speed is the aim: accesses of 16 bytes, neighbouring threads next to each other, several of them under way in
// every thread. Memory that begins between two multiples of 16 gets its first and last elements one by one.
//
// A verification has 64 KiB under way in a multiprocessor: two vectors in each thread of 8 blocks, or four in each of 4. The
// host starts 8 blocks for every multiprocessor, so the launch bounds are for 8 or 4 of them at once: where 5 or 6 fit, the
// rest come after them and are too few. For a GPU that cannot hold so many the driver ignores the bound.

typedef unsigned int u32;
typedef unsigned long long u64;

enum {
    threads = 256, // of a block
    unroll = 4,    // vectors under way in a thread that fills
    kept = 8,      // mismatches that a result holds
    full = 8,      // blocks that a multiprocessor holds, if a thread makes do with 32 registers
    half = 4,      // and with 64
};

// ---- results ----

struct mismatch {
    u64 index, got;
};

// What a verification found. The host sets the counts to 0 and the indices to ~0 before.
struct result {
    u64 count;
    u32 lock, unused;
    mismatch first[kept]; // the lowest indices, in order
};

// Keeps a mismatch if it is among the lowest so far. It is rarely called: the last index only ever falls, so that nearly
// every caller is sent away by one look at it, without the lock.
__device__ __noinline__ void record(result *r, u64 index, u64 got) {
    volatile mismatch *first = r->first;
    while (index < first[kept - 1].index) {
        if (atomicCAS(&r->lock, 0, 1) != 0) {
            __nanosleep(100);
            continue;
        }
        __threadfence();
        if (index < first[kept - 1].index) {
            int k = kept - 1;
            for (; k > 0 && first[k - 1].index > index; k--) {
                first[k].got = first[k - 1].got;
                first[k].index = first[k - 1].index;
            }
            first[k].got = got;
            first[k].index = index;
        }
        __threadfence();
        atomicExch(&r->lock, 0);
        return;
    }
}

// ---- patterns of four-byte elements ----

// float32(scale·i + offset) in float64, rounded after each step: never as one fused operation, which rounds differently.
__device__ __forceinline__ u32 affine_at(double scale, double i, double offset) {
    return __float_as_uint(__double2float_rn(__dadd_rn(__dmul_rn(scale, i), offset)));
}

struct affine {
    double scale, offset, tolerance;

    __device__ __forceinline__ u32 at(u64 i) const { return affine_at(scale, __ull2double_rn(i), offset); }

    // One conversion for four elements: below 2^53 the sums are exact.
    __device__ __forceinline__ uint4 vector(u64 i) const {
        double d = __ull2double_rn(i);
        return make_uint4(affine_at(scale, d, offset), affine_at(scale, d + 1, offset), affine_at(scale, d + 2, offset),
                          affine_at(scale, d + 3, offset));
    }

    __device__ __forceinline__ bool same(u32 got, u32 want) const {
        if (got == want) return true;
        float g = __uint_as_float(got), w = __uint_as_float(want);
        return g == w || fabs((double)g - (double)w) <= tolerance;
    }
};

struct exactly {
    __device__ __forceinline__ bool same(u32 got, u32 want) const { return got == want; }
};

struct masked : exactly {
    u32 scale, offset, mask;

    __device__ __forceinline__ u32 at(u64 i) const { return (scale * (u32)i + offset) ^ mask; }

    __device__ __forceinline__ uint4 vector(u64 i) const {
        u32 x = scale * (u32)i + offset;
        return make_uint4(x ^ mask, (x + scale) ^ mask, (x + 2 * scale) ^ mask, (x + 3 * scale) ^ mask);
    }
};

struct frame : exactly {
    u32 salt; // of the frame's number

    static __device__ __forceinline__ u32 mix(u32 x) {
        x ^= x >> 15;
        x *= 0x2c1b3c6du;
        return x ^ x >> 13;
    }

    __device__ __forceinline__ u32 at(u64 i) const { return mix((u32)i * 0x9e3779b1u + salt); }

    __device__ __forceinline__ uint4 vector(u64 i) const { return make_uint4(at(i), at(i + 1), at(i + 2), at(i + 3)); }
};

__device__ __forceinline__ frame frame_of(u64 seq) {
    frame f;
    f.salt = (u32)seq * 0x85ebca77u + (u32)(seq >> 32) * 0xc2b2ae3du;
    return f;
}

__device__ __forceinline__ masked masked_of(u32 scale, u32 offset, u32 mask) {
    masked m;
    m.scale = scale;
    m.offset = offset;
    m.mask = mask;
    return m;
}

// Elements in front of the first multiple of 16 bytes.
__device__ __forceinline__ u64 head_of(const void *at, u64 n, u32 element) {
    u64 head = (16 - ((u64)at & 15)) % 16 / element;
    return head < n ? head : n;
}

// Calls f(index) for the elements that are not in vectors: `head` at the front, `tail` and after at the end.
template <class F> __device__ __forceinline__ void edges(u64 head, u64 tail, u64 n, F f) {
    if (blockIdx.x != 0) return;
    if (threadIdx.x < head) f((u64)threadIdx.x);
    if (tail + threadIdx.x < n) f(tail + threadIdx.x);
}

template <class P> __device__ __forceinline__ void fill(u32 *at, u64 first, u64 n, P p) {
    u64 head = head_of(at, n, 4), vectors = (n - head) / 4;
    uint4 *to = (uint4 *)(at + head);
    u64 base = first + head;
    for (u64 k = (u64)blockIdx.x * threads * unroll + threadIdx.x; k < vectors; k += (u64)gridDim.x * threads * unroll) {
#pragma unroll
        for (int j = 0; j < unroll; j++) {
            u64 v = k + j * threads;
            if (v < vectors) __stcs(to + v, p.vector(base + 4 * v));
        }
    }
    edges(head, head + 4 * vectors, n, [=](u64 i) { at[i] = p.at(first + i); });
}

// The vectors that a thread verifies at once, in which something is not the same bit by bit.
template <class P, int vectors> struct batch {
    uint4 got[vectors]; // as they were read: in the memory there may be other values now
    P p;
    u64 first, index; // of the first element: in the pattern, and in the memory
    u64 before;       // were wrong already
    result *r;
};

// Looks closer at a batch and counts its wrong elements. A thread's indices rise, so that what follows its first few is not
// among the lowest.
//
// There is one call for a batch, with one pointer, so that the loop that nearly never makes it has few branches and needs
// few registers: with a call for every vector, frames were verified at two thirds of a copy's speed on an H200.
template <class P, int vectors> __device__ __noinline__ u32 differing(const batch<P, vectors> *b) {
    u32 wrong = 0;
#pragma unroll 1
    for (u32 e = 0; e < 4 * vectors; e++) {
        u32 got = ((const u32 *)b->got)[e], i = e / 4 * (4 * threads) + e % 4;
        if (b->p.same(got, b->p.at(b->first + i))) continue;
        if (b->before + wrong++ < kept) record(b->r, b->index + i, got);
    }
    return wrong;
}

// Counts the wrong elements of vectors that are `threads` apart.
template <int vectors, class P>
__device__ __forceinline__ u32 check(const uint4 *from, P p, u64 first, u64 index, u64 before, result *r) {
    uint4 got[vectors];
    u32 bits = 0;
#pragma unroll
    for (int j = 0; j < vectors; j++) got[j] = __ldcs(from + j * threads);
#pragma unroll
    for (int j = 0; j < vectors; j++) {
        uint4 want = p.vector(first + j * threads * 4);
        bits |= (got[j].x ^ want.x) | (got[j].y ^ want.y) | (got[j].z ^ want.z) | (got[j].w ^ want.w);
    }
    if (bits == 0) return 0;
    batch<P, vectors> b;
#pragma unroll
    for (int j = 0; j < vectors; j++) b.got[j] = got[j];
    b.p = p;
    b.first = first;
    b.index = index;
    b.before = before;
    b.r = r;
    return differing(&b);
}

// `under` vectors are under way in every thread.
template <int under, class P> __device__ __forceinline__ void verify(const u32 *at, u64 first, u64 n, P p, result *r) {
    u64 head = head_of(at, n, 4), vectors = (n - head) / 4, wrong = 0;
    const uint4 *from = (const uint4 *)(at + head);
    u64 base = first + head, k = (u64)blockIdx.x * threads * under + threadIdx.x;
    for (; k + (under - 1) * threads < vectors; k += (u64)gridDim.x * threads * under)
        wrong += check<under>(from + k, p, base + 4 * k, head + 4 * k, wrong, r);
#pragma unroll 1
    for (; k < vectors; k += threads) wrong += check<1>(from + k, p, base + 4 * k, head + 4 * k, wrong, r);
    edges(head, head + 4 * vectors, n, [&](u64 i) {
        u32 got = at[i];
        if (p.same(got, p.at(first + i))) return;
        wrong++;
        record(r, i, got);
    });
    if (wrong) atomicAdd(&r->count, wrong);
}

extern "C" __global__ void __launch_bounds__(threads)
poolbridge_fill_affine_f32(u32 *at, u64 first, u64 n, double scale, double offset, double tolerance) {
    fill(at, first, n, affine{scale, offset, tolerance});
}

extern "C" __global__ void __launch_bounds__(threads, half)
poolbridge_verify_affine_f32(const u32 *at, u64 first, u64 n, double scale, double offset, double tolerance, result *r) {
    verify<4>(at, first, n, affine{scale, offset, tolerance}, r);
}

extern "C" __global__ void __launch_bounds__(threads)
poolbridge_fill_masked_u32(u32 *at, u64 first, u64 n, u32 scale, u32 offset, u32 mask) {
    fill(at, first, n, masked_of(scale, offset, mask));
}

extern "C" __global__ void __launch_bounds__(threads, full)
poolbridge_verify_masked_u32(const u32 *at, u64 first, u64 n, u32 scale, u32 offset, u32 mask, result *r) {
    verify<2>(at, first, n, masked_of(scale, offset, mask), r);
}

extern "C" __global__ void __launch_bounds__(threads)
poolbridge_fill_frame_u32(u32 *at, u64 first, u64 n, u64 seq) {
    fill(at, first, n, frame_of(seq));
}

extern "C" __global__ void __launch_bounds__(threads, full)
poolbridge_verify_frame_u32(const u32 *at, u64 first, u64 n, u64 seq, result *r) {
    verify<2>(at, first, n, frame_of(seq), r);
}

// ---- Fibonacci, eight-byte elements ----

// F(n) and F(n+1), mod 2^64, by doubling.
__device__ ulonglong2 fibonacci(u64 n) {
    u64 a = 0, b = 1;
    for (int bit = 63 - __clzll((long long)n); bit >= 0; bit--) {
        u64 c = a * (2 * b - a), d = a * a + b * b;
        a = c;
        b = d;
        if (n >> bit & 1) {
            a = d;
            b = c + d;
        }
    }
    return make_ulonglong2(a, b);
}

// How a thread's vectors of two elements follow each other: the distance s between them is the same all the way, and
// F(i+s) = F(s-1)·F(i) + F(s)·F(i+1).
struct stride {
    u64 before, here, next; // F(s-1), F(s), F(s+1)

    __device__ __forceinline__ ulonglong2 after(ulonglong2 v) const {
        return make_ulonglong2(before * v.x + here * v.y, here * v.x + next * v.y);
    }
};

__device__ __forceinline__ stride stride_of(u64 elements) {
    ulonglong2 jump = fibonacci(elements - 1);
    return stride{jump.x, jump.y, jump.x + jump.y};
}

extern "C" __global__ void __launch_bounds__(threads) poolbridge_fill_fibonacci_u64(u64 *at, u64 first, u64 n) {
    u64 head = head_of(at, n, 8), vectors = (n - head) / 2;
    ulonglong2 *to = (ulonglong2 *)(at + head);
    u64 k = (u64)blockIdx.x * threads + threadIdx.x, step = (u64)gridDim.x * threads;
    if (k < vectors) {
        stride s = stride_of(2 * step);
        ulonglong2 v = fibonacci(first + head + 2 * k);
#pragma unroll 4
        for (; k < vectors; k += step) {
            __stcs(to + k, v);
            v = s.after(v);
        }
    }
    edges(head, head + 2 * vectors, n, [=](u64 i) { at[i] = fibonacci(first + i).x; });
}

// As batch, of vectors that are `apart` elements from one to the next.
template <int vectors> struct fibonacci_batch {
    ulonglong2 got[vectors], want; // want: of the first vector
    stride s;
    u64 index, apart, before;
    result *r;
};

template <int vectors> __device__ __noinline__ u32 differing_fibonacci(const fibonacci_batch<vectors> *b) {
    u32 wrong = 0;
    ulonglong2 want = b->want;
#pragma unroll 1
    for (u32 j = 0; j < vectors; j++) {
        ulonglong2 got = b->got[j];
        u64 i = b->index + j * b->apart;
        if (got.x != want.x && b->before + wrong++ < kept) record(b->r, i, got.x);
        if (got.y != want.y && b->before + wrong++ < kept) record(b->r, i + 1, got.y);
        want = b->s.after(want);
    }
    return wrong;
}

// Counts the wrong elements of vectors that are `step` apart. v is what the first ought to be, and then what the one after
// the last ought to be.
template <int vectors>
__device__ __forceinline__ u32 check_fibonacci(const ulonglong2 *from, u64 step, stride s, ulonglong2 &v, u64 index,
                                               u64 before, result *r) {
    ulonglong2 got[vectors], want = v;
    u64 bits = 0;
#pragma unroll
    for (int j = 0; j < vectors; j++) got[j] = __ldcs(from + j * step);
#pragma unroll
    for (int j = 0; j < vectors; j++) {
        bits |= (got[j].x ^ v.x) | (got[j].y ^ v.y);
        v = s.after(v);
    }
    if (bits == 0) return 0;
    fibonacci_batch<vectors> b;
#pragma unroll
    for (int j = 0; j < vectors; j++) b.got[j] = got[j];
    b.want = want;
    b.s = s;
    b.index = index;
    b.apart = 2 * step;
    b.before = before;
    b.r = r;
    return differing_fibonacci(&b);
}

extern "C" __global__ void __launch_bounds__(threads, half)
poolbridge_verify_fibonacci_u64(const u64 *at, u64 first, u64 n, result *r) {
    u64 head = head_of(at, n, 8), vectors = (n - head) / 2, wrong = 0;
    const ulonglong2 *from = (const ulonglong2 *)(at + head);
    u64 k = (u64)blockIdx.x * threads + threadIdx.x, step = (u64)gridDim.x * threads;
    if (k < vectors) {
        stride s = stride_of(2 * step);
        ulonglong2 v = fibonacci(first + head + 2 * k);
        for (; k + 3 * step < vectors; k += 4 * step)
            wrong += check_fibonacci<4>(from + k, step, s, v, head + 2 * k, wrong, r);
#pragma unroll 1
        for (; k < vectors; k += step) wrong += check_fibonacci<1>(from + k, step, s, v, head + 2 * k, wrong, r);
    }
    edges(head, head + 2 * vectors, n, [&](u64 i) {
        u64 got = at[i];
        if (got == fibonacci(first + i).x) return;
        wrong++;
        record(r, i, got);
    });
    if (wrong) atomicAdd(&r->count, wrong);
}

// ---- transforms ----

// x becomes float32(scale·x + offset), in float64 as the affine pattern.
extern "C" __global__ void __launch_bounds__(threads)
poolbridge_transform_affine_f32(u32 *at, u64 n, double scale, double offset) {
    u64 head = head_of(at, n, 4), vectors = (n - head) / 4;
    uint4 *v = (uint4 *)(at + head);
    auto f = [=](u32 x) { return affine_at(scale, (double)__uint_as_float(x), offset); };
    u64 step = (u64)gridDim.x * threads;
#pragma unroll 4
    for (u64 k = (u64)blockIdx.x * threads + threadIdx.x; k < vectors; k += step) {
        uint4 x = __ldcs(v + k);
        __stcs(v + k, make_uint4(f(x.x), f(x.y), f(x.z), f(x.w)));
    }
    edges(head, head + 4 * vectors, n, [=](u64 i) { at[i] = f(at[i]); });
}

// ---- time ----

__device__ __forceinline__ u64 now() {
    u64 ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

// Keeps its stream busy; one thread is enough.
extern "C" __global__ void poolbridge_spin(u64 ns) {
    u64 start = now();
    while (now() - start < ns) __nanosleep(200);
}

// Keeps its stream busy until a word is no longer 0, and at most for a time; one thread is enough.
extern "C" __global__ void poolbridge_hold(const u64 *gate, u64 ns) {
    u64 start = now();
    while (*(const volatile u64 *)gate == 0 && now() - start < ns) __nanosleep(200);
}
