// DC Express: commands that the device fetches unasked, and reads that end when a tag vanishes.
//
// The layouts are those of doorbell's `wire::dcx`; the idea is Dejan Vucinic et al., "DC Express: Shortest
// Latency Protocol for Reading Phase Change Memory over PCI Express" (FAST 2014). This device chooses no tags,
// never sleeps. Stores of many lanes become packets in any order. So a host has either one tag at the end of the data,
// which the device stores after a fence, or one tag in each packet, without a fence. The device chooses, and
// publishes the size of a packet.
#pragma once

#include "memory.h"

constexpr uint32_t DCX_BLOCK = 0x2000, DCX_QUEUES = 8, DCX_ENTRIES_LOG2 = 11;
constexpr uint32_t DCX_MAGIC = 0x31584344; // DCX1

// Registers of the block, and words of a queue's group of them.
namespace dcx {
constexpr uint32_t ID = 0x00, LIMITS = 0x04, GRAIN = 0x08, GROUPS = 0x40, GROUP_BYTES = 0x40;
constexpr uint32_t COMMANDS = 0, REPORTS = 2, NOTICE = 4, SHAPE = 6, CONTROL = 7, STATUS = 8;
constexpr uint32_t ENABLE = 1u << 0, SIGNALS = 1u << 2, READY = 1u << 0, FAULT = 1u << 1;
constexpr uint32_t READ = 1, WRITE = 2, FENCE = 3, FUA = 1;
// How a command ended: codes of reports. NONE is no report.
constexpr uint32_t DONE = 0, INVALID_OPCODE = 1, INVALID_FIELD = 2, OUT_OF_RANGE = 3, TOO_LONG = 4;
constexpr uint32_t BAD_ADDRESS = 5, STALE_TAG = 9, NONE = ~0u;
constexpr uint32_t NOTICE_BYTES = 64, TAG_WORD = 2;

ON_DEVICE uint32_t group(uint32_t queue) { return DCX_BLOCK + GROUPS + GROUP_BYTES * queue; }
} // namespace dcx

struct DcxQueue {
    uint64_t commands, reports;
    uint32_t entries; // 0: it is disabled
    uint32_t vector;
    bool signals;
    uint32_t next;     // the number of the next command
    uint32_t reported; // and of the last report
    uint32_t control;  // CONTROL, when it was last looked at
};

// A command that is to end when the fence has been passed.
struct DcxEnding {
    uint64_t at;    // where data went whose flags are to be stored, or a report's last word
    uint32_t bytes; // of the data; 0: a report
    uint32_t word;  // its number, or the last word of the data
};

struct Dcx {
    DcxQueue queues[DCX_QUEUES];
    DcxEnding endings[BURST];
    uint32_t ended;

    ON_DEVICE void publish(const World &world);
    ON_DEVICE bool turn(const World &world, Interrupts &interrupts);
    // Enables and disables queues.
    ON_DEVICE void look_at_controls(const World &world);

  private:
    ON_DEVICE void open(const World &world, uint32_t number, const Line &group, uint32_t from);
    ON_DEVICE uint32_t find(const World &world, const DcxQueue &queue, Entries &entries);
    ON_DEVICE uint32_t carry_out(const World &world, DcxQueue &queue, const Entries &entries, uint32_t entry);
    ON_DEVICE uint32_t move(const World &world, DcxQueue &queue, const Entries &entries, uint32_t entry, bool read);
    ON_DEVICE void report(const World &world, DcxQueue &queue, uint32_t command, uint32_t slot, uint32_t code);
    ON_DEVICE void finish(const World &world, Interrupts *interrupts, const DcxQueue &queue);
};

ON_DEVICE void Dcx::publish(const World &world) {
    ended = 0;
    for (uint32_t i = 0; i < DCX_QUEUES; i++) queues[i] = {};
    uint32_t limits = DCX_QUEUES | DCX_ENTRIES_LOG2 << 8 | TRANSFER_LOG2 << 16 | world.medium.block_log2 << 24;
    put_word(world.window.at(DCX_BLOCK + dcx::LIMITS), limits);
    put_word(world.window.at(DCX_BLOCK + dcx::GRAIN), world.packet_log2 << 24);
    world.window.store(DCX_BLOCK + dcx::ID, DCX_MAGIC);
}

// Two groups are one line. All lines are asked for before the first is waited for: their round trips are one.
ON_DEVICE void Dcx::look_at_controls(const World &world) {
    Line lines[DCX_QUEUES / 2];
    UNROLLED
    for (uint32_t pair = 0; pair < DCX_QUEUES / 2; pair++) lines[pair].look_at(world.window.at(dcx::group(2 * pair)));
    uint32_t controls[DCX_QUEUES];
    UNROLLED
    for (uint32_t number = 0; number < DCX_QUEUES; number++)
        controls[number] = lines[number / 2].word(number % 2 * ENTRY_WORDS + dcx::CONTROL);
    for (uint32_t number = 0; number < DCX_QUEUES; number++) {
        DcxQueue &queue = queues[number];
        bool was = queue.control & dcx::ENABLE, is = controls[number] & dcx::ENABLE;
        queue.control = controls[number];
        if (was == is) continue;
        if (is) {
            fence();
            Line group;
            group.look_at(world.window.at(dcx::group(number)), ENTRY_WORDS);
            open(world, number, group, 0);
        } else {
            // Nothing is under way between two turns.
            queue.entries = 0;
            world.window.store(dcx::group(number) + 4 * dcx::STATUS, 0);
        }
    }
}

ON_DEVICE void Dcx::open(const World &world, uint32_t number, const Line &group, uint32_t from) {
    auto wide = [&](uint32_t word) {
        return static_cast<uint64_t>(group.word(from + word + 1)) << 32 | group.word(from + word);
    };
    uint64_t commands = wide(dcx::COMMANDS), reports = wide(dcx::REPORTS), notice = wide(dcx::NOTICE);
    uint32_t shape = group.word(from + dcx::SHAPE), control = queues[number].control;
    uint32_t log2 = shape & 0xff, packet = shape >> 8 & 0xff;
    bool sense = log2 >= 1 && log2 <= DCX_ENTRIES_LOG2 && packet == world.packet_log2;
    sense = sense && commands % 64 == 0 && reports % 16 == 0 && notice % dcx::NOTICE_BYTES == 0;
    sense = sense && world.host.holds(commands, 64ull << log2) && world.host.holds(reports, 16ull << log2);
    sense = sense && world.host.holds(notice, dcx::NOTICE_BYTES);
    uint32_t status = dcx::READY | dcx::FAULT;
    if (sense) {
        status = dcx::READY;
        DcxQueue &queue = queues[number];
        queue = {commands, reports, 1u << log2, shape >> 16,
                 (control & dcx::SIGNALS) != 0, 1, 0, control};
        // No tag is in force, and nobody sleeps.
        for (uint32_t word = 0; word < 4; word++) put_word(world.host.word(notice) + word, 0);
    }
    world.window.store(dcx::group(number) + 4 * dcx::STATUS, status);
}

// The commands that are there, and how many they are. An entry is there when its last word is its number.
ON_DEVICE uint32_t Dcx::find(const World &world, const DcxQueue &queue, Entries &entries) {
    uint32_t first = (queue.next - 1) & (queue.entries - 1);
    uint32_t most = queue.entries < BURST ? queue.entries : BURST;
    const uint32_t *ring = world.host.word(queue.commands);
    Line numbers;
    if (world.whole_lines) {
        // One round trip: a line of which the last word is new is new.
        entries.fetch(ring, first, most, queue.entries);
    } else {
        uint32_t mask = queue.entries - 1;
        numbers.look<Order::acquire>(most, [=](uint32_t i) {
            return ring + ((first + i) & mask) * ENTRY_WORDS + ENTRY_WORDS - 1;
        });
    }
    uint32_t found = 0;
    while (found < most) {
        uint32_t number = world.whole_lines ? entries.word(found, ENTRY_WORDS - 1) : numbers.word(found);
        if (number != queue.next + found) break;
        found++;
    }
    // Loads that acquire would wait for each other, so that here a fence does.
    if (found > 0 && world.whole_lines) fence();
    // Two round trips: the rest is loaded behind the number.
    if (found > 0 && !world.whole_lines) entries.fetch(ring, first, found, queue.entries);
    return found;
}

ON_DEVICE bool Dcx::turn(const World &world, Interrupts &interrupts) {
    bool any = false;
    for (uint32_t number = 0; number < DCX_QUEUES; number++) {
        DcxQueue &queue = queues[number];
        if (queue.entries == 0) continue;
        Entries entries;
        uint32_t found = find(world, queue, entries);
        for (uint32_t entry = 0; entry < found; entry++) {
            uint32_t code = carry_out(world, queue, entries, entry);
            uint32_t slot = entries.word(entry, 0) >> 16;
            if (code != dcx::NONE) report(world, queue, queue.next, slot, code);
            queue.next++;
        }
        if (found > 0) finish(world, queue.signals ? &interrupts : nullptr, queue);
        any = any || found > 0;
    }
    return any;
}

ON_DEVICE uint32_t Dcx::carry_out(const World &world, DcxQueue &queue, const Entries &entries, uint32_t entry) {
    uint32_t first = entries.word(entry, 0), operation = first & 0xff, flags = first >> 8 & 0xff;
    if (operation < dcx::READ || operation > dcx::FENCE) return dcx::INVALID_OPCODE;
    uint32_t reserved = flags & ~(operation == dcx::WRITE ? dcx::FUA : 0);
    for (uint32_t word = 7; word < 15; word++) reserved |= entries.word(entry, word);
    if (reserved != 0) return dcx::INVALID_FIELD;
    if (operation != dcx::FENCE) return move(world, queue, entries, entry, operation == dcx::READ);
    // What came before has ended when its flags have been stored.
    finish(world, nullptr, queue);
    return dcx::DONE;
}

// Whether the lanes' stores of 16 bytes form the packets that the host has tags in.
ON_DEVICE bool lands_by_packets(const World &world, uint64_t at, uint32_t bytes) {
    return at % (1u << world.packet_log2) == 0 && bytes % 16 == 0;
}

ON_DEVICE uint32_t Dcx::move(const World &world, DcxQueue &queue, const Entries &entries, uint32_t entry,
                             bool read) {
    uint64_t lba = entries.wide(entry, 2), at = entries.wide(entry, 4);
    uint32_t bytes = entries.word(entry, 6), block = world.medium.block_bytes();
    if (bytes == 0 || bytes % 4 != 0 || at % 4 != 0) return dcx::INVALID_FIELD;
    bool whole = bytes % block == 0;
    if (!whole && (!read || bytes > block)) return dcx::INVALID_FIELD;
    if (!world.medium.holds(lba, (static_cast<uint64_t>(bytes) + block - 1) / block)) return dcx::OUT_OF_RANGE;
    if (bytes > TRANSFER_BYTES) return dcx::TOO_LONG;
    if (!world.host.holds(at, bytes)) return dcx::BAD_ADDRESS;
    uint32_t *host = world.host.word(at), *medium = world.medium.word(lba), words = bytes / 4;
    if (!read) {
        // What was read of these blocks before is to be whole: its last words are not on their way yet.
        finish(world, nullptr, queue);
        copy_words(medium, host, words);
        return dcx::DONE;
    }
    if (entries.word(entry, 1) != 0) return dcx::STALE_TAG;
    if (world.packet_log2 != 0 && lands_by_packets(world, at, bytes)) {
        // The data overwrite all tags.
        copy_words(host, medium, words);
        return dcx::NONE;
    }
    // The last word is a tag in either mode, so storing it after a fence is enough.
    copy_words(host, medium, words - 1);
    endings[ended++] = {at, bytes, load_word(medium + words - 1)};
    return dcx::NONE;
}

ON_DEVICE void Dcx::report(const World &world, DcxQueue &queue, uint32_t command, uint32_t slot, uint32_t code) {
    queue.reported++;
    uint64_t at = queue.reports + 16 * ((queue.reported - 1) & (queue.entries - 1));
    uint32_t *place = world.host.word(at);
    put_word(place, command);
    put_word(place + 1, slot | code << 16);
    put_word(place + 2, 0);
    endings[ended++] = {at + 12, 0, queue.reported};
}

// Stores what tells of all that has been done since: the last words of data, and the numbers of reports.
ON_DEVICE void Dcx::finish(const World &world, Interrupts *interrupts, const DcxQueue &queue) {
    if (ended > 0) fence();
    for (uint32_t i = 0; i < ended; i++) {
        const DcxEnding &ending = endings[i];
        uint64_t last = ending.bytes == 0 ? ending.at : ending.at + ending.bytes - 4;
        put_word(world.host.word(last), ending.word);
    }
    ended = 0;
    if (interrupts != nullptr) interrupts->signal(world, queue.vector);
}
