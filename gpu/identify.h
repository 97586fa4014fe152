// What the controller says of itself: the pages of Identify (NVMe base 2.0, 5.17) and of Get Log Page (5.16),
// word by word, as every lane stores its own.
#pragma once

#include "memory.h"
#include "nvme_wire.h"

// Four characters of a text from byte `at` on, blanks behind its end.
ON_DEVICE uint32_t characters(const char *text, uint32_t length, uint32_t at) {
    uint32_t word = 0;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t letter = at + i < length ? static_cast<uint8_t>(text[at + i]) : ' ';
        word |= letter << (8 * i);
    }
    return word;
}

// Extended unique identifier of the namespace: locally administered.
constexpr uint32_t EUI_LOW = 0x6f6f6402, EUI_HIGH = 0x6c656272;

// Commands of each kind that wait at once, less one.
constexpr uint32_t ABORTS = 3, EVENT_REQUESTS = 4;

// The temperature that would be warned of, if any were measured.
constexpr uint32_t WARNING_KELVIN = 350;

struct IdentifyController {
    ON_DEVICE uint32_t operator()(uint32_t word) const {
        constexpr char SERIAL[] = "1", MODEL[] = "doorbell endpoint of another make", FIRMWARE[] = "1";
        constexpr char NAME[] = "nqn.2014-08.org.nvmexpress:uuid:6f6f6402-0000-4000-8000-6c6562720001";
        uint32_t at = 4 * word;
        if (at >= 4 && at < 24) return characters(SERIAL, sizeof SERIAL - 1, at - 4);
        if (at >= 24 && at < 64) return characters(MODEL, sizeof MODEL - 1, at - 24);
        if (at >= 64 && at < 72) return characters(FIRMWARE, sizeof FIRMWARE - 1, at - 64);
        // The name ends with zeros.
        if (at >= 768 && at < 768 + sizeof NAME - 1) return characters(NAME, sizeof NAME - 1, at - 768);
        switch (at) {
        case 76: return (TRANSFER_LOG2 - 12) << 8 | 1u << 16; // MDTS, CNTLID
        case 80: return 0x00010400;                           // VER
        case 108: return 1u << 24;                            // CNTRLTYPE: I/O
        case 256: return ABORTS << 16 | (EVENT_REQUESTS - 1) << 24;
        case 260: return 3;            // FRMW: one slot, read only
        case 264: return WARNING_KELVIN << 16; // WCTEMP
        case 268: return 360;          // CCTEMP
        case 512: return 0x4466;       // SQES, CQES
        case 516: return 1;            // NN
        default: return 0;
        }
    }
};

struct IdentifyNamespace {
    uint64_t blocks;
    uint32_t block_log2;

    ON_DEVICE uint32_t operator()(uint32_t word) const {
        switch (4 * word) {
        case 0: case 8: case 16: return static_cast<uint32_t>(blocks);
        case 4: case 12: case 20: return static_cast<uint32_t>(blocks >> 32);
        case 120: return EUI_LOW;
        case 124: return EUI_HIGH;
        case 128: return block_log2 << 16; // LBAF 0
        default: return 0;
        }
    }
};

// The active namespaces above one.
struct NamespaceList {
    uint32_t above;
    ON_DEVICE uint32_t operator()(uint32_t word) const { return word == 0 && above < 1 ? 1 : 0; }
};

// How the namespace is called: by its EUI-64 alone.
struct NamespaceDescriptors {
    ON_DEVICE uint32_t operator()(uint32_t word) const {
        return word == 0 ? 1u | 8u << 8 : word == 1 ? EUI_LOW : word == 2 ? EUI_HIGH : 0;
    }
};

// The logs that every controller has: errors (there are none), health, firmware.
struct LogPage {
    uint32_t log;
    // Of the health log: units of 1000 blocks of 512 bytes read and written, commands that did so.
    uint64_t counts[4];

    ON_DEVICE uint32_t operator()(uint32_t word) const {
        if (log == 2) return health(word);
        if (log == 3) return word == 0 ? 1 : word == 2 ? characters("1", 1, 0) : word == 3 ? 0x20202020 : 0;
        return 0;
    }

  private:
    // Counts have sixteen bytes each, from byte 32 on.
    ON_DEVICE uint32_t health(uint32_t word) const {
        if (word == 0) return 300u << 8 | 100u << 24; // kelvin, spare
        if (word == 1) return 10;                     // threshold of spare
        if (word < 8 || word >= 24 || word % 4 > 1) return 0;
        return static_cast<uint32_t>(counts[word / 4 - 2] >> (word % 4 * 32));
    }
};

constexpr uint32_t LOG_FIRST = 1, LOG_LAST = 3;
