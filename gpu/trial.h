// What the protocols are made of, each alone and one cause at a time: how a command comes, how its end is told, in
// what order stores arrive, what polling takes from a copy, what a doorbell costs. The device's half; trials.cc has
// the host's.
#pragma once

#include "own.h"

// How the device learns of a command of 64 bytes.
enum class Request : uint32_t {
    entry,     // it polls the entry, all of it at once, whose last word is its number
    doorbell,  // it polls a doorbell, then fetches the entry behind a fence
    acquired,  // it polls a doorbell by loads that acquire, then fetches the entry
};

// How the host learns that data have come.
enum class Completion : uint32_t {
    entry,          // an entry of 16 bytes behind a fence behind the data
    unfenced_entry, // the entry behind the data in program order, which promises nothing
    tag,            // the last word of the data, behind a fence
    unfenced_tag,   // the last word of the data in program order
    packets,        // the last word of each packet of the data; nothing is behind anything
};

constexpr uint32_t PACKET_WORDS = 16, TRIAL_WORDS = 1u << 15; // 64 bytes; the most data, 128 KiB

// Commands that are answered one at a time. All memory but this is the host's.
struct Exchange {
    Request request;
    Completion completion;
    uint32_t rounds, words;
    const uint32_t *entry, *doorbell; // lines of their own
    uint32_t *data, *completed;
};

// Data whose stores are not ordered, at the host's word.
struct Scatter {
    uint32_t rounds, words;
    bool alone;  // one lane stores 16 bytes after 16, in order; else all lanes store side by side
    const uint32_t *flag;
    uint32_t *data;
};

// Warps that copy, and warps that poll meanwhile.
struct Load {
    uint32_t copiers, rounds, words;
    bool to_host;
    uint32_t *area;       // host memory, `words` for each copier
    uint32_t *medium;     // device memory, likewise
    const uint32_t *lines; // host memory, a line for each poller; STOP in the first word ends it
    uint64_t *ended;      // host memory: two words each, when it began and ended, or how often it looked
};

// Doorbells that the device polls while the host stores to them: `lines` of them, a line apart.
struct Watch {
    uint32_t lines;
    const uint32_t *doorbells;
    uint64_t *looks;
};

struct Trial {
    enum class Kind : uint32_t { exchange, scatter, load, watch, own } kind;
    Exchange exchange;
    Scatter scatter;
    Load load;
    Watch watch;
    Own own;
};

constexpr uint32_t TRIAL_STOP = 0xffffffffu;

// Stores `words` words, all the same, by all lanes, 16 bytes each; the last words alone where they are no quad.
ON_DEVICE void fill_words(uint32_t *to, uint32_t value, uint32_t words) {
#if defined(__CUDACC__)
    for (uint32_t at = lane(); at < words / 4; at += LANES) store_quad(to + 4 * at, {value, value, value, value});
    for (uint32_t at = words / 4 * 4 + lane(); at < words; at += LANES) store_word(to + at, value);
#else
    for (uint32_t at = 0; at < words; at++) store_word(to + at, value);
#endif
}

// Stores one entry of 16 bytes, as one packet where the device can.
ON_DEVICE void put_entry(uint32_t *to, uint32_t value) {
#if defined(__CUDACC__)
    if (lane() == 0) store_quad(to, {value, value, value, value});
#else
    for (uint32_t i = 0; i < 3; i++) store_word(to + i, value);
    __atomic_store_n(to + 3, value, __ATOMIC_RELEASE);
#endif
}

// Whether the command of this round is there; what was fetched of it that is not of this round is counted.
ON_DEVICE bool has_come(const Exchange &of, uint32_t round, uint32_t &last, uint64_t &wrong) {
    Line entry;
    if (of.request == Request::entry) {
        entry.look_at(of.entry, ENTRY_WORDS);
        last = entry.word(ENTRY_WORDS - 1);
        if (last != round) return false;
    } else {
        last = of.request == Request::acquired ? load_acquire(of.doorbell) : load_word(of.doorbell);
        last = from_lane(last, 0);
        if (last != round) return false;
        if (of.request == Request::doorbell) fence();
        entry.look_at(of.entry, ENTRY_WORDS);
    }
    for (uint32_t i = 0; i < ENTRY_WORDS; i++) wrong += entry.word(i) != round;
    return true;
}

ON_DEVICE void answer(const Exchange &of, uint32_t round) {
    bool tag = of.completion == Completion::tag || of.completion == Completion::unfenced_tag;
    fill_words(of.data, round, tag ? of.words - 1 : of.words);
    if (of.completion == Completion::packets) return;
    together();
    if (of.completion == Completion::entry || of.completion == Completion::tag) fence();
    if (tag) put_word(of.data + of.words - 1, round);
    else put_entry(of.completed, round);
}

// Gives what was fetched wrongly.
ON_DEVICE uint64_t run(const Exchange &of) {
    uint64_t wrong = 0;
    for (uint32_t round = 1; round <= of.rounds; round++) {
        uint32_t last = 0;
        for (uint32_t looks = 0; !has_come(of, round, last, wrong); waited(++looks))
            if (last == TRIAL_STOP) return wrong;
        answer(of, round);
    }
    return wrong;
}

ON_DEVICE uint64_t run(const Scatter &of) {
    for (uint32_t round = 1; round <= of.rounds; round++) {
        for (uint32_t looks = 0;; waited(++looks)) {
            uint32_t flag = from_lane(load_word(of.flag), 0);
            if (flag == TRIAL_STOP) return 0;
            if (flag == round) break;
        }
        if (!of.alone) fill_words(of.data, round, of.words);
        for (uint32_t at = 0; of.alone && at < of.words; at += 4) put_entry(of.data + at, round);
    }
    return 0;
}

ON_DEVICE uint64_t run(const Load &of, uint32_t which) {
    uint64_t *told = of.ended + 2 * which;
    if (which < of.copiers) {
        uint32_t *host = of.area + static_cast<uint64_t>(which) * of.words;
        uint32_t *own = of.medium + static_cast<uint64_t>(which) * of.words;
        uint64_t begun = nanoseconds();
        for (uint32_t round = 0; round < of.rounds; round++)
            copy_words(of.to_host ? host : own, of.to_host ? own : host, of.words);
        fence();
        uint64_t end = nanoseconds();
        if (lane() == 0) told[0] = begun, told[1] = end;
        return 0;
    }
    const uint32_t *line = of.lines + static_cast<uint64_t>(which - of.copiers) * LINE_WORDS;
    uint64_t looks = 0;
    for (;; looks++) {
        Line seen;
        seen.look_at(line);
        if (seen.word(0) == TRIAL_STOP) break;
        waited(static_cast<uint32_t>(looks));
    }
    if (lane() == 0) told[1] = looks;
    return 0;
}

// Polls until STOP is rung at the first doorbell.
ON_DEVICE uint64_t run(const Watch &of) {
    uint64_t looks = 0;
    for (;; looks++) {
        Line seen;
        seen.look(of.lines, [&](uint32_t number) { return of.doorbells + number * LINE_WORDS; });
        if (seen.word(0) == TRIAL_STOP) break;
        waited(static_cast<uint32_t>(looks));
    }
    if (lane() == 0) *of.looks = looks;
    return 0;
}

// What one warp does of it; the first one's count of what came wrongly is the trial's.
ON_DEVICE uint64_t run(const Trial &trial, uint32_t which) {
    uint64_t wrong = 0;
    switch (trial.kind) {
    case Trial::Kind::exchange: wrong = run(trial.exchange); break;
    case Trial::Kind::scatter: wrong = run(trial.scatter); break;
    case Trial::Kind::load: wrong = run(trial.load, which); break;
    case Trial::Kind::watch: wrong = run(trial.watch); break;
#if !defined(__CUDACC__)
    case Trial::Kind::own: wrong = run(trial.own); break;
#else
    case Trial::Kind::own: break; // a kernel of its own for each face
#endif
    }
    fence();
    return wrong;
}
