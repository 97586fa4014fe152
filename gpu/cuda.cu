// The controller as a kernel that does not end: one warp of a GPU.
#include "launch.h"

#include <cuda_runtime.h>

namespace {

// The stop word lies in host memory: looking at it costs a round trip, so it is looked at now and then.
constexpr uint32_t STOP_EACH = 256;

// What this process and the kernel tell each other.
struct Switch {
    uint32_t stop, started;
};

__global__ void __launch_bounds__(LANES, 1) controller(World world, Switch *told) {
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
        controller<<<1, LANES, 0, stream>>>(world, told_there);
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

    void stop() override {
        if (!running) return;
        __atomic_store_n(&told->stop, 1, __ATOMIC_RELEASE);
        check(cudaStreamSynchronize(stream), "ending");
        running = false;
    }

    bool has_ended() override { return cudaStreamQuery(stream) != cudaErrorNotReady; }

    bool may_see_whole_lines() const override { return true; }
    bool ticks_are_nanoseconds() const override { return false; }

  private:
    std::string called;
    cudaStream_t stream = nullptr;
    Switch *told = nullptr, *told_there = nullptr;
    void *blocks = nullptr;
    bool running = false;
};

} // namespace

std::unique_ptr<Place> make_place() { return std::make_unique<Gpu>(); }
