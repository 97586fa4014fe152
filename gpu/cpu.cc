// The controller in a thread.
#include "launch.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <sched.h>
#include <sys/mman.h>
#include <thread>
#include <time.h>

uint64_t nanoseconds() { return now(); }

void waited(uint32_t looks) {
    constexpr uint32_t SPINS = 2000;
    if (looks >= SPINS) sched_yield();
}

namespace {

class Thread : public Place {
  public:
    ~Thread() override {
        stop();
        if (blocks != nullptr) munmap(blocks, bytes);
    }

    std::string name() const override { return "a thread of this processor"; }

    uint8_t *medium(uint64_t wanted) override {
        void *mapped = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) fail("no memory for the medium");
        blocks = static_cast<uint8_t *>(mapped);
        bytes = wanted;
        return blocks;
    }

    void fill(uint8_t *medium, uint8_t byte, uint64_t count) override { std::fill(medium, medium + count, byte); }

    uint8_t *map(uint8_t *memory, uint64_t) override { return memory; }
    void unmap(uint8_t *) override {}

    void start(const World &world) override {
        stopping = false;
        started = false;
        controller = std::thread([this, world] { run(world); });
        while (!started.load(std::memory_order_acquire)) sched_yield();
    }

    void start_probe(const Probe &probe) override {
        ended = false;
        controller = std::thread([this, probe] {
            measure(probe);
            ended.store(true, std::memory_order_release);
        });
    }

    void start_trial(const Trial &trial, uint32_t warps) override {
        for (uint32_t which = 0; which < warps; which++)
            trials.emplace_back([this, trial, which] {
                uint64_t wrong = ::run(trial, which);
                if (which == 0) counted = wrong;
            });
    }

    uint64_t end_trial() override {
        for (std::thread &thread : trials) thread.join();
        trials.clear();
        return counted;
    }

    uint8_t *write_combining(uint64_t wanted, uint8_t *&there) override {
        uint64_t pages = (wanted + PAGE_BYTES - 1) / PAGE_BYTES;
        combining.reset(static_cast<uint8_t *>(std::aligned_alloc(PAGE_BYTES, pages * PAGE_BYTES)));
        return there = combining.get();
    }

    std::vector<uint32_t> wakes(bool, uint32_t) override { return {}; }

    void stop() override {
        stopping.store(true, std::memory_order_release);
        if (controller.joinable()) controller.join();
    }

    bool has_ended() override { return ended.load(std::memory_order_acquire); }

    bool may_see_whole_lines() const override { return false; }
#if defined(__x86_64__)
    bool stores_land_in_order_or_whole() const override { return true; }
#else
    bool stores_land_in_order_or_whole() const override { return false; }
#endif

  private:
    std::thread controller;
    std::vector<std::thread> trials;
    uint64_t counted = 0;

    struct Free {
        void operator()(uint8_t *memory) const { std::free(memory); }
    };
    std::unique_ptr<uint8_t, Free> combining;
    std::atomic<bool> stopping{false}, started{false}, ended{false};
    uint8_t *blocks = nullptr;
    uint64_t bytes = 0;

    void run(const World &world) {
        Endpoint endpoint{};
        endpoint.publish(world);
        started.store(true, std::memory_order_release);
        for (uint32_t idle = 0; !stopping.load(std::memory_order_acquire);) {
            idle = endpoint.turn(world) ? 0 : idle + 1;
            waited(idle);
        }
    }
};

} // namespace

std::unique_ptr<Place> make_place() { return std::make_unique<Thread>(); }
