// What the link between host memory and the device costs, and whether it keeps the order that the protocols rely
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

enum class Measure : uint32_t {
    ticking,    // a tick of the clock, by nanoseconds
    chase,      // loads of host memory
    own_chase,  // loads of the device's own memory
    alone,      // fences with nothing before them
    own_fences, // fences behind a line that was stored to the device's own memory
    fences,     // fences behind a line that was stored
    copies,     // 4 KiB from the device's memory to the host's
    echo,       // words there and back
};

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
    uint64_t *times;     // nanoseconds and ticks that all took, then payload words that came too early
    uint32_t *medium;    // device memory, PAYLOAD_WORDS and CHASE_LINES
};

constexpr uint32_t STOP = 0xffffffffu;

// How long the clock is compared with nanoseconds, whose counter of a GPU moves in steps of up to a microsecond.
constexpr uint64_t TICKING_NS = 50000000;

// The clock of one multiprocessor. The result of a measured load must be used before the clock is read again: the
// compiler removes a load whose value is unused.
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

// Both counters go until enough has passed for their quotient.
ON_DEVICE uint64_t ticking() {
    uint64_t begun = nanoseconds(), all = 0;
    for (uint32_t last = ticks(); nanoseconds() - begun < TICKING_NS;) {
        uint32_t now = ticks();
        all += now - last;
        last = now;
    }
    return all;
}

// Waits for a load. Without it the clock is read again while the load is in flight.
ON_DEVICE void wait_for(uint32_t value) {
#if defined(__CUDA_ARCH__)
    asm volatile("{.reg .pred never; setp.eq.u32 never, %0, 0xfffffffe; @never trap;}" ::"r"(value) : "memory");
#else
    (void)value;
#endif
}

// One load after the other, each of a line that no cache of the device has: each is loaded once. Lines of the device's
// own are stored first.
ON_DEVICE uint64_t chase(const Probe &probe, uint32_t *lines, bool own) {
    uint64_t wrong = 0;
    for (uint32_t line = 0; own && line < CHASE_LINES; line++)
        put_word(lines + LINE_WORDS * line, (line + CHASE_STEP) % CHASE_LINES);
    fence();
    for (uint32_t round = 0, line = 0; round < probe.rounds; round++) {
        uint32_t begun = ticks(), expected = (line + CHASE_STEP) % CHASE_LINES;
        line = from_lane(load_word(lines + LINE_WORDS * line), 0);
        wait_for(line);
        uint32_t took = ticks() - begun;
        if (line != expected) {
            wrong++;
            line = expected;
        }
        put_word(probe.samples + round, took);
    }
    return wrong;
}

// A line is stored, or none, and a fence waited for.
ON_DEVICE void fences(const Probe &probe, uint32_t *stored) {
    for (uint32_t round = 0; round < probe.rounds; round++) {
        uint32_t begun = ticks();
        for (uint32_t i = lane(); stored != nullptr && i < LINE_WORDS; i += LANES) store_word(stored + i, round);
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
        // A word that stands alone has nothing before it to be ordered.
        if (probe.words > 0) fence();
        if (probe.look == Look::flag) wrong += too_early(probe, round);
        for (uint32_t i = lane(); i < probe.words; i += LANES) store_word(probe.back + i, round);
        if (probe.words > 0) fence();
        put_word(probe.back + probe.words, round);
    }
    return wrong;
}

ON_DEVICE void measure(const Probe &probe) {
    uint64_t begun = nanoseconds(), wrong = 0, all_ticks = 0;
    switch (probe.measure) {
    case Measure::ticking: all_ticks = ticking(); break;
    case Measure::chase: wrong = chase(probe, probe.lines, false); break;
    case Measure::own_chase: wrong = chase(probe, probe.medium, true); break;
    case Measure::alone: fences(probe, nullptr); break;
    case Measure::fences: fences(probe, probe.back); break;
    case Measure::own_fences: fences(probe, probe.medium); break;
    case Measure::copies: copies(probe); break;
    case Measure::echo: wrong = echo(probe); break;
    }
    uint64_t took = nanoseconds() - begun;
    if (lane() == 0) {
        probe.times[0] = took;
        probe.times[1] = all_ticks;
        probe.times[2] = wrong;
    }
    fence();
}
