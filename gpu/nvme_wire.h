// NVMe's numbers, as far as this controller knows them. Sections are those of NVMe base 2.0.
#pragma once

#include <cstdint>

// Registers, offsets in bytes (3.1.3).
namespace reg {
constexpr uint32_t CAP = 0x00, VS = 0x08, INTMS = 0x0c, INTMC = 0x10, CC = 0x14, CSTS = 0x1c, AQA = 0x24;
constexpr uint32_t ASQ = 0x28, ACQ = 0x30, DOORBELLS = 0x1000;
} // namespace reg

// CC (3.1.3.5) and CSTS (3.1.3.6).
constexpr uint32_t CC_EN = 1u << 0, CSTS_RDY = 1u << 0, CSTS_CFS = 1u << 1, CSTS_SHUT_DOWN = 2u << 2;
constexpr uint32_t CC_SHUTDOWN = 3u << 14;
// Command set, page size, arbitration, entries: those of this controller, or nothing of sense.
constexpr uint32_t CC_SHAPE_MASK = 0x00ff3ff0u, CC_SHAPE = 6u << 16 | 4u << 20;

namespace opcode {
constexpr uint32_t DELETE_SQ = 0x00, CREATE_SQ = 0x01, GET_LOG_PAGE = 0x02, DELETE_CQ = 0x04;
constexpr uint32_t CREATE_CQ = 0x05, IDENTIFY = 0x06, ABORT = 0x08, SET_FEATURES = 0x09;
constexpr uint32_t GET_FEATURES = 0x0a, ASYNC_EVENT_REQUEST = 0x0c;
constexpr uint32_t FLUSH = 0x00, WRITE = 0x01, READ = 0x02;
} // namespace opcode

// Status fields (3.3.3.2.1): the code, its type from bit 8 on, and "do not retry" in bit 14.
namespace status {
constexpr uint32_t DNR = 1u << 14;
constexpr uint32_t SUCCESS = 0, INVALID_OPCODE = 0x01 | DNR, INVALID_FIELD = 0x02 | DNR;
constexpr uint32_t SEQUENCE = 0x0c | DNR, DATA_TRANSFER = 0x04, INVALID_NAMESPACE = 0x0b | DNR, PRP_OFFSET = 0x13 | DNR;
constexpr uint32_t LBA_RANGE = 0x80 | DNR, CQ_INVALID = 0x100 | DNR, QUEUE_IDENTIFIER = 0x101 | DNR;
constexpr uint32_t QUEUE_SIZE = 0x102 | DNR, AER_LIMIT = 0x105 | DNR, INTERRUPT_VECTOR = 0x108 | DNR;
constexpr uint32_t LOG_PAGE = 0x109 | DNR, QUEUE_DELETION = 0x10c | DNR;
} // namespace status

namespace feature {
constexpr uint32_t POWER = 0x02, LBA_RANGE_TYPE = 0x03, TEMPERATURE = 0x04, VOLATILE_CACHE = 0x06;
constexpr uint32_t NUMBER_OF_QUEUES = 0x07, VECTOR = 0x09, LAST_KNOWN = 0x0b;
}
