// Descriptor blocks: the device takes a block of commands, works on all of them, and returns it.
//
// The layouts are those of doorbell's `wire::block`; the idea is Eleni Bougioukou et al., "Prototyping and
// Performance Evaluation of a Dynamically Adaptable Block Device Driver for PCIe-based SSDs" (RSP 2014).
#pragma once

#include "memory.h"

constexpr uint32_t BLOCK_MAX = 64, RING_LOG2 = 10, DESCRIPTOR_WORDS = 8, DESCRIPTOR_BYTES = 32;
constexpr uint32_t BLOCKS_MAGIC = 0x31424441; // ADB1
constexpr uint32_t DESCRIPTORS_A_LINE = LINE_WORDS / DESCRIPTOR_WORDS;

namespace blk {
// Registers, as words.
constexpr uint32_t ID = 0, LIMITS = 1, CAPACITY = 2, MEDIUM = 4, READ_NS = 5, WRITE_NS = 6, RING = 8, SHAPE = 10;
constexpr uint32_t CONTROL = 11, STATUS = 12, OFFSET = 14, BLOCK = 15;
constexpr uint32_t ENABLE = 1u << 0, SIGNALS = 1u << 1, READY = 1u << 0;
// What a host has done wrong.
// The last two, which announce a block, lie on a page of their own.
constexpr uint32_t ANNOUNCEMENT = 0x1000;

ON_DEVICE uint32_t place(uint32_t number) {
    return number < OFFSET ? 4 * number : ANNOUNCEMENT + 4 * (number - OFFSET);
}

enum Violation : uint32_t { NONE, REGISTERS, SIZE, OFFSET_WRONG, TURN, OWNER, COUNT };
// What is asked for, and how it ended.
constexpr uint32_t READ = 1, WRITE = 2, WRITE_THROUGH = 3, FLUSH = 4;
constexpr uint32_t DONE = 0, INVALID_FIELD = 1, OUT_OF_RANGE = 2, BAD_ADDRESS = 3;
constexpr uint32_t OF_DEVICE = 1u << 0, RESPONSE = 1u << 1;
} // namespace blk

struct Blocks {
    uint64_t ring;
    uint32_t entries; // 0: it is disabled, or stopped
    uint32_t next;    // the count of the next descriptor
    uint32_t told;    // BLOCK, when it was last looked at
    uint32_t vector;
    bool signals;
    uint32_t control; // CONTROL, when it was last looked at

    ON_DEVICE void publish(const World &world);
    ON_DEVICE bool turn(const World &world, Interrupts &interrupts);

  private:
    ON_DEVICE void open(const World &world, const Line &registers);
    ON_DEVICE void stop(const World &world, uint32_t violation, uint32_t count);
    ON_DEVICE uint32_t judge(const World &world, const Line &registers, uint32_t block) const;
    ON_DEVICE void exchange(const World &world, Interrupts &interrupts, uint32_t size);
    ON_DEVICE void take(const World &world, uint32_t first, uint32_t count, struct Descriptors &taken) const;
    ON_DEVICE uint32_t *place(const World &world, uint32_t count) const {
        return world.host.word(ring + static_cast<uint64_t>(DESCRIPTOR_BYTES) * (count & (entries - 1)));
    }
};

ON_DEVICE void Blocks::publish(const World &world) {
    *this = {};
    put_word(world.window.at(4 * blk::LIMITS), RING_LOG2 | BLOCK_MAX << 8 | BLOCK_MAX << 16);
    put_word(world.window.at(4 * blk::CAPACITY), static_cast<uint32_t>(world.medium.blocks));
    put_word(world.window.at(4 * blk::CAPACITY + 4), static_cast<uint32_t>(world.medium.blocks >> 32));
    // One channel, of DRAM, that takes no time of its own.
    put_word(world.window.at(4 * blk::MEDIUM), world.medium.block_log2 | 1u << 8 | 1u << 16);
    world.window.store(4 * blk::ID, BLOCKS_MAGIC);
}

// All registers, in one turn of the lanes.
ON_DEVICE void look(const World &world, Line &registers) {
    registers.look<Order::acquire>(16, [&](uint32_t number) { return world.window.at(blk::place(number)); });
}

ON_DEVICE void Blocks::open(const World &world, const Line &registers) {
    uint32_t shape = registers.word(blk::SHAPE), log2 = shape & 0xff;
    uint64_t at = static_cast<uint64_t>(registers.word(blk::RING + 1)) << 32 | registers.word(blk::RING);
    // Blocks are counted anew, so an old one must not be taken for the first.
    put_word(world.window.at(blk::place(blk::BLOCK)), 0);
    told = 0;
    bool sense = log2 <= RING_LOG2 && 1u << log2 >= BLOCK_MAX && at % DESCRIPTOR_BYTES == 0;
    if (!sense || !world.host.holds(at, static_cast<uint64_t>(DESCRIPTOR_BYTES) << log2))
        return stop(world, blk::REGISTERS, 0);
    ring = at;
    entries = 1u << log2;
    next = registers.word(blk::OFFSET);
    vector = shape >> 16;
    signals = control & blk::SIGNALS;
    world.window.store(4 * blk::STATUS, blk::READY);
}

// The host has broken the protocol: the device stops, and says over what.
ON_DEVICE void Blocks::stop(const World &world, uint32_t violation, uint32_t count) {
    entries = 0;
    world.window.store(4 * blk::STATUS, blk::READY | violation << 8 | count << 16);
}

ON_DEVICE uint32_t Blocks::judge(const World &world, const Line &registers, uint32_t block) const {
    uint32_t size = block & 0xffff;
    if (block >> 16 != (((told >> 16) + 1) & 0xffff)) return blk::TURN;
    if (size == 0 || size > BLOCK_MAX || size > entries) return blk::SIZE;
    // It was stored before BLOCK, but may have been loaded before it too.
    if (registers.word(blk::OFFSET) == next) return blk::NONE;
    Line again;
    look(world, again);
    return again.word(blk::OFFSET) == next ? blk::NONE : blk::OFFSET_WRONG;
}

ON_DEVICE bool Blocks::turn(const World &world, Interrupts &interrupts) {
    Line registers;
    look(world, registers);
    uint32_t now = registers.word(blk::CONTROL), block = registers.word(blk::BLOCK);
    if (now != control) {
        bool was = control & blk::ENABLE, is = now & blk::ENABLE;
        control = now;
        look(world, registers);
        if (is && !was) open(world, registers);
        if (!is && was) {
            entries = 0;
            world.window.store(4 * blk::STATUS, 0);
        }
        return true;
    }
    if (entries == 0 || block == told) return false;
    uint32_t violation = judge(world, registers, block);
    if (violation != blk::NONE) {
        stop(world, violation, next);
        return true;
    }
    told = block;
    exchange(world, interrupts, block & 0xffff);
    return true;
}

// Descriptors of a block, copied out of host memory once, in one round trip.
constexpr uint32_t TAKEN_LINES = 4, TAKEN = TAKEN_LINES * DESCRIPTORS_A_LINE;

struct Descriptors {
    Line lines[TAKEN_LINES];

    ON_DEVICE uint32_t word(uint32_t descriptor, uint32_t number) const {
        const Line &line = lines[descriptor / DESCRIPTORS_A_LINE % TAKEN_LINES];
        return line.word(DESCRIPTOR_WORDS * (descriptor % DESCRIPTORS_A_LINE) + number);
    }
    ON_DEVICE uint64_t wide(uint32_t descriptor, uint32_t number) const {
        return static_cast<uint64_t>(word(descriptor, number + 1)) << 32 | word(descriptor, number);
    }
};

ON_DEVICE uint32_t carry_out(const World &world, const Descriptors &from, uint32_t descriptor) {
    uint64_t at = from.wide(descriptor, 0), offset = from.wide(descriptor, 2);
    uint32_t bytes = from.word(descriptor, 4) & 0xffff, operation = from.word(descriptor, 7) >> 8 & 0xff;
    uint32_t reserved = from.word(descriptor, 4) >> 16 | from.word(descriptor, 5) | from.word(descriptor, 6);
    if (reserved != 0 || operation < blk::READ || operation > blk::FLUSH) return blk::INVALID_FIELD;
    if (operation == blk::FLUSH) return bytes == 0 ? blk::DONE : blk::INVALID_FIELD;
    uint32_t block = world.medium.block_bytes();
    bool sense = bytes >= 1 && bytes <= PAGE_BYTES && at % 4 == 0 && offset % block == 0 && bytes % block == 0;
    if (!sense) return blk::INVALID_FIELD;
    if (!world.medium.holds(offset >> world.medium.block_log2, bytes >> world.medium.block_log2))
        return blk::OUT_OF_RANGE;
    // What counts of the page is moved; the rest of it is padding, but has to be there.
    if (!world.host.holds(at, PAGE_BYTES)) return blk::BAD_ADDRESS;
    uint32_t *host = world.host.word(at), *medium = world.medium.word(offset >> world.medium.block_log2);
    bool read = operation == blk::READ;
    copy_words(read ? host : medium, read ? medium : host, bytes / 4);
    return blk::DONE;
}

// Loads `count` descriptors from the block's `first` on; as Entries::fetch does, all at once.
ON_DEVICE void Blocks::take(const World &world, uint32_t first, uint32_t count, Descriptors &taken) const {
    Line fetched[TAKEN_LINES];
    UNROLLED
    for (uint32_t line = 0; line < TAKEN_LINES; line++) {
        uint32_t before = line * DESCRIPTORS_A_LINE, left = count > before ? count - before : 0;
        uint32_t here = left < DESCRIPTORS_A_LINE ? left : DESCRIPTORS_A_LINE;
        fetched[line].look(here * DESCRIPTOR_WORDS, [&](uint32_t number) {
            return place(world, next + first + before + number / DESCRIPTOR_WORDS) + number % DESCRIPTOR_WORDS;
        });
    }
    UNROLLED
    for (uint32_t line = 0; line < TAKEN_LINES; line++) taken.lines[line] = fetched[line];
}

// Takes an announced block, works on its commands, and gives it back. The host looks at its last word alone.
ON_DEVICE void Blocks::exchange(const World &world, Interrupts &interrupts, uint32_t size) {
    uint32_t answer = 0;
    for (uint32_t first = 0; first < size; first += TAKEN) {
        uint32_t here = size - first < TAKEN ? size - first : TAKEN;
        Descriptors taken;
        take(world, first, here, taken);
        for (uint32_t i = 0; i < here; i++) {
            uint32_t count = next + first + i, control_word = taken.word(i, 7);
            if ((control_word & 0xff) != blk::OF_DEVICE) return stop(world, blk::OWNER, count);
            if (control_word >> 16 != (count & 0xffff)) return stop(world, blk::COUNT, count);
            uint32_t status = carry_out(world, taken, i);
            answer = (control_word & 0xffffff00) | blk::RESPONSE | status << 4;
            if (first + i + 1 < size) put_word(place(world, count) + DESCRIPTOR_WORDS - 1, answer);
        }
    }
    fence();
    put_word(place(world, next + size - 1) + DESCRIPTOR_WORDS - 1, answer);
    next += size;
    if (signals) interrupts.signal(world, vector);
}
