// What the link between host memory and the device costs, and whether it keeps the order that the protocols lean
// on. The device's half; probe.cc has the host's.
#pragma once

#include "memory.h"

constexpr uint32_t CHASE_LINES = 4096, CHASE_STEP = 1597; // coprime: every line once, none beside the last
constexpr uint32_t PAYLOAD_WORDS = 1024;                  // 4 KiB

// How the device looks at a line that the host stores, its flag last.
enum class Look : uint32_t {
    flag,   // at the flag, then, behind a fence, at the rest
    whole,  // at all of it at once
};

enum class Measure : uint32_t { chase, echo, fences, copies };

// All of it is host memory that both reach, but the medium.
struct Probe {
    Measure measure;
    Look look;
    uint32_t rounds;
    uint32_t words;      // of the payload that an echo carries, less its flag
    uint32_t *lines;     // CHASE_LINES of them, each with the number of the next in its first word
    uint32_t *there;     // the host's words, the last of them the flag; a line of its own
    uint32_t *back;      // the device's
    uint32_t *samples;   // one for each round
    uint64_t *times;     // nanoseconds that all took, then payload words that came too early
    uint32_t *medium;    // device memory, PAYLOAD_WORDS
};

constexpr uint32_t STOP = 0xffffffffu;

// A tick is what the clock of one multiprocessor counts; nanoseconds are shared out by the whole.
ON_DEVICE uint32_t ticks() {
#if defined(__CUDA_ARCH__)
    uint32_t now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    return now;
#elif defined(__CUDACC__)
    return 0;
#else
    return static_cast<uint32_t>(nanoseconds());
#endif
}

// One load after the other, each of a line that no cache of the device has: each is loaded once.
ON_DEVICE void chase(const Probe &probe) {
    uint32_t line = 0;
    for (uint32_t round = 0; round < probe.rounds; round++) {
        uint32_t begun = ticks();
        line = from_lane(load_word(probe.lines + LINE_WORDS * line), 0) % CHASE_LINES;
        put_word(probe.samples + round, ticks() - begun);
    }
}

// A line is stored, and its queueing delayed for.
ON_DEVICE void fences(const Probe &probe) {
    for (uint32_t round = 0; round < probe.rounds; round++) {
        uint32_t begun = ticks();
        for (uint32_t i = lane(); i < LINE_WORDS; i += LANES) store_word(probe.back + i, round);
        fence();
        put_word(probe.samples + round, ticks() - begun);
        fence();
    }
}

// A block of 4 KiB from the device's memory into the host's, until the last store has been given.
ON_DEVICE void copies(const Probe &probe) {
    for (uint32_t round = 0; round < probe.rounds; round++) {
        uint32_t begun = ticks();
        copy_words(probe.back, probe.medium, PAYLOAD_WORDS);
        put_word(probe.samples + round, ticks() - begun);
        fence();
    }
}

// Words of the payload that are not of this round, as all lanes have seen them.
ON_DEVICE uint32_t too_early(const Probe &probe, uint32_t round) {
    uint32_t wrong = 0;
    for (uint32_t at = 0; at < probe.words; at += LINE_WORDS) {
        Line line;
        uint32_t here = probe.words - at < LINE_WORDS ? probe.words - at : LINE_WORDS;
        line.look_at(probe.there + at, here);
        for (uint32_t i = 0; i < here; i++) wrong += line.word(i) != round;
    }
    return wrong;
}

// Waits for the host's flag, judges what stands before it, and answers with as much.
ON_DEVICE uint64_t echo(const Probe &probe) {
    uint64_t wrong = 0;
    for (uint32_t round = 1; round <= probe.rounds; round++) {
        for (uint32_t looks = 0;; waited(++looks)) {
            Line line;
            uint32_t before = probe.look == Look::whole ? probe.words : 0;
            line.look_at(probe.there + probe.words - before, before + 1);
            uint32_t flag = line.word(before);
            if (flag == STOP) return wrong;
            if (flag != round) continue;
            for (uint32_t i = 0; i < before; i++) wrong += line.word(i) != round;
            break;
        }
        fence();
        if (probe.look == Look::flag) wrong += too_early(probe, round);
        for (uint32_t i = lane(); i < probe.words; i += LANES) store_word(probe.back + i, round);
        fence();
        put_word(probe.back + probe.words, round);
    }
    return wrong;
}

ON_DEVICE void measure(const Probe &probe) {
    uint64_t begun = nanoseconds(), wrong = 0;
    switch (probe.measure) {
    case Measure::chase: chase(probe); break;
    case Measure::fences: fences(probe); break;
    case Measure::copies: copies(probe); break;
    case Measure::echo: wrong = echo(probe); break;
    }
    uint64_t took = nanoseconds() - begun;
    if (lane() == 0) {
        probe.times[0] = took;
        probe.times[1] = wrong;
    }
    fence();
}
