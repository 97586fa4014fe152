// The lanes that carry out the controller: the 32 of one warp, or the one thread of a processor.
//
// Every lane runs the same program on a state of its own. What comes from memory that a host may write is
// loaded by one lane, or by each lane in part, and then given to all, so that they never differ in what they
// have seen: a host that stores while we load cannot lead them apart. Stores are one lane's; copies are
// everybody's.
//
// The orders that the protocols lean on, with their CUDA names (PTX ISA, memory consistency model):
//   acquire   what stood before a flag is seen after it     load with .acquire.sys, __syncwarp
//   release   what was stored comes before a flag           __syncwarp, fence.acq_rel.sys, store
// __syncwarp orders what one lane did before what another does; a fence by every lane makes that hold for
// host memory too.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define ON_DEVICE __device__ inline
// Before a loop of a constant number of rounds: what it names by a round's number stays in registers.
#define UNROLLED _Pragma("unroll")
#else
#define ON_DEVICE inline
#define UNROLLED
#endif

static_assert(sizeof(void *) == 8, "addresses of 64 bits");

// Words of a cache line of a GPU, and what one look at memory brings: 128 bytes.
constexpr uint32_t LINE_WORDS = 32;

#if defined(__CUDACC__)

constexpr uint32_t LANES = 32;
constexpr uint32_t ALL_LANES = 0xffffffffu;

ON_DEVICE uint32_t lane() { return threadIdx.x; }

ON_DEVICE void together() { __syncwarp(ALL_LANES); }

// Both directions. Every lane calls it.
ON_DEVICE void fence() {
    together();
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    together();
}

ON_DEVICE uint32_t load_word(const uint32_t *at) {
    uint32_t word;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}

ON_DEVICE uint32_t load_acquire(const uint32_t *at) {
    uint32_t word;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}

ON_DEVICE void store_word(uint32_t *at, uint32_t word) {
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
}

struct Quad {
    uint32_t x, y, z, w;
};

ON_DEVICE Quad load_quad(const uint32_t *at) {
    Quad quad;
    asm volatile("ld.relaxed.sys.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(quad.x), "=r"(quad.y), "=r"(quad.z), "=r"(quad.w)
                 : "l"(at)
                 : "memory");
    return quad;
}

ON_DEVICE void store_quad(uint32_t *at, Quad quad) {
    asm volatile("st.relaxed.sys.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(quad.x), "r"(quad.y),
                 "r"(quad.z), "r"(quad.w)
                 : "memory");
}

ON_DEVICE uint32_t from_lane(uint32_t word, uint32_t of) { return __shfl_sync(ALL_LANES, word, of); }

// A GPU's lanes have nobody to make room for.
ON_DEVICE void waited(uint32_t) {}

ON_DEVICE uint64_t nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

#else

constexpr uint32_t LANES = 1;

ON_DEVICE uint32_t lane() { return 0; }

ON_DEVICE void together() {}

ON_DEVICE void fence() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }

ON_DEVICE uint32_t load_word(const uint32_t *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }

ON_DEVICE uint32_t load_acquire(const uint32_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

ON_DEVICE void store_word(uint32_t *at, uint32_t word) { __atomic_store_n(at, word, __ATOMIC_RELAXED); }

ON_DEVICE uint32_t from_lane(uint32_t word, uint32_t) { return word; }

uint64_t nanoseconds();

// Called after so many looks in vain: where host and device share a core, waiting must not keep it.
void waited(uint32_t looks);

#endif

// Whether what is loaded or stored later stays behind a look.
enum class Order { none, acquire };

// A line of memory as one look has seen it. Each lane holds its word; all may ask for any.
struct Line {
#if defined(__CUDACC__)
    uint32_t mine;

    ON_DEVICE uint32_t word(uint32_t number) const { return from_lane(mine, number); }

    // Loads `words` words, each where `place` says. There are no more than LINE_WORDS.
    template <Order order = Order::none, typename Place> ON_DEVICE void look(uint32_t words, Place place) {
        mine = 0;
        if (lane() < words) mine = order == Order::acquire ? load_acquire(place(lane())) : load_word(place(lane()));
        // One lane's acquiring holds for the others too.
        if (order == Order::acquire) together();
    }
#else
    uint32_t words[LINE_WORDS];

    ON_DEVICE uint32_t word(uint32_t number) const { return words[number % LINE_WORDS]; }

    template <Order order = Order::none, typename Place> ON_DEVICE void look(uint32_t count, Place place) {
        for (uint32_t i = 0; i < LINE_WORDS; i++) words[i] = i < count ? load_word(place(i)) : 0;
        if (order == Order::acquire) __atomic_thread_fence(__ATOMIC_ACQUIRE);
    }
#endif

    template <Order order = Order::none> ON_DEVICE void look_at(const uint32_t *at, uint32_t words = LINE_WORDS) {
        look<order>(words, [at](uint32_t number) { return at + number; });
    }
};

// Copies words from one place to another, by all lanes. Whoever stores a flag behind it has a fence first.
ON_DEVICE void copy_words(uint32_t *to, const uint32_t *from, uint32_t words) {
#if defined(__CUDACC__)
    constexpr uint32_t AT_ONCE = 8;
    bool whole = ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) & 15) == 0;
    uint32_t quads = whole ? words / 4 : 0;
    // Loads first, so that they are under way together: across a link each takes a round trip.
    for (uint32_t at = lane(); at < quads; at += LANES * AT_ONCE) {
        Quad held[AT_ONCE];
UNROLLED
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (at + i * LANES < quads) held[i] = load_quad(from + 4 * (at + i * LANES));
UNROLLED
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (at + i * LANES < quads) store_quad(to + 4 * (at + i * LANES), held[i]);
    }
    for (uint32_t at = 4 * quads + lane(); at < words; at += LANES) store_word(to + at, load_word(from + at));
    together();
#else
    for (uint32_t at = 0; at < words; at++) store_word(to + at, load_word(from + at));
#endif
}

// Stores one word, by one lane.
ON_DEVICE void put_word(uint32_t *at, uint32_t word) {
    if (lane() == 0) store_word(at, word);
}
