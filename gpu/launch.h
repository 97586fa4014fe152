// Where the controller runs: a thread of this process, or a kernel of a GPU. One of cpu.cc and cuda.cu is linked.
#pragma once

#include "endpoint.h"

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

    // Ends it. When this comes back nothing of it reaches the world.
    virtual void stop() = 0;

    // Whether it has ended by itself, which it never should.
    virtual bool has_failed() = 0;
};

// Ends the process with words if there is no such place.
std::unique_ptr<Place> make_place();

[[noreturn]] void fail(const std::string &what);
