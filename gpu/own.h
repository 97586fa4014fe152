// Time of the controller's own code. One warp is host and controller in turn, and all memory is on the device. A turn
// less its loads and its fence there is the part of a turn over a link that the link's costs do not cover.
#pragma once

#include "endpoint.h"
#include "probe.h"

struct Own {
    World world;     // device memory alone
    uint32_t rounds, burst, bytes;
    uint32_t *samples; // host memory, a word for each round
};

constexpr uint32_t OWN_ENTRIES = 1024, OWN_RING = 0, OWN_OTHER = 64 * OWN_ENTRIES;
constexpr uint64_t OWN_DATA = OWN_OTHER + 16 * OWN_ENTRIES, OWN_BYTES = OWN_DATA + PAGE_BYTES * OWN_ENTRIES;

struct OwnHost {
    uint32_t bytes, burst;
    Endpoint endpoint;
    uint32_t next; // the number of the next command, from 0

    // Where the data of a command go, and come from.
    ON_DEVICE uint64_t data(const World &world, uint32_t command) const {
        return world.host.base + OWN_DATA + PAGE_BYTES * (command % OWN_ENTRIES);
    }
    ON_DEVICE uint32_t block(const World &world, uint32_t command) const {
        return command * 37 % 1024 * (PAGE_BYTES >> world.medium.block_log2);
    }

    // As if queues had been made.
    ON_DEVICE void open(const World &world) {
        uint64_t base = world.host.base;
        endpoint = {};
        endpoint.publish(world);
        switch (world.face) {
        case Face::nvme:
            endpoint.nvme.ready = true;
            endpoint.nvme.submissions[1] = {base + OWN_RING, OWN_ENTRIES, 0, 1};
            endpoint.nvme.completions[1] = {base + OWN_OTHER, OWN_ENTRIES, 0, 1, 0, false};
            break;
        case Face::dcx:
            endpoint.dcx.queues[0] = {base + OWN_RING, base + OWN_OTHER, OWN_ENTRIES, 0, false, 1, 0, dcx::ENABLE};
            put_word(world.window.at(dcx::group(0) + 4 * dcx::CONTROL), dcx::ENABLE);
            break;
        case Face::blocks:
            endpoint.blocks.ring = base + OWN_RING;
            endpoint.blocks.entries = OWN_ENTRIES;
            break;
        }
        next = 0;
        fence();
    }

    // One read, as its interface has it.
    ON_DEVICE void store_command(const World &world) {
        uint64_t base = world.host.base, to = data(world, next);
        uint32_t place = next % OWN_ENTRIES, low = static_cast<uint32_t>(to), high = to >> 32, from = block(world, next);
        if (world.face == Face::blocks) {
            uint32_t *at = world.host.word(base + OWN_RING + DESCRIPTOR_BYTES * place);
            uint64_t offset = static_cast<uint64_t>(from) << world.medium.block_log2;
            uint32_t control = blk::OF_DEVICE | blk::READ << 8 | (next & 0xffff) << 16;
            uint32_t words[DESCRIPTOR_WORDS] = {low, high, static_cast<uint32_t>(offset),
                                                static_cast<uint32_t>(offset >> 32), bytes, 0, 0, control};
            for (uint32_t i = 0; i < DESCRIPTOR_WORDS; i++) put_word(at + i, words[i]);
        } else if (world.face == Face::dcx) {
            uint32_t words[ENTRY_WORDS] = {dcx::READ, 0, from, 0, low, high, bytes};
            for (uint32_t i = 0; i + 1 < ENTRY_WORDS; i++) put_word(world.host.word(base + OWN_RING + 64 * place) + i, words[i]);
        } else {
            uint32_t words[ENTRY_WORDS] = {opcode::READ | place << 16, 1, 0, 0, 0, 0, low, high, 0, 0, from, 0,
                                           (bytes >> world.medium.block_log2) - 1};
            for (uint32_t i = 0; i < ENTRY_WORDS; i++) put_word(world.host.word(base + OWN_RING + 64 * place) + i, words[i]);
        }
        next++;
    }

    // Lets the controller find what was stored.
    ON_DEVICE void ring(const World &world, uint32_t begun) {
        const Window &window = world.window;
        switch (world.face) {
        case Face::nvme:
            put_word(window.at(tail_doorbell(1) + 4), begun % OWN_ENTRIES);
            put_word(window.at(tail_doorbell(1)), next % OWN_ENTRIES);
            break;
        case Face::dcx:
            for (uint32_t i = begun; i < next; i++)
                put_word(world.host.word(world.host.base + OWN_RING + 64 * (i % OWN_ENTRIES)) + ENTRY_WORDS - 1, i + 1);
            break;
        case Face::blocks:
            put_word(window.at(blk::place(blk::OFFSET)), begun);
            put_word(window.at(blk::place(blk::BLOCK)),
                     burst | (((endpoint.blocks.told >> 16) + 1) & 0xffff) << 16);
            break;
        }
        together();
    }
};

// Turns without work before each turn with work: a polling controller has its instructions and state in caches.
constexpr uint32_t IDLE_TURNS = 40;

// Gives the rounds in which the controller has found nothing to do, or data that are not the medium's.
template <Face FACE> ON_DEVICE uint64_t run_own(const Own &of) {
    World world = of.world;
    world.face = FACE;
    OwnHost host{of.bytes, of.burst, {}, 0};
    host.open(world);
    uint64_t wrong = 0;
    for (uint32_t round = 0; round < of.rounds; round++) {
        uint32_t begun = host.next;
        for (uint32_t i = 0; i < of.burst; i++) host.store_command(world);
        fence();
        bool found = true;
        uint32_t before = 0;
        // One call for all turns, so that the measured turn runs the same instructions.
        for (uint32_t turn = 0; turn <= IDLE_TURNS; turn++) {
            if (turn == IDLE_TURNS) host.ring(world, begun);
            before = ticks();
            found = host.endpoint.turn(world);
        }
        uint32_t took = ticks() - before;
        put_word(of.samples + round, took);
        uint32_t last = host.next - 1;
        uint32_t arrived = from_lane(load_word(world.host.word(host.data(world, last))), 0);
        uint32_t stored = from_lane(load_word(world.medium.word(host.block(world, last))), 0);
        wrong += !found || arrived != stored;
    }
    return wrong;
}

ON_DEVICE uint64_t run(const Own &of) {
    switch (of.world.face) {
    case Face::nvme: return run_own<Face::nvme>(of);
    case Face::dcx: return run_own<Face::dcx>(of);
    default: return run_own<Face::blocks>(of);
    }
}
