// What the controller reaches: the host's memory, its own registers, its medium. Every access to the first is
// checked against what the host has announced.
#pragma once

#include "lanes.h"

// The host's memory, at its addresses on the bus.
struct HostMemory {
    uint8_t *bytes;
    uint64_t base;
    uint64_t length;

    ON_DEVICE bool holds(uint64_t at, uint64_t count) const {
        return at >= base && count <= length && at - base <= length - count;
    }

    // Call it only for what it holds, at a multiple of four.
    ON_DEVICE uint32_t *word(uint64_t at) const {
        return reinterpret_cast<uint32_t *>(bytes + (at - base));
    }
};

// The registers, and behind them a count for each interrupt vector.
struct Window {
    uint32_t *words;
    uint32_t bytes;

    ON_DEVICE uint32_t *at(uint32_t offset) const { return words + offset / 4; }

    // What was stored before is there before the register changes.
    ON_DEVICE void store(uint32_t offset, uint32_t value) const {
        fence();
        put_word(at(offset), value);
    }
};

constexpr uint32_t VECTORS = 64;

// Blocks.
struct Medium {
    uint8_t *bytes;
    uint64_t blocks;
    uint32_t block_log2;

    ON_DEVICE uint32_t block_bytes() const { return 1u << block_log2; }

    ON_DEVICE bool holds(uint64_t first, uint64_t count) const {
        return first <= blocks && count <= blocks - first;
    }

    ON_DEVICE uint32_t *word(uint64_t block) const {
        return reinterpret_cast<uint32_t *>(bytes + (block << block_log2));
    }
};

// Which face a host finds.
enum class Face : uint32_t { nvme, dcx, blocks };

// All that a controller is given. No pointer in it is the host's choice.
struct World {
    HostMemory host;
    Window window;
    Medium medium;
    Face face;
    // A look at whole cache lines of host memory sees a line as it was at one moment: true of most machines,
    // promised by neither CUDA nor PCIe.
    bool whole_lines;
    // Size of a packet that is never seen in part, as a power of two; 0: unknown, and what ends a command is stored
    // after a fence. Promised by neither CUDA nor PCIe.
    uint32_t packet_log2;
};

// The most bytes that one command moves.
constexpr uint32_t TRANSFER_LOG2 = 17;
constexpr uint32_t TRANSFER_BYTES = 1u << TRANSFER_LOG2;
constexpr uint32_t PAGE_BYTES = 4096;

// Entries that are fetched and worked on together. They share one fence.
constexpr uint32_t BURST = 8;
constexpr uint32_t ENTRY_WORDS = 16;

// Entries of 64 bytes, copied out of host memory once.
struct Entries {
    Line lines[BURST / 2];

    ON_DEVICE uint32_t word(uint32_t entry, uint32_t number) const {
        return lines[entry / 2 % (BURST / 2)].word(entry % 2 * ENTRY_WORDS + number);
    }

    ON_DEVICE uint64_t wide(uint32_t entry, uint32_t number) const {
        uint64_t low = word(entry, number);
        return static_cast<uint64_t>(word(entry, number + 1)) << 32 | low;
    }

    // Fetches `count` entries of a ring of `entries`, from place `first` on, round its end if need be.
    ON_DEVICE void fetch(const uint32_t *ring, uint32_t first, uint32_t count, uint32_t entries) {
        // Issues all loads before the first is used: each takes a round trip over the link. A store to `lines`, which
        // is in local memory, waits for its load.
        Line fetched[BURST / 2];
UNROLLED
        for (uint32_t pair = 0; pair < BURST / 2; pair++) {
            uint32_t here = 2 * pair < count ? (count - 2 * pair < 2 ? 1 : 2) : 0;
            fetched[pair].look(here * ENTRY_WORDS, [=](uint32_t number) {
                uint32_t place = first + 2 * pair + number / ENTRY_WORDS;
                place = place >= entries ? place - entries : place;
                return ring + place * ENTRY_WORDS + number % ENTRY_WORDS;
            });
        }
UNROLLED
        for (uint32_t pair = 0; pair < BURST / 2; pair++) lines[pair] = fetched[pair];
    }
};

// Interrupts so far, by vector: the device alone counts.
struct Interrupts {
    uint32_t counts[VECTORS];

    ON_DEVICE void signal(const World &world, uint32_t vector) {
        vector %= VECTORS;
        counts[vector]++;
        world.window.store(world.window.bytes + 4 * vector, counts[vector]);
    }
};
