// The kernels of package pattern. What they compute is defined by the package's Go code, bit by bit; change both together,
// and the simulated driver's third copy, and then `make ptx`.
//
// Memory speed is the aim: accesses of 16 bytes, neighbouring threads next to each other, several of them under way in
// every thread. Memory that begins between two multiples of 16 gets its first and last elements one by one.

typedef unsigned int u32;
typedef unsigned long long u64;

enum {
    threads = 256, // of a block
    unroll = 4,    // vectors under way in a thread
    kept = 8,      // mismatches that a result holds
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

// Looks closer at a vector that is not the same bit by bit, and counts its wrong elements. `before` were wrong already: a
// thread's indices rise, so that what follows its first few is not among the lowest.
template <class P>
__device__ __noinline__ u32 differing(P p, uint4 got, uint4 want, u64 index, u64 before, result *r) {
    u32 wrong = 0;
#pragma unroll 1
    for (int e = 0; e < 4; e++) {
        u32 g = e == 0 ? got.x : e == 1 ? got.y : e == 2 ? got.z : got.w;
        u32 w = e == 0 ? want.x : e == 1 ? want.y : e == 2 ? want.z : want.w;
        if (p.same(g, w)) continue;
        if (before + wrong++ < kept) record(r, index + e, g);
    }
    return wrong;
}

template <class P> __device__ __forceinline__ void verify(const u32 *at, u64 first, u64 n, P p, result *r) {
    u64 head = head_of(at, n, 4), vectors = (n - head) / 4, wrong = 0;
    const uint4 *from = (const uint4 *)(at + head);
    u64 base = first + head;
    auto check = [&](u64 v, uint4 got) {
        uint4 want = p.vector(base + 4 * v);
        if (((got.x ^ want.x) | (got.y ^ want.y) | (got.z ^ want.z) | (got.w ^ want.w)) == 0) return;
        wrong += differing(p, got, want, head + 4 * v, wrong, r);
    };
    for (u64 k = (u64)blockIdx.x * threads * unroll + threadIdx.x; k < vectors; k += (u64)gridDim.x * threads * unroll) {
        uint4 got[unroll];
        if (k + (unroll - 1) * threads < vectors) {
#pragma unroll
            for (int j = 0; j < unroll; j++) got[j] = __ldcs(from + k + j * threads);
#pragma unroll
            for (int j = 0; j < unroll; j++) check(k + j * threads, got[j]);
        } else {
#pragma unroll 1
            for (u64 v = k; v < vectors; v += threads) check(v, __ldcs(from + v));
        }
    }
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

extern "C" __global__ void __launch_bounds__(threads)
poolbridge_verify_affine_f32(const u32 *at, u64 first, u64 n, double scale, double offset, double tolerance, result *r) {
    verify(at, first, n, affine{scale, offset, tolerance}, r);
}

extern "C" __global__ void __launch_bounds__(threads)
poolbridge_fill_masked_u32(u32 *at, u64 first, u64 n, u32 scale, u32 offset, u32 mask) {
    fill(at, first, n, masked_of(scale, offset, mask));
}

extern "C" __global__ void __launch_bounds__(threads)
poolbridge_verify_masked_u32(const u32 *at, u64 first, u64 n, u32 scale, u32 offset, u32 mask, result *r) {
    verify(at, first, n, masked_of(scale, offset, mask), r);
}

extern "C" __global__ void __launch_bounds__(threads)
poolbridge_fill_frame_u32(u32 *at, u64 first, u64 n, u64 seq) {
    fill(at, first, n, frame_of(seq));
}

extern "C" __global__ void __launch_bounds__(threads)
poolbridge_verify_frame_u32(const u32 *at, u64 first, u64 n, u64 seq, result *r) {
    verify(at, first, n, frame_of(seq), r);
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

// Calls f(vector, value) for a thread's vectors of two elements, each from the one before: the distance s between them
// is the same all the way, and F(i+s) = F(s-1)·F(i) + F(s)·F(i+1).
template <class F> __device__ __forceinline__ void fibonacci_walk(u64 base, u64 vectors, F f) {
    u64 k = (u64)blockIdx.x * threads + threadIdx.x, step = (u64)gridDim.x * threads;
    if (k >= vectors) return;
    ulonglong2 jump = fibonacci(2 * step - 1), v = fibonacci(base + 2 * k);
    u64 next = jump.x + jump.y;
#pragma unroll 4
    for (; k < vectors; k += step) {
        f(k, v);
        v = make_ulonglong2(jump.x * v.x + jump.y * v.y, jump.y * v.x + next * v.y);
    }
}

extern "C" __global__ void __launch_bounds__(threads) poolbridge_fill_fibonacci_u64(u64 *at, u64 first, u64 n) {
    u64 head = head_of(at, n, 8), vectors = (n - head) / 2;
    ulonglong2 *to = (ulonglong2 *)(at + head);
    fibonacci_walk(first + head, vectors, [=](u64 k, ulonglong2 v) { __stcs(to + k, v); });
    edges(head, head + 2 * vectors, n, [=](u64 i) { at[i] = fibonacci(first + i).x; });
}

extern "C" __global__ void __launch_bounds__(threads)
poolbridge_verify_fibonacci_u64(const u64 *at, u64 first, u64 n, result *r) {
    u64 head = head_of(at, n, 8), vectors = (n - head) / 2, wrong = 0;
    const ulonglong2 *from = (const ulonglong2 *)(at + head);
    fibonacci_walk(first + head, vectors, [&](u64 k, ulonglong2 want) {
        ulonglong2 got = __ldcs(from + k);
        if (got.x != want.x && wrong++ < kept) record(r, head + 2 * k, got.x);
        if (got.y != want.y && wrong++ < kept) record(r, head + 2 * k + 1, got.y);
    });
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
