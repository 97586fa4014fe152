// Measures the link: what a load of host memory takes, a word there and one back, a fence, a copy; and counts
// what the order of stores would have to forbid. Prints one object of JSON.
//
//   probe [--rounds N]
#include "launch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sched.h>
#include <sys/mman.h>
#include <vector>

void fail(const std::string &what) {
    std::fprintf(stderr, "probe: %s\n", what.c_str());
    std::exit(1);
}

namespace {

constexpr uint64_t PATIENCE_NS = 60ull * 1000000000u;
constexpr uint32_t SPINS = 2000;

struct Result {
    double p50, p99, mean;
    uint64_t rounds, wrong_there, wrong_back;
};

// The host's memory, as it has it and as the device has it.
class Bench {
  public:
    Bench(Place &of, uint32_t most) : place(of), most(most) {
        bytes = (LINE_BYTES * CHASE_LINES + 2 * AREA + 4ull * most + 64 + 4095) / 4096 * 4096;
        void *mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) fail("memory for the bench");
        here = static_cast<uint8_t *>(mapped);
        there = place.map(here, bytes);
        medium = reinterpret_cast<uint32_t *>(place.medium(std::max<uint64_t>(4 * PAYLOAD_WORDS, LINE_BYTES * CHASE_LINES)));
    }

    ~Bench() {
        place.unmap(here);
        munmap(here, bytes);
    }

    // The device works alone; its clock counts.
    Result alone(Measure measure, uint32_t rounds) {
        Probe probe = prepared(measure, Look::flag, rounds, 0);
        place.start_probe(probe);
        wait_for_end();
        uint32_t *samples = word(SAMPLES);
        uint64_t *times = reinterpret_cast<uint64_t *>(word(TIMES()));
        if (times[2] != 0) fail("the device has loaded what nobody has stored");
        return result(std::vector<uint32_t>(samples, samples + rounds), tick_ns, 0, 0);
    }

    // Nanoseconds a tick of the device's clock. What it measures later is by this.
    double clock() {
        place.start_probe(prepared(Measure::ticking, Look::flag, 0, 0));
        wait_for_end();
        uint64_t *times = reinterpret_cast<uint64_t *>(word(TIMES()));
        tick_ns = static_cast<double>(times[0]) / static_cast<double>(times[1]);
        return tick_ns;
    }

    // There and back, with so many words that stand before the flag.
    Result echo(Look look, uint32_t rounds, uint32_t words) {
        Probe probe = prepared(Measure::echo, look, rounds, words);
        uint32_t *out = word(THERE), *in = word(BACK);
        uint64_t wrong = 0;
        std::vector<uint32_t> samples;
        samples.reserve(rounds);
        place.start_probe(probe);
        for (uint32_t round = 1; round <= rounds; round++) {
            uint64_t begun = now();
            for (uint32_t i = 0; i < words; i++) __atomic_store_n(out + i, round, __ATOMIC_RELAXED);
            __atomic_store_n(out + words, round, __ATOMIC_RELEASE);
            for (uint32_t spins = 0; __atomic_load_n(in + words, __ATOMIC_ACQUIRE) != round; spins++) {
                if (spins < SPINS) continue;
                sched_yield();
                if (now() - begun > PATIENCE_NS) {
                    __atomic_store_n(out + words, STOP, __ATOMIC_RELEASE);
                    fail("no answer from the device for 60 s");
                }
            }
            samples.push_back(static_cast<uint32_t>(std::min<uint64_t>(now() - begun, UINT32_MAX)));
            for (uint32_t i = 0; i < words; i++) wrong += __atomic_load_n(in + i, __ATOMIC_RELAXED) != round;
        }
        wait_for_end();
        uint64_t early = reinterpret_cast<uint64_t *>(word(TIMES()))[2];
        return result(samples, 1, early, wrong);
    }

  private:
    static constexpr uint64_t LINE_BYTES = 4 * LINE_WORDS, AREA = 2 * 4 * PAYLOAD_WORDS;
    static constexpr uint64_t THERE = LINE_BYTES * CHASE_LINES, BACK = THERE + AREA, SAMPLES = BACK + AREA;
    Place &place;
    uint32_t most;
    uint64_t bytes;
    uint8_t *here, *there;
    uint32_t *medium;

    uint64_t TIMES() const { return (SAMPLES + 4ull * most + 7) / 8 * 8; }
    uint32_t *word(uint64_t at) { return reinterpret_cast<uint32_t *>(here + at); }

    Probe prepared(Measure measure, Look look, uint32_t rounds, uint32_t words) {
        if (rounds > most) fail("more rounds than there is room for");
        for (uint32_t line = 0; line < CHASE_LINES; line++)
            __atomic_store_n(word(0) + line * LINE_WORDS, (line + CHASE_STEP) % CHASE_LINES, __ATOMIC_RELAXED);
        std::fill(here + THERE, here + SAMPLES, uint8_t{0});
        auto far = [&](uint64_t at) { return reinterpret_cast<uint32_t *>(there + at); };
        return {measure, look, rounds, words, far(0), far(THERE), far(BACK), far(SAMPLES),
                reinterpret_cast<uint64_t *>(far(TIMES())), medium};
    }

    void wait_for_end() {
        for (uint64_t begun = now(); !place.has_ended(); sched_yield())
            if (now() - begun > PATIENCE_NS) fail("the device does not end");
        place.stop();
    }

    double tick_ns = 1;

    static Result result(std::vector<uint32_t> samples, double scale, uint64_t there, uint64_t back) {
        std::sort(samples.begin(), samples.end());
        double sum = 0;
        for (uint32_t sample : samples) sum += sample;
        size_t count = samples.size();
        return {samples[count / 2] * scale, samples[count - 1 - count / 100] * scale,
                sum / static_cast<double>(count) * scale, count, there, back};
    }
};

void print(const char *name, const Result &of, const char *end) {
    std::printf("  \"%s\": {\"p50_ns\": %.1f, \"p99_ns\": %.1f, \"mean_ns\": %.1f, \"rounds\": %llu, "
                "\"too_early_there\": %llu, \"too_early_back\": %llu}%s\n",
                name, of.p50, of.p99, of.mean, static_cast<unsigned long long>(of.rounds),
                static_cast<unsigned long long>(of.wrong_there), static_cast<unsigned long long>(of.wrong_back),
                end);
}

} // namespace

int main(int count, char **words) {
    uint32_t rounds = 100000;
    for (int i = 1; i < count; i += 2) {
        char *end = nullptr;
        if (std::string(words[i]) != "--rounds" || i + 1 == count) fail("[--rounds N] was expected");
        rounds = static_cast<uint32_t>(std::strtoul(words[i + 1], &end, 10));
        if (*end != 0 || rounds < 100 || rounds > 100000000) fail("--rounds: 100 to 100000000 was expected");
    }
    std::unique_ptr<Place> place = make_place();
    uint32_t few = std::min(rounds, 100000u);
    Bench bench(*place, rounds);
    std::printf("{\n  \"device\": \"%s\",\n", place->name().c_str());
    std::printf("  \"ns_a_tick\": %.6f,\n", bench.clock());
    print("read", bench.alone(Measure::chase, std::min(rounds, CHASE_LINES)), ",");
    print("own_read", bench.alone(Measure::own_chase, std::min(rounds, CHASE_LINES)), ",");
    print("own_fence", bench.alone(Measure::own_fences, few), ",");
    print("fence_alone", bench.alone(Measure::alone, few), ",");
    print("fence", bench.alone(Measure::fences, few), ",");
    print("copy", bench.alone(Measure::copies, few), ",");
    print("echo", bench.echo(Look::flag, few, 0), ",");
    // An entry of DC Express: fifteen words and its number.
    print("entry", bench.echo(Look::flag, rounds, ENTRY_WORDS - 1), ",");
    print("entry_at_once", bench.echo(Look::whole, rounds, ENTRY_WORDS - 1), ",");
    print("page", bench.echo(Look::flag, rounds, PAYLOAD_WORDS - 1), "");
    std::printf("}\n");
}
