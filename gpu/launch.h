// Where the controller runs: a thread of this process, or a kernel of a GPU. One of cpu.cc and cuda.cu is linked.
#pragma once

#include "endpoint.h"
#include "probe.h"
#include "trial.h"

#include <ctime>
#include <memory>
#include <string>
#include <vector>

// Nanoseconds of the host's monotonic clock.
inline uint64_t now() {
    timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return static_cast<uint64_t>(at.tv_sec) * 1000000000u + static_cast<uint64_t>(at.tv_nsec);
}

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

    // Starts a trial on `warps` warps or threads and returns at once. `end_trial` waits until all have ended, and
    // returns the number of errors that the first one counted.
    virtual void start_trial(const Trial &trial, uint32_t warps) = 0;
    virtual uint64_t end_trial() = 0;

    // Write-combining memory of this process, or ordinary memory where there is none; `there` is its address on the
    // device. It lives as long as the place.
    virtual uint8_t *write_combining(uint64_t bytes, uint8_t *&there) = 0;

    // Nanoseconds from the time a poller sees the last store of a kernel until the runtime reports that the kernel has
    // ended, to a thread that polls or sleeps. Empty where there is no such runtime.
    virtual std::vector<uint32_t> wakes(bool asleep, uint32_t count) = 0;

    // Ends what was started. When this comes back nothing of it reaches memory.
    virtual void stop() = 0;

    // Whether what was started has ended by itself, which a controller never should.
    virtual bool has_ended() = 0;

    // Whether a look at a whole line may be believed to see it as it was at one moment: the loads of a processor
    // are of words.
    virtual bool may_see_whole_lines() const = 0;

    // Whether a packet of 128 bytes whose last word is visible is visible as a whole. On a GPU this is measured, not
    // promised; x86 keeps the order of a thread's stores.
    virtual bool stores_land_in_order_or_whole() const = 0;
};

// Ends the process with words if there is no such place.
std::unique_ptr<Place> make_place();

[[noreturn]] void fail(const std::string &what);
