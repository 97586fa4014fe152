// NVM Express: queues in host memory, doorbells, completion entries.
//
// Commands are carried out one after the other, each when it is fetched: when a look finds none that is new,
// none is under way. So there is nothing to abort, and nothing to wait for when a queue is deleted or the
// controller disabled.
#pragma once

#include "identify.h"
#include "prp.h"

// With the admin queues, two doorbells each: one line.
constexpr uint32_t QUEUES = LINE_WORDS / 2;
constexpr uint32_t QUEUE_ENTRIES = 1024;
constexpr uint32_t ADMIN_ENTRIES = 4096;

// Words that the host can only read: CAP, VS, a reserved one, CSTS.
constexpr uint32_t READ_ONLY = 1u << 0 | 1u << 1 | 1u << 2 | 1u << 6 | 1u << 7, READ_ONLY_LAST = 7;

struct SubmissionQueue {
    uint64_t at;
    uint32_t entries; // 0: there is none
    uint32_t head;
    uint32_t completions;
};

struct CompletionQueue {
    uint64_t at;
    uint32_t entries; // 0: there is none
    uint32_t tail;
    uint32_t phase;
    uint32_t vector;
    bool interrupts;
};

// What the health log counts since the controller was started.
struct Health {
    uint64_t reads, writes, bytes_read, bytes_written;
    uint32_t block_log2;

    ON_DEVICE void count(const Entries &entries, uint32_t entry) {
        uint64_t bytes = static_cast<uint64_t>((entries.word(entry, 12) & 0xffff) + 1) << block_log2;
        switch (entries.word(entry, 0) & 0xff) {
        case opcode::READ: reads++, bytes_read += bytes; break;
        case opcode::WRITE: writes++, bytes_written += bytes; break;
        default: break;
        }
    }
};

// How a command ended: what its completion says.
struct Ending {
    uint32_t result;
    uint32_t status;
    bool held; // no completion now
};

struct Nvme {
    SubmissionQueue submissions[QUEUES];
    CompletionQueue completions[QUEUES];
    uint32_t features[feature::LAST_KNOWN + 1];
    uint32_t too_cold;           // the other threshold of temperature
    uint64_t without_coalescing; // vectors
    Health health;
    uint32_t event_requests;
    uint32_t configuration; // CC, when it was last looked at
    uint32_t state;         // CSTS
    bool ready;

    ON_DEVICE void publish(const World &world);
    ON_DEVICE bool turn(const World &world, Interrupts &interrupts);

  private:
    ON_DEVICE uint32_t read_only(uint32_t word) const;
    ON_DEVICE bool restore(const World &world, const Line &registers) const;
    ON_DEVICE void configure(const World &world, uint32_t cc, const Line &registers);
    ON_DEVICE bool enable(const World &world, uint32_t cc, const Line &registers);
    ON_DEVICE void forget();
    ON_DEVICE void serve(const World &world, Interrupts &interrupts, uint32_t queue, uint32_t tail,
                         uint32_t free);
    ON_DEVICE Ending administer(const World &world, const Entries &entries, uint32_t entry);
    ON_DEVICE Ending create(const World &world, const Entries &entries, uint32_t entry, bool submission);
    ON_DEVICE Ending remove(uint32_t number, bool submission);
    ON_DEVICE Ending get_set(uint32_t id, uint32_t value, bool set);
    ON_DEVICE Ending temperature(uint32_t value, bool set);
    ON_DEVICE Ending vector_configuration(uint32_t value, bool set);
    ON_DEVICE uint32_t log_page(const World &world, const Entries &entries, uint32_t entry) const;
};

// Where a queue's doorbells lie (3.1.3.1 of the PCIe transport: a stride of four bytes).
ON_DEVICE uint32_t tail_doorbell(uint32_t queue) { return reg::DOORBELLS + 8 * queue; }

// Moves data for a read or a write, or a page of words for an admin command.
template <typename Words>
ON_DEVICE uint32_t give_words(const World &world, uint64_t prp1, uint64_t prp2, uint32_t bytes, Words words) {
    return for_each_page(world.host, prp1, prp2, bytes, [&](uint64_t at, uint32_t offset, uint32_t here) {
        uint32_t *to = world.host.word(at);
        for (uint32_t i = lane(); i < here / 4; i += LANES) store_word(to + i, words(offset / 4 + i));
    });
}

ON_DEVICE Ending read_or_write(const World &world, const Entries &entries, uint32_t entry, bool read) {
    uint64_t first = entries.wide(entry, 10);
    uint32_t count = (entries.word(entry, 12) & 0xffff) + 1;
    uint64_t prp1 = entries.wide(entry, 6), prp2 = entries.wide(entry, 8);
    if (!world.medium.holds(first, count)) return {0, status::LBA_RANGE, false};
    if (count > TRANSFER_BYTES >> world.medium.block_log2) return {0, status::INVALID_FIELD, false};
    uint32_t *medium = world.medium.word(first);
    uint32_t bytes = count << world.medium.block_log2;
    auto move = [&](uint64_t at, uint32_t offset, uint32_t here) {
        uint32_t *host = world.host.word(at), *blocks = medium + offset / 4;
        copy_words(read ? host : blocks, read ? blocks : host, here / 4);
    };
    return {0, for_each_page(world.host, prp1, prp2, bytes, move), false};
}

ON_DEVICE Ending carry_out(const World &world, const Entries &entries, uint32_t entry) {
    uint32_t first = entries.word(entry, 0), name = entries.word(entry, 1);
    // Fused commands, and lists that are none of pages.
    if ((first >> 8 & 0xff) != 0) return {0, status::INVALID_FIELD, false};
    switch (first & 0xff) {
    case opcode::FLUSH: {
        bool known = name == 1 || name == 0xffffffffu;
        // What is written is on the medium when its completion is posted.
        return {0, known ? status::SUCCESS : status::INVALID_NAMESPACE, false};
    }
    case opcode::WRITE:
    case opcode::READ:
        if (name != 1) return {0, status::INVALID_NAMESPACE, false};
        return read_or_write(world, entries, entry, (first & 0xff) == opcode::READ);
    default: return {0, status::INVALID_OPCODE, false};
    }
}

// Says what can be read, and that nothing is ready yet.
ON_DEVICE void Nvme::publish(const World &world) {
    configuration = state = 0;
    ready = false;
    health = {};
    health.block_log2 = world.medium.block_log2;
    forget();
    for (uint32_t word = 0; word <= READ_ONLY_LAST; word++)
        if (READ_ONLY >> word & 1) world.window.store(4 * word, read_only(word));
}

// What a register says that the host can only read.
ON_DEVICE uint32_t Nvme::read_only(uint32_t word) const {
    switch (4 * word) {
    case reg::CAP: return (QUEUE_ENTRIES - 1) | 1u << 16 | 20u << 24; // MQES, CQR, TO of 10 s
    case reg::CAP + 4: return 1u << 5;                                // the NVM command set
    case reg::VS: return 0x00010400;
    case reg::CSTS: return state;
    default: return 0;
    }
}

// Memory that both have knows no register that is read only: what the host has written there is put right.
ON_DEVICE bool Nvme::restore(const World &world, const Line &registers) const {
    bool any = false;
    for (uint32_t word = 0; word <= READ_ONLY_LAST; word++) {
        if ((READ_ONLY >> word & 1) == 0 || registers.word(word) == read_only(word)) continue;
        world.window.store(4 * word, read_only(word));
        any = true;
    }
    return any;
}

ON_DEVICE void Nvme::forget() {
    for (uint32_t i = 0; i < QUEUES; i++) {
        submissions[i].entries = 0;
        completions[i].entries = 0;
    }
    for (uint32_t i = 0; i <= feature::LAST_KNOWN; i++) features[i] = 0;
    features[feature::TEMPERATURE] = WARNING_KELVIN;
    too_cold = 0;
    without_coalescing = 0;
    event_requests = 0;
}

// CC has changed. Whatever it asks for is done when CSTS says so.
ON_DEVICE void Nvme::configure(const World &world, uint32_t cc, const Line &registers) {
    bool was = configuration & CC_EN, is = cc & CC_EN;
    configuration = cc;
    if (!is) {
        ready = false;
        forget();
        put_word(world.window.at(reg::INTMS), 0);
        put_word(world.window.at(reg::INTMC), 0);
    } else if (!was) {
        ready = enable(world, cc, registers);
    }
    state = ready ? CSTS_RDY : is ? CSTS_CFS : 0;
    state |= (cc & CC_SHUTDOWN) != 0 ? CSTS_SHUT_DOWN : 0;
    world.window.store(reg::CSTS, state);
}

ON_DEVICE bool Nvme::enable(const World &world, uint32_t cc, const Line &registers) {
    forget();
    uint32_t attributes = registers.word(reg::AQA / 4);
    uint32_t submission = (attributes & 0xfff) + 1, completion = (attributes >> 16 & 0xfff) + 1;
    auto wide = [&](uint32_t at) {
        return static_cast<uint64_t>(registers.word(at / 4 + 1)) << 32 | registers.word(at / 4);
    };
    uint64_t sq = wide(reg::ASQ), cq = wide(reg::ACQ);
    bool sense = (cc & CC_SHAPE_MASK) == CC_SHAPE && submission > 1 && completion > 1;
    sense = sense && sq % PAGE_BYTES == 0 && cq % PAGE_BYTES == 0;
    if (!sense || !world.host.holds(sq, 64 * submission) || !world.host.holds(cq, 16 * completion)) return false;
    submissions[0] = {sq, submission, 0, 0};
    completions[0] = {cq, completion, 0, 1, 0, true};
    // Doorbells of an earlier life.
    for (uint32_t i = lane(); i < 2 * QUEUES; i += LANES) store_word(world.window.at(reg::DOORBELLS + 4 * i), 0);
    return true;
}

// Looks at registers and doorbells once; says whether there was anything to do.
ON_DEVICE bool Nvme::turn(const World &world, Interrupts &interrupts) {
    Line registers, doorbells;
    registers.look_at(world.window.at(0));
    doorbells.look_at<Order::acquire>(world.window.at(reg::DOORBELLS));
    uint32_t cc = registers.word(reg::CC / 4);
    if (cc != configuration) {
        fence();
        // What was stored before CC.
        registers.look_at(world.window.at(0));
        configure(world, cc, registers);
        return true;
    }
    bool found = restore(world, registers);
    for (uint32_t queue = 0; ready && queue < QUEUES; queue++) {
        const SubmissionQueue &from = submissions[queue];
        uint32_t tail = doorbells.word(2 * queue);
        if (from.entries == 0 || tail == from.head || tail >= from.entries) continue;
        const CompletionQueue &to = completions[from.completions];
        uint32_t head = doorbells.word(2 * from.completions + 1);
        // A head of no sense frees nothing.
        uint32_t used = head < to.entries ? (to.tail + to.entries - head) % to.entries : to.entries - 1;
        uint32_t free = to.entries - 1 - used;
        if (free == 0) continue;
        found = true;
        serve(world, interrupts, queue, tail, free);
        // A queue that was just created has a doorbell that this look has not seen.
        if (queue == 0) break;
    }
    return found;
}

// Fetches a burst, carries it out, and posts its completions behind one fence.
ON_DEVICE void Nvme::serve(const World &world, Interrupts &interrupts, uint32_t queue, uint32_t tail,
                           uint32_t free) {
    SubmissionQueue &from = submissions[queue];
    uint32_t count = (tail + from.entries - from.head) % from.entries;
    count = count < free ? count : free;
    count = count < BURST ? count : BURST;
    Entries entries;
    entries.fetch(world.host.word(from.at), from.head, count, from.entries);
    CompletionQueue &to = completions[from.completions];
    uint32_t *places[BURST], flags[BURST], posted = 0;
    for (uint32_t entry = 0; entry < count; entry++) {
        from.head = from.head + 1 == from.entries ? 0 : from.head + 1;
        Ending ending = queue == 0 ? administer(world, entries, entry) : carry_out(world, entries, entry);
        if (ending.held) continue;
        if (queue != 0 && ending.status == status::SUCCESS) health.count(entries, entry);
        uint32_t *place = world.host.word(to.at + 16 * to.tail);
        put_word(place, ending.result);
        put_word(place + 1, 0);
        put_word(place + 2, from.head | queue << 16);
        places[posted] = place + 3;
        flags[posted++] = entries.word(entry, 0) >> 16 | (ending.status << 1 | to.phase) << 16;
        to.tail++;
        if (to.tail == to.entries) {
            to.tail = 0;
            to.phase ^= 1;
        }
    }
    fence();
    for (uint32_t i = 0; i < posted; i++) put_word(places[i], flags[i]);
    if (posted > 0 && to.interrupts) interrupts.signal(world, to.vector);
}
