// Admin commands (NVMe base 2.0, 5).
#pragma once

#include "nvme.h"

ON_DEVICE Ending Nvme::create(const World &world, const Entries &entries, uint32_t entry, bool submission) {
    uint64_t at = entries.wide(entry, 6);
    uint32_t shape = entries.word(entry, 10), more = entries.word(entry, 11);
    uint32_t number = shape & 0xffff, size = (shape >> 16) + 1;
    bool free = number > 0 && number < QUEUES &&
                (submission ? submissions[number].entries : completions[number].entries) == 0;
    if (!free) return {0, status::QUEUE_IDENTIFIER, false};
    if (size < 2 || size > QUEUE_ENTRIES) return {0, status::QUEUE_SIZE, false};
    if ((more & 1) == 0) return {0, status::INVALID_FIELD, false};
    if (at % PAGE_BYTES != 0) return {0, status::PRP_OFFSET, false};
    if (!world.host.holds(at, (submission ? 64 : 16) * size)) return {0, status::DATA_TRANSFER, false};
    uint32_t other = more >> 16;
    if (submission) {
        // Number 0 is the admin queue's.
        bool known = other > 0 && other < QUEUES && completions[other].entries != 0;
        if (!known) return {0, status::CQ_INVALID, false};
        submissions[number] = {at, size, 0, other};
    } else {
        if (other >= VECTORS) return {0, status::INTERRUPT_VECTOR, false};
        completions[number] = {at, size, 0, 1, other, (more & 2) != 0};
    }
    // The host rings when it has been told.
    put_word(world.window.at(tail_doorbell(number) + (submission ? 0 : 4)), 0);
    return {0, status::SUCCESS, false};
}

ON_DEVICE Ending Nvme::remove(uint32_t number, bool submission) {
    bool known = number > 0 && number < QUEUES &&
                 (submission ? submissions[number].entries : completions[number].entries) != 0;
    if (!known) return {0, status::QUEUE_IDENTIFIER, false};
    if (submission) {
        submissions[number].entries = 0;
        return {0, status::SUCCESS, false};
    }
    for (uint32_t i = 1; i < QUEUES; i++)
        if (submissions[i].entries != 0 && submissions[i].completions == number)
            return {0, status::QUEUE_DELETION, false};
    completions[number].entries = 0;
    return {0, status::SUCCESS, false};
}

// Two thresholds of the one temperature (5.27.1.3). There are no sensors beside it.
ON_DEVICE Ending Nvme::temperature(uint32_t value, bool set) {
    uint32_t sensor = value >> 16 & 15, which = value >> 20 & 3;
    bool known = which <= 1 && (sensor == 0 || (set && sensor == 15));
    if (!known) return {0, status::INVALID_FIELD, false};
    uint32_t &threshold = which == 0 ? features[feature::TEMPERATURE] : too_cold;
    if (set) threshold = value & 0xffff;
    return {set ? 0 : threshold, status::SUCCESS, false};
}

// Completions are never gathered; what a host has said of it is kept (5.27.1.7).
ON_DEVICE Ending Nvme::vector_configuration(uint32_t value, bool set) {
    uint32_t vector = value & 0xffff;
    if (vector >= VECTORS) return {0, status::INVALID_FIELD, false};
    uint64_t bit = 1ull << vector;
    if (set) without_coalescing = (value >> 16 & 1) != 0 ? without_coalescing | bit : without_coalescing & ~bit;
    uint32_t without = (without_coalescing & bit) != 0 ? 1u << 16 : 0;
    return {set ? 0 : vector | without, status::SUCCESS, false};
}

ON_DEVICE Ending Nvme::get_set(uint32_t id, uint32_t value, bool set) {
    // Those without which no controller is (5.27), and none that is kept over a reset.
    bool known = id >= 1 && id <= feature::LAST_KNOWN && id != feature::LBA_RANGE_TYPE;
    if (!known || id == feature::VOLATILE_CACHE) return {0, status::INVALID_FIELD, false};
    if (id == feature::TEMPERATURE) return temperature(value, set);
    if (id == feature::VECTOR) return vector_configuration(value, set);
    // There is one power state.
    if (set && id == feature::POWER && (value & 31) != 0) return {0, status::INVALID_FIELD, false};
    constexpr uint32_t MOST = QUEUES - 2;
    if (id == feature::NUMBER_OF_QUEUES) {
        for (uint32_t i = 1; set && i < QUEUES; i++)
            if (completions[i].entries != 0) return {0, status::SEQUENCE, false};
        bool none = (value & 0xffff) == 0xffff || value >> 16 == 0xffff;
        if (set && none) return {0, status::INVALID_FIELD, false};
        return {MOST | MOST << 16, status::SUCCESS, false};
    }
    if (set) features[id] = value;
    return {set ? 0 : features[id], status::SUCCESS, false};
}

ON_DEVICE uint32_t identify(const World &world, const Entries &entries, uint32_t entry) {
    uint64_t prp1 = entries.wide(entry, 6), prp2 = entries.wide(entry, 8);
    uint32_t name = entries.word(entry, 1);
    switch (entries.word(entry, 10) & 0xff) {
    case 0: {
        if (name != 1) return status::INVALID_NAMESPACE;
        IdentifyNamespace words{world.medium.blocks, world.medium.block_log2};
        return give_words(world, prp1, prp2, PAGE_BYTES, words);
    }
    case 1: return give_words(world, prp1, prp2, PAGE_BYTES, IdentifyController{});
    case 2:
        if (name >= 0xfffffffeu) return status::INVALID_NAMESPACE;
        return give_words(world, prp1, prp2, PAGE_BYTES, NamespaceList{name});
    case 3:
        if (name != 1) return status::INVALID_NAMESPACE;
        return give_words(world, prp1, prp2, PAGE_BYTES, NamespaceDescriptors{});
    default: return status::INVALID_FIELD;
    }
}

ON_DEVICE uint32_t Nvme::log_page(const World &world, const Entries &entries, uint32_t entry) const {
    uint32_t log = entries.word(entry, 10) & 0xff, name = entries.word(entry, 1);
    uint32_t words = (entries.word(entry, 10) >> 16 | entries.word(entry, 11) << 16) + 1;
    if (log < LOG_FIRST || log > LOG_LAST) return status::LOG_PAGE;
    if (words == 0 || words > TRANSFER_BYTES / 4) return status::INVALID_FIELD;
    // Of the controller alone (LPA).
    if (log == 2 && name != 0 && name != 0xffffffffu) return status::INVALID_FIELD;
    auto units = [](uint64_t bytes) { return (bytes + 511999) / 512000; };
    LogPage page{log, {units(health.bytes_read), units(health.bytes_written), health.reads, health.writes}};
    return give_words(world, entries.wide(entry, 6), entries.wide(entry, 8), 4 * words, page);
}

ON_DEVICE Ending Nvme::administer(const World &world, const Entries &entries, uint32_t entry) {
    uint32_t first = entries.word(entry, 0), tenth = entries.word(entry, 10);
    if ((first >> 8 & 0xff) != 0) return {0, status::INVALID_FIELD, false};
    switch (first & 0xff) {
    case opcode::CREATE_SQ: return create(world, entries, entry, true);
    case opcode::CREATE_CQ: return create(world, entries, entry, false);
    case opcode::DELETE_SQ: return remove(tenth & 0xffff, true);
    case opcode::DELETE_CQ: return remove(tenth & 0xffff, false);
    case opcode::IDENTIFY: return {0, identify(world, entries, entry), false};
    case opcode::GET_LOG_PAGE: return {0, log_page(world, entries, entry), false};
    case opcode::SET_FEATURES: return get_set(tenth & 0xff, entries.word(entry, 11), true);
    case opcode::GET_FEATURES: return get_set(tenth & 0xff, entries.word(entry, 11), false);
    // Bit 0: not aborted, as it has ended.
    case opcode::ABORT: return {1, status::SUCCESS, false};
    case opcode::ASYNC_EVENT_REQUEST:
        if (event_requests == EVENT_REQUESTS) return {0, status::AER_LIMIT, false};
        event_requests++;
        return {0, status::SUCCESS, true};
    default: return {0, status::INVALID_OPCODE, false};
    }
}
