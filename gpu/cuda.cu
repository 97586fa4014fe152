// The controller as a kernel that does not end: one warp of a GPU.
#include "launch.h"

#include <cuda_runtime.h>
#include <thread>

namespace {

// The stop word lies in host memory: looking at it costs a round trip, so it is looked at now and then.
constexpr uint32_t STOP_EACH = 256;

// What this process and the kernel tell each other.
struct Switch {
    uint32_t stop, started;
    uint64_t counted;
    uint32_t round, stored;
};

// One kernel for each face: all three in one are larger than the instruction cache.
template <Face FACE> __global__ void __launch_bounds__(LANES, 1) controller(World world, Switch *told) {
    world.face = FACE;
    Endpoint endpoint{};
    endpoint.publish(world);
    fence();
    put_word(&told->started, 1);
    for (uint32_t turns = 1;; turns++) {
        endpoint.turn(world);
        if (turns % STOP_EACH == 0 && from_lane(load_word(&told->stop), 0) != 0) return;
    }
}

__global__ void __launch_bounds__(LANES, 1) measurement(Probe probe) { measure(probe); }

__global__ void __launch_bounds__(LANES) trials(Trial trial, uint64_t *counted) {
    uint64_t wrong = run(trial, blockIdx.x);
    if (blockIdx.x == 0 && lane() == 0) *counted = wrong;
}

template <Face FACE> __global__ void __launch_bounds__(LANES, 1) own_code(Own own, uint64_t *counted) {
    uint64_t wrong = run_own<FACE>(own);
    if (lane() == 0) *counted = wrong;
    fence();
}

// Waits for the host's word, stores one and ends.
__global__ void last_store(const uint32_t *told, uint32_t *stored, uint32_t round) {
    while (load_word(told) != round) {}
    store_word(stored, round);
}

void check(cudaError_t result, const char *doing) {
    if (result != cudaSuccess) fail(std::string(doing) + ": " + cudaGetErrorString(result));
}

class Gpu : public Place {
  public:
    Gpu() {
        cudaDeviceProp properties{};
        check(cudaSetDevice(0), "a GPU");
        check(cudaGetDeviceProperties(&properties, 0), "asking what GPU it is");
        if (properties.canMapHostMemory == 0) fail(std::string(properties.name) + " cannot map host memory");
        called = std::string(properties.name) + ", one warp of it";
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
        void *memory = nullptr;
        check(cudaHostAlloc(&memory, sizeof(Switch), cudaHostAllocMapped), "memory for a switch");
        told = static_cast<Switch *>(memory);
        check(cudaHostGetDevicePointer(&memory, told, 0), "the switch's address on the GPU");
        told_there = static_cast<Switch *>(memory);
    }

    ~Gpu() override {
        stop();
        cudaFree(blocks);
        cudaFreeHost(told);
        cudaFreeHost(combining);
        cudaStreamDestroy(stream);
    }

    std::string name() const override { return called; }

    uint8_t *medium(uint64_t bytes) override {
        void *memory = nullptr;
        check(cudaMalloc(&memory, bytes), "memory for the medium");
        check(cudaMemset(memory, 0, bytes), "clearing the medium");
        check(cudaDeviceSynchronize(), "clearing the medium");
        blocks = memory;
        return static_cast<uint8_t *>(memory);
    }

    void fill(uint8_t *medium, uint8_t byte, uint64_t bytes) override {
        check(cudaMemset(medium, byte, bytes), "filling device memory");
        check(cudaDeviceSynchronize(), "filling device memory");
    }

    uint8_t *map(uint8_t *memory, uint64_t bytes) override {
        check(cudaHostRegister(memory, bytes, cudaHostRegisterMapped), "pinning shared memory");
        void *there = nullptr;
        check(cudaHostGetDevicePointer(&there, memory, 0), "shared memory's address on the GPU");
        return static_cast<uint8_t *>(there);
    }

    void unmap(uint8_t *memory) override { check(cudaHostUnregister(memory), "unpinning shared memory"); }

    void start(const World &world) override {
        __atomic_store_n(&told->stop, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&told->started, 0, __ATOMIC_RELAXED);
        switch (world.face) {
        case Face::nvme: controller<Face::nvme><<<1, LANES, 0, stream>>>(world, told_there); break;
        case Face::dcx: controller<Face::dcx><<<1, LANES, 0, stream>>>(world, told_there); break;
        case Face::blocks: controller<Face::blocks><<<1, LANES, 0, stream>>>(world, told_there); break;
        }
        check(cudaGetLastError(), "starting the controller");
        running = true;
        while (__atomic_load_n(&told->started, __ATOMIC_ACQUIRE) == 0)
            if (has_ended()) check(cudaStreamSynchronize(stream), "starting the controller");
    }

    void start_probe(const Probe &probe) override {
        measurement<<<1, LANES, 0, stream>>>(probe);
        check(cudaGetLastError(), "starting a measurement");
        running = true;
    }

    void start_trial(const Trial &trial, uint32_t warps) override {
        if (trial.kind != Trial::Kind::own) trials<<<warps, LANES, 0, stream>>>(trial, &told_there->counted);
        else if (trial.own.world.face == Face::nvme) start_own<Face::nvme>(trial.own);
        else if (trial.own.world.face == Face::dcx) start_own<Face::dcx>(trial.own);
        else start_own<Face::blocks>(trial.own);
        check(cudaGetLastError(), "starting a trial");
    }

    uint64_t end_trial() override {
        check(cudaStreamSynchronize(stream), "a trial");
        return told->counted;
    }

    uint8_t *write_combining(uint64_t bytes, uint8_t *&there) override {
        void *memory = nullptr;
        check(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocWriteCombined), "write-combining memory");
        void *far = nullptr;
        check(cudaHostGetDevicePointer(&far, memory, 0), "write-combining memory's address on the GPU");
        there = static_cast<uint8_t *>(far);
        combining = memory;
        return static_cast<uint8_t *>(memory);
    }

    std::vector<uint32_t> wakes(bool asleep, uint32_t count) override {
        cudaEvent_t ended;
        unsigned flags = cudaEventDisableTiming | (asleep ? cudaEventBlockingSync : 0);
        check(cudaEventCreateWithFlags(&ended, flags), "an event");
        std::vector<uint32_t> samples;
        for (uint32_t round = 1; round <= count; round++) {
            last_store<<<1, 1, 0, stream>>>(&told_there->round, &told_there->stored, round);
            check(cudaGetLastError(), "starting a kernel");
            check(cudaEventRecord(ended, stream), "an event");
            // The launch must not be part of what is timed.
            for (uint64_t begun = now(); now() - begun < 20000;) {}
            std::thread([&] {
                for (uint64_t begun = now(); now() - begun < 30000;) {}
                __atomic_store_n(&told->round, round, __ATOMIC_RELEASE);
                while (__atomic_load_n(&told->stored, __ATOMIC_ACQUIRE) != round) {}
                seen = now();
            }).swap(watcher);
            check(cudaEventSynchronize(ended), "an event");
            uint64_t woken = now();
            watcher.join();
            samples.push_back(static_cast<uint32_t>(woken > seen ? woken - seen : 0));
        }
        __atomic_store_n(&told->round, 0, __ATOMIC_RELEASE);
        check(cudaEventDestroy(ended), "an event");
        return samples;
    }

    void stop() override {
        if (!running) return;
        __atomic_store_n(&told->stop, 1, __ATOMIC_RELEASE);
        check(cudaStreamSynchronize(stream), "ending");
        running = false;
    }

    bool has_ended() override { return cudaStreamQuery(stream) != cudaErrorNotReady; }

    bool may_see_whole_lines() const override { return true; }
    bool stores_land_in_order_or_whole() const override { return true; }

  private:
    template <Face FACE> void start_own(const Own &own) {
        own_code<FACE><<<1, LANES, 0, stream>>>(own, &told_there->counted);
    }

    std::string called;
    cudaStream_t stream = nullptr;
    Switch *told = nullptr, *told_there = nullptr;
    void *blocks = nullptr, *combining = nullptr;
    std::thread watcher;
    uint64_t seen = 0;
    bool running = false;
};

} // namespace

std::unique_ptr<Place> make_place() { return std::make_unique<Gpu>(); }
