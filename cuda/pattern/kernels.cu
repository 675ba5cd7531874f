// The kernels of package pattern. The package's Go code defines each result, bit by bit. If you change a kernel, also change
// the Go code and the simulated driver, which has a copy in C; then run `make ptx`.
//
// The kernels are as fast as the memory. Each access has 16 bytes, called a vector here. Neighbouring threads access neighbouring
// vectors, and each thread has several accesses in flight. If the memory does not begin at a multiple of 16 bytes, the kernel
// accesses the elements before the first whole vector and after the last whole vector one by one.
//
// A kernel that verifies has 64 KiB in flight in each multiprocessor: 8 blocks whose threads have two vectors each, or 4 blocks
// whose threads have four vectors each. The host starts 8 blocks for each multiprocessor. The launch bounds make the compiler
// limit the registers, so that 8 or 4 blocks fit at once. If only 5 or 6 of the 8 blocks fitted, the other 3 or 2 would run
// later, and they alone would not use the whole speed of the memory. A GPU that cannot hold so many blocks ignores the bounds.

typedef unsigned int u32;
typedef unsigned long long u64;

enum {
    threads = 256, // threads of a block
    unroll = 4,    // vectors that each thread of a fill has in flight
    kept = 8,      // mismatches that a result holds
    full = 8,      // blocks that a multiprocessor holds if each thread uses at most 32 registers
    half = 4,      // blocks that a multiprocessor holds if each thread uses at most 64 registers
};

// ---- results ----

struct mismatch {
    u64 index, got;
};

// The result of a verification. Before the verification, the host sets count and lock to 0, and each index to ~0.
struct result {
    u64 count;
    u32 lock, unused;
    mismatch first[kept]; // the mismatches with the lowest indices, in order of their indices
};

// Keeps a mismatch if its index is one of the lowest so far. The greatest kept index only decreases. So, for most mismatches, the
// function reads this index once and returns without the lock.
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

// Returns the bits of float32(scale·i + offset). The function computes in float64, and rounds after the multiplication and after
// the addition. A fused multiply-add rounds only once, and so gives other results.
__device__ __forceinline__ u32 affine_at(double scale, double i, double offset) {
    return __float_as_uint(__double2float_rn(__dadd_rn(__dmul_rn(scale, i), offset)));
}

struct affine {
    double scale, offset, tolerance;

    __device__ __forceinline__ u32 at(u64 i) const { return affine_at(scale, __ull2double_rn(i), offset); }

    // Converts one index for four elements. The sums d + 1 to d + 3 are exact, because indices are smaller than 2^53.
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
    u32 salt; // computed from the frame's number

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

// Returns how many elements are before the first address that is a multiple of 16 bytes.
__device__ __forceinline__ u64 head_of(const void *at, u64 n, u32 element) {
    u64 head = (16 - ((u64)at & 15)) % 16 / element;
    return head < n ? head : n;
}

// Calls f(index) for each element that is in no vector: the elements before `head`, and the elements from `tail` on.
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

// Vectors that a thread has read at once, and in which at least one bit differs from the pattern.
template <class P, int vectors> struct batch {
    uint4 got[vectors]; // the values that the thread read; the memory may have other values now
    P p;
    u64 first, index; // the first element's index in the pattern, and its index in the memory
    u64 before;       // how many wrong elements the thread found before this batch
    result *r;
};

// Compares a batch element by element, and returns how many elements are wrong. The indices of a thread increase, so a thread
// records only its first `kept` wrong elements: a later one cannot be among the lowest.
//
// The loop in `verify` calls this function once for a batch, and passes one pointer. So the loop, which rarely calls the function,
// has few branches and needs few registers. With a call for each vector, frames were verified at two thirds of a copy's speed on
// an H200.
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

// Returns how many elements of the vectors from[0], from[threads], from[2·threads] and so on are wrong.
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

// Compares memory with a pattern. Each thread has `under` vectors in flight.
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

// Returns F(n) and F(n+1), modulo 2^64. The function uses the formulas for F(2n) and F(2n+1).
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

// Computes a thread's next vector, which has two elements, from the thread's current vector. The distance s between the indices of
// two such vectors is constant, and F(i+s) = F(s-1)·F(i) + F(s)·F(i+1).
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

// Like batch, for the Fibonacci pattern. `apart` is the distance between two vectors, in elements.
template <int vectors> struct fibonacci_batch {
    ulonglong2 got[vectors], want; // want is the value that the first vector should have
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

// Returns how many elements of the vectors from[0], from[step], from[2·step] and so on are wrong. v is the value that the first
// vector should have. The function then sets v to the value that the vector after the last should have.
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

// Replaces each element x with float32(scale·x + offset). It computes in float64 and rounds as the affine pattern does.
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

// Keeps its stream busy for a time. The host starts one thread.
extern "C" __global__ void poolbridge_spin(u64 ns) {
    u64 start = now();
    while (now() - start < ns) __nanosleep(200);
}

// Keeps its stream busy until the word `gate` is not 0, but at most for a time. The host starts one thread.
extern "C" __global__ void poolbridge_hold(const u64 *gate, u64 ns) {
    u64 start = now();
    while (*(const volatile u64 *)gate == 0 && now() - start < ns) __nanosleep(200);
}
