// Where the controller runs: a thread of this process, or a kernel of a GPU. One of cpu.cc and cuda.cu is linked.
#pragma once

#include "endpoint.h"
#include "probe.h"

#include <memory>
#include <string>

// What is to be mapped for the device, and how it is found there.
class Place {
  public:
    virtual ~Place() = default;

    // In words, for the report.
    virtual std::string name() const = 0;

    // The medium, zeroed. It lives as long as the place.
    virtual uint8_t *medium(uint64_t bytes) = 0;

    // Memory of this process, for the device; and not any more.
    virtual uint8_t *map(uint8_t *memory, uint64_t bytes) = 0;
    virtual void unmap(uint8_t *memory) = 0;

    // Starts the controller, and comes back when its registers say what it is.
    virtual void start(const World &world) = 0;

    // Starts to measure, and comes back at once. A measurement ends by itself.
    virtual void start_probe(const Probe &probe) = 0;

    // Ends what was started. When this comes back nothing of it reaches memory.
    virtual void stop() = 0;

    // Whether what was started has ended by itself, which a controller never should.
    virtual bool has_ended() = 0;

    // Whether a look at a whole line may be believed to see it as it was at one moment: the loads of a processor
    // are of words.
    virtual bool may_see_whole_lines() const = 0;

    // Whether the clock of a measurement counts nanoseconds.
    virtual bool ticks_are_nanoseconds() const = 0;
};

// Ends the process with words if there is no such place.
std::unique_ptr<Place> make_place();

[[noreturn]] void fail(const std::string &what);
