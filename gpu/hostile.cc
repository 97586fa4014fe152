// A host that lies: registers, doorbells and entries of no sense, for as many turns as are asked for. Built with
// sanitizers, which see an access outside the memory that the controller was given. What is found is repeated
// by its seed.
//
//   hostile [SEED [TURNS]]
#include "endpoint.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

uint64_t nanoseconds() { return 0; }
void waited(uint32_t) {}

namespace {

constexpr uint64_t BASE = 0x10000000, HOST_BYTES = 1 << 18, MEDIUM_BYTES = 1 << 16;

// SplitMix64: Guy Steele et al., "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014).
struct Dice {
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    uint32_t below(uint32_t count) { return static_cast<uint32_t>(next() % count); }
    // An address that may do, one at an edge, or any.
    uint64_t address() {
        switch (below(8)) {
        case 0: return next();
        case 1: return BASE + HOST_BYTES - 4 * below(2048);
        case 2: return BASE + 4 * below(HOST_BYTES / 4);
        case 3: return BASE + HOST_BYTES - 4096 * below(3);
        default: return BASE + 4096 * below(HOST_BYTES / 4096);
        }
    }
    // A number that may do, or any.
    uint32_t number(uint32_t most) { return below(16) == 0 ? static_cast<uint32_t>(next()) : below(most); }
};

struct Arena {
    std::vector<uint64_t> host, medium, window;
    World world;

    Arena(Face face, bool whole_lines, uint32_t packet_log2)
        : host(HOST_BYTES / 8), medium(MEDIUM_BYTES / 8), window((register_bytes(face) + 4 * VECTORS) / 8) {
        world.host = {reinterpret_cast<uint8_t *>(host.data()), BASE, HOST_BYTES};
        world.window = {reinterpret_cast<uint32_t *>(window.data()), register_bytes(face)};
        world.medium = {reinterpret_cast<uint8_t *>(medium.data()), MEDIUM_BYTES >> 9, 9};
        world.face = face;
        world.whole_lines = whole_lines;
        world.packet_log2 = packet_log2;
    }
    void set(uint32_t offset, uint32_t value) { store_word(world.window.at(offset), value); }
    uint32_t get(uint32_t offset) { return load_word(world.window.at(offset)); }
    void wide(uint32_t offset, uint64_t value) {
        set(offset, static_cast<uint32_t>(value));
        set(offset + 4, static_cast<uint32_t>(value >> 32));
    }
    uint32_t *at(uint64_t address) { return world.host.word(address); }
};

// The admin queues lie in the first two pages, I/O queues anywhere.
void store_command(Arena &arena, Dice &dice, uint32_t *entry) {
    for (uint32_t i = 0; i < ENTRY_WORDS; i++) entry[i] = dice.below(4) == 0 ? static_cast<uint32_t>(dice.next()) : 0;
    constexpr uint32_t OPCODES[] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 0, 1, 2, 2, 1, 3};
    entry[0] = OPCODES[dice.below(16)] | dice.number(1) << 8;
    entry[1] = dice.number(3);
    uint64_t first = dice.address(), second = dice.address();
    entry[6] = static_cast<uint32_t>(first), entry[7] = static_cast<uint32_t>(first >> 32);
    entry[8] = static_cast<uint32_t>(second), entry[9] = static_cast<uint32_t>(second >> 32);
    entry[10] = dice.number(MEDIUM_BYTES >> 9), entry[11] = dice.number(2), entry[12] = dice.number(300);
    if (dice.below(4) == 0) entry[10] = dice.below(QUEUES) | dice.number(QUEUE_ENTRIES) << 16;
    if (dice.below(4) == 0) entry[11] = 1 | dice.below(QUEUES) << 16;
    // Lists of pages, some of which lead on.
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t page = dice.address() & ~4095ull;
        uint64_t where = BASE + 8 * dice.below(HOST_BYTES / 8 - 1);
        *arena.at(where) = static_cast<uint32_t>(page), *arena.at(where + 4) = static_cast<uint32_t>(page >> 32);
    }
}

void lie_in_nvme(Arena &arena, Dice &dice) {
    if ((arena.get(reg::CSTS) & CSTS_RDY) == 0 && dice.below(4) != 0) {
        arena.set(reg::CC, 0);
        arena.set(reg::AQA, dice.below(8) == 0 ? static_cast<uint32_t>(dice.next()) : 31 | 31 << 16);
        arena.wide(reg::ASQ, dice.below(16) == 0 ? dice.address() : BASE);
        arena.wide(reg::ACQ, dice.below(16) == 0 ? dice.address() : BASE + 4096);
        return;
    }
    if (dice.below(64) == 0) arena.set(reg::CC, static_cast<uint32_t>(dice.next()));
    else if (dice.below(8) == 0) arena.set(reg::CC, CC_SHAPE | CC_EN);
    for (uint32_t i = 0; i < 32; i++) store_command(arena, dice, arena.at(BASE + 64 * i));
    for (uint32_t i = 0; i < 8; i++) store_command(arena, dice, arena.at(BASE + 64 * dice.below(HOST_BYTES / 64)));
    for (uint32_t i = 0; i < 2 * QUEUES; i++)
        if (dice.below(2) == 0) arena.set(reg::DOORBELLS + 4 * i, dice.number(32));
}

void lie_in_dcx(Arena &arena, Dice &dice) {
    for (uint32_t queue = 0; queue < DCX_QUEUES; queue++) {
        uint32_t group = dcx::group(queue), ring = 0x8000 + 0x1000 * queue;
        if (dice.below(8) == 0) {
            arena.set(group + 4 * dcx::CONTROL, dice.number(8));
            arena.wide(group + 4 * dcx::COMMANDS, dice.below(8) == 0 ? dice.address() : BASE + ring);
            arena.wide(group + 4 * dcx::REPORTS, dice.below(8) == 0 ? dice.address() : BASE + ring + 0x800);
            arena.wide(group + 4 * dcx::NOTICE, dice.address() & ~63ull);
            uint32_t packet = dice.below(8) == 0 ? dice.below(32) : arena.world.packet_log2;
            arena.set(group + 4 * dcx::SHAPE, dice.number(6) | packet << 8);
        }
        for (uint32_t i = 0; i < 32; i++) {
            uint32_t *entry = arena.at(BASE + ring + 64 * i);
            store_command(arena, dice, entry);
            for (uint32_t word = 7; word < 15; word++) entry[word] = 0;
            entry[0] = 1 + dice.number(3);
            entry[1] = dice.number(1);
            uint64_t at = dice.address();
            entry[2] = dice.number(MEDIUM_BYTES >> 9), entry[3] = dice.below(32) == 0;
            entry[4] = static_cast<uint32_t>(at), entry[5] = static_cast<uint32_t>(at >> 32);
            entry[6] = dice.below(4) == 0 ? 4 * dice.number(130) : 512 * dice.number(300);
            entry[15] = i + 1 + 32 * dice.below(4);
        }
    }
}

void lie_in_blocks(Arena &arena, Dice &dice) {
    if (dice.below(4) == 0) {
        arena.set(4 * blk::CONTROL, dice.number(4));
        arena.set(4 * blk::SHAPE, dice.below(4) == 0 ? dice.number(12) : 6);
        arena.wide(4 * blk::RING, dice.below(8) == 0 ? dice.address() : BASE);
        arena.set(blk::place(blk::OFFSET), dice.below(8) == 0 ? static_cast<uint32_t>(dice.next()) : 0);
    }
    uint32_t turn = arena.get(blk::place(blk::BLOCK)) >> 16, offset = arena.get(blk::place(blk::OFFSET));
    for (uint32_t i = 0; i < BLOCK_MAX; i++) {
        uint32_t *descriptor = arena.at(BASE + DESCRIPTOR_BYTES * i), count = dice.below(512) == 0 ? 7 : i;
        uint64_t at = dice.address(), block = 512ull * dice.number(MEDIUM_BYTES >> 9);
        descriptor[0] = static_cast<uint32_t>(at), descriptor[1] = static_cast<uint32_t>(at >> 32);
        descriptor[2] = static_cast<uint32_t>(block), descriptor[3] = static_cast<uint32_t>(block >> 32);
        descriptor[4] = dice.below(8) == 0 ? static_cast<uint32_t>(dice.next()) : 512 * dice.below(9);
        descriptor[5] = descriptor[6] = 0;
        descriptor[7] = blk::OF_DEVICE | dice.number(5) << 8 | count << 16;
    }
    arena.set(blk::place(blk::OFFSET), offset);
    arena.set(blk::place(blk::BLOCK), dice.number(BLOCK_MAX + 2) | (turn + 1) << 16);
}

void lie(Arena &arena, Dice &dice) {
    if (arena.world.face == Face::blocks) return lie_in_blocks(arena, dice);
    lie_in_nvme(arena, dice);
    if (arena.world.face == Face::dcx) lie_in_dcx(arena, dice);
}

// Work that was done, so that a host so wrong that nothing happens is seen.
uint32_t run(Face face, uint64_t seed, uint32_t turns) {
    Dice dice{seed};
    uint32_t worked = 0;
    for (uint32_t done = 0; done < turns; done += 256) {
        Arena arena(face, dice.below(2) == 0, dice.below(2) == 0 ? 7 : 0);
        auto endpoint = std::make_unique<Endpoint>();
        endpoint->publish(arena.world);
        for (uint32_t i = 0; i < 256; i++) {
            lie(arena, dice);
            worked += endpoint->turn(arena.world) ? 1 : 0;
        }
    }
    return worked;
}

// Buffers whose tags the lanes' stores would not match: their last word is stored after a fence.
bool packets_are_aligned() {
    Arena arena(Face::dcx, false, 7);
    return lands_by_packets(arena.world, BASE, 512) && !lands_by_packets(arena.world, BASE + 4, 512) &&
           !lands_by_packets(arena.world, BASE + 64, 512) && !lands_by_packets(arena.world, BASE, 516);
}

} // namespace

int main(int count, char **words) {
    uint64_t seed = count > 1 ? std::strtoull(words[1], nullptr, 10) : 1;
    uint32_t turns = count > 2 ? static_cast<uint32_t>(std::strtoul(words[2], nullptr, 10)) : 20000;
    if (!packets_are_aligned()) {
        std::printf("hostile: a buffer that begins inside a packet is taken for an aligned one\n");
        return 1;
    }
    constexpr Face FACES[] = {Face::nvme, Face::dcx, Face::blocks};
    constexpr const char *NAMES[] = {"nvme", "dcx", "block"};
    for (int i = 0; i < 3; i++) {
        std::printf("hostile: %s, seed %llu: ", NAMES[i], static_cast<unsigned long long>(seed));
        std::fflush(stdout);
        uint32_t worked = run(FACES[i], seed, turns);
        std::printf("%u of %u turns had work\n", worked, turns);
        if (worked < turns / 8) return 1;
    }
}
