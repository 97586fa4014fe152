// Where the controller runs: a thread of this process, or a kernel of a GPU. One of cpu.cc and cuda.cu is linked.
#pragma once

#include "endpoint.h"
#include "probe.h"
#include "trial.h"

#include <memory>
#include <string>
#include <vector>

// What is to be mapped for the device, and how it is found there.
class Place {
  public:
    virtual ~Place() = default;

    // In words, for the report.
    virtual std::string name() const = 0;

    // The medium, zeroed. It lives as long as the place.
    virtual uint8_t *medium(uint64_t bytes) = 0;

    // Stores a byte all over memory of the device.
    virtual void fill(uint8_t *medium, uint8_t byte, uint64_t bytes) = 0;

    // Memory of this process, for the device; and not any more.
    virtual uint8_t *map(uint8_t *memory, uint64_t bytes) = 0;
    virtual void unmap(uint8_t *memory) = 0;

    // Starts the controller, and comes back when its registers say what it is.
    virtual void start(const World &world) = 0;

    // Starts to measure, and comes back at once. A measurement ends by itself.
    virtual void start_probe(const Probe &probe) = 0;

    // Starts so many warps, or threads, on a trial, and comes back at once; waits for all of them to end by
    // themselves, and gives what the first has counted as wrong.
    virtual void start_trial(const Trial &trial, uint32_t warps) = 0;
    virtual uint64_t end_trial() = 0;

    // Memory of this process whose stores go past its caches, combined, where there is such a kind; and where the
    // device finds it. It lives as long as the place.
    virtual uint8_t *write_combining(uint64_t bytes, uint8_t *&there) = 0;

    // Nanoseconds from the moment a poller saw the last store of a piece of work until the host is told in the
    // device's own way that it has ended, waiting for that awake or asleep. None where there is no such way.
    virtual std::vector<uint32_t> wakes(bool asleep, uint32_t count) = 0;

    // Ends what was started. When this comes back nothing of it reaches memory.
    virtual void stop() = 0;

    // Whether what was started has ended by itself, which a controller never should.
    virtual bool has_ended() = 0;

    // Whether a look at a whole line may be believed to see it as it was at one moment: the loads of a processor
    // are of words.
    virtual bool may_see_whole_lines() const = 0;

    // Whether the last word of a packet may be believed to be there after the rest of it: a GPU's lanes store it at
    // once, and x86 keeps the order of a thread's stores.
    virtual bool stores_land_in_order_or_whole() const = 0;
};

// Ends the process with words if there is no such place.
std::unique_ptr<Place> make_place();

[[noreturn]] void fail(const std::string &what);
