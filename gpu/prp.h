// Physical region pages: where a command's data lie in host memory (NVMe base 2.0, 4.1.1).
#pragma once

#include "memory.h"
#include "nvme_wire.h"

struct Segment {
    uint64_t at;
    uint32_t bytes;
};

// Walks a command's pages. Each list names at least one page, or leads to a page of 512 entries, so that the
// command's length bounds the walk, whatever the lists say.
struct PrpWalk {
    uint64_t second;
    uint64_t list;
    bool listed;
    uint32_t left;
    uint32_t known;
    uint32_t next;
    Line entries;

    // How the first page is to be taken, or a status.
    ON_DEVICE uint32_t begin(uint64_t prp1, uint64_t prp2, uint32_t bytes, Segment &first) {
        uint32_t offset = prp1 % PAGE_BYTES;
        uint32_t here = bytes < PAGE_BYTES - offset ? bytes : PAGE_BYTES - offset;
        first = {prp1, here};
        left = bytes - here;
        listed = left > PAGE_BYTES;
        second = list = prp2;
        known = next = 0;
        if (prp1 % 4 != 0) return status::PRP_OFFSET;
        if (listed) return prp2 % 8 != 0 ? status::PRP_OFFSET : status::SUCCESS;
        return left > 0 && prp2 % PAGE_BYTES != 0 ? status::PRP_OFFSET : status::SUCCESS;
    }

    // The next page, or a status. Call it while something is left.
    ON_DEVICE uint32_t step(const HostMemory &host, Segment &segment) {
        uint64_t page = second;
        if (listed) {
            uint32_t found = entry(host, page);
            if (found != status::SUCCESS) return found;
            // The last entry of a page of a list leads on, if more than one page is left.
            if (list % PAGE_BYTES == 0 && left > PAGE_BYTES) {
                list = page;
                known = next = 0;
                found = entry(host, page);
                if (found != status::SUCCESS) return found;
            }
        }
        segment = {page, left < PAGE_BYTES ? left : PAGE_BYTES};
        left -= segment.bytes;
        return status::SUCCESS;
    }

  private:
    // Takes one entry of the list; sixteen are brought at a time, none from behind the end of its page.
    ON_DEVICE uint32_t entry(const HostMemory &host, uint64_t &page) {
        if (next == known) {
            uint32_t to_end = (PAGE_BYTES - list % PAGE_BYTES) / 8;
            uint32_t wanted = (left + PAGE_BYTES - 1) / PAGE_BYTES;
            known = wanted < to_end ? wanted : to_end;
            known = known < LINE_WORDS / 2 ? known : LINE_WORDS / 2;
            next = 0;
            if (!host.holds(list, 8 * known)) return status::DATA_TRANSFER;
            entries.look_at(host.word(list), 2 * known);
        }
        page = static_cast<uint64_t>(entries.word(2 * next + 1)) << 32 | entries.word(2 * next);
        next++;
        list += 8;
        return page % PAGE_BYTES != 0 ? status::PRP_OFFSET : status::SUCCESS;
    }
};

// Moves what a command's pages name, piece by piece: `move(at, offset, bytes)` is called for each that lies in
// the host's memory.
template <typename Move>
ON_DEVICE uint32_t for_each_page(const HostMemory &host, uint64_t prp1, uint64_t prp2, uint32_t bytes,
                                 Move move) {
    PrpWalk walk;
    Segment segment;
    uint32_t done = 0;
    uint32_t found = walk.begin(prp1, prp2, bytes, segment);
    while (found == status::SUCCESS) {
        if (!host.holds(segment.at, segment.bytes)) return status::DATA_TRANSFER;
        move(segment.at, done, segment.bytes);
        done += segment.bytes;
        if (walk.left == 0) return status::SUCCESS;
        found = walk.step(host, segment);
    }
    return found;
}
