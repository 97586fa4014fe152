// Takes the protocols apart on a link: how a command comes, how its end is told, whether stores land in order, what
// polling takes from a copy, what a doorbell and an interrupt cost. Prints one object of JSON.
//
//   trials [--rounds N] [--core N] [--ns-a-tick N]
#include "launch.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <pthread.h>
#include <random>
#include <sched.h>
#include <sys/mman.h>
#include <thread>
#include <vector>

void fail(const std::string &what) {
    std::fprintf(stderr, "trials: %s\n", what.c_str());
    std::exit(1);
}

namespace {

constexpr uint64_t PATIENCE_NS = 60ull * 1000000000u;
constexpr uint32_t SPINS = 2000, COPIERS = 64, POLLERS = 64, CORES = 8;
// The longest pause: a few rounds of a device that loads across a link.
constexpr uint32_t PAUSE_NS = 8192;
constexpr uint64_t LINE_BYTES = 4 * LINE_WORDS;

uint32_t load(const uint32_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
void store(uint32_t *at, uint32_t word) { __atomic_store_n(at, word, __ATOMIC_RELEASE); }

// What was stored to memory that combines writes waits until it is driven out.
void drive_out() {
#if defined(__x86_64__)
    asm volatile("sfence" ::: "memory");
#endif
}

// Any core. A thread inherits the core of the thread that starts it.
constexpr uint32_t ANY_CORE = UINT32_MAX;

void pin(uint32_t core) {
    uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < cores; i++)
        if (core == ANY_CORE || i == core % cores) CPU_SET(i, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Spins until it is so; where both share a core, makes room.
template <typename Condition> void wait_until(const char *what, Condition condition) {
    uint64_t begun = 0;
    for (uint32_t spins = 0; !condition(); spins++) {
        if (spins < SPINS) continue;
        sched_yield();
        if (begun == 0) begun = now();
        else if (now() - begun > PATIENCE_NS) fail(std::string("60 s without ") + what);
    }
}

// Ends a row of JSON with what its samples say: eight classes an octave, each by its lower end.
void print_samples(std::vector<uint32_t> samples) {
    std::sort(samples.begin(), samples.end());
    double sum = 0;
    std::map<uint32_t, uint32_t> classes;
    for (uint32_t sample : samples) {
        sum += sample;
        uint32_t log2 = sample < 8 ? 3 : 31 - static_cast<uint32_t>(__builtin_clz(sample));
        classes[sample >> (log2 - 3) << (log2 - 3)]++;
    }
    size_t count = samples.size();
    std::printf("\"p50_ns\": %u, \"p99_ns\": %u, \"mean_ns\": %.1f, \"rounds\": %zu, \"histogram\": [",
                samples[count / 2], samples[count - 1 - count / 100], sum / static_cast<double>(count), count);
    const char *between = "";
    for (auto [least, many] : classes) {
        std::printf("%s[%u, %u]", between, least, many);
        between = ", ";
    }
    std::printf("]}");
}

// Memory that host and device reach.
struct Shared {
    uint8_t *here, *there;

    uint32_t *word(uint64_t at) const { return reinterpret_cast<uint32_t *>(here + at); }
    uint32_t *far(uint64_t at) const { return reinterpret_cast<uint32_t *>(there + at); }
};

class Bench {
  public:
    explicit Bench(Place &of) : place(of) {
        void *mapped = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) fail("memory for the bench");
        cached.here = static_cast<uint8_t *>(mapped);
        cached.there = place.map(cached.here, BYTES);
        combining.here = place.write_combining(LINES, combining.there);
        medium = reinterpret_cast<uint32_t *>(place.medium(std::max(4ull * COPIERS * TRIAL_WORDS, OWN_ALL)));
    }

    ~Bench() {
        place.unmap(cached.here);
        munmap(cached.here, BYTES);
    }

    // One command after the other: from its first store until its end is seen, and until all its data have been
    // loaded. Between two of them the host waits for a time of random length, so that it does not always meet the
    // device at the same point of its round of looks.
    void exchange(Request request, Completion completion, bool combine, uint32_t bytes, uint32_t rounds) {
        clear();
        Trial trial{};
        trial.kind = Trial::Kind::exchange;
        const Shared &rung = combine ? combining : cached;
        trial.exchange = {request, completion, rounds, bytes / 4, cached.far(ENTRY), rung.far(DOORBELL),
                          cached.far(DATA), cached.far(COMPLETED)};
        uint32_t *entry = cached.word(ENTRY), *doorbell = rung.word(DOORBELL), *data = cached.word(DATA);
        uint32_t *completed = cached.word(COMPLETED), words = bytes / 4;
        std::vector<uint32_t> samples, seen;
        samples.reserve(rounds);
        seen.reserve(rounds);
        uint64_t wrong = 0;
        std::mt19937 pauses(1);
        place.start_trial(trial, 1);
        for (uint32_t round = 1; round <= rounds; round++) {
            uint64_t go = now() + pauses() % PAUSE_NS, begun;
            while ((begun = now()) < go) {}
            for (uint32_t i = 0; i + 1 < ENTRY_WORDS; i++) __atomic_store_n(entry + i, round, __ATOMIC_RELAXED);
            store(entry + ENTRY_WORDS - 1, round);
            if (request != Request::entry) store(doorbell, round);
            if (combine) drive_out();
            await_data(completion, data, words, completed, round);
            seen.push_back(static_cast<uint32_t>(std::min<uint64_t>(now() - begun, UINT32_MAX)));
            for (uint32_t i = 0; i < words; i++) wrong += __atomic_load_n(data + i, __ATOMIC_RELAXED) != round;
            samples.push_back(static_cast<uint32_t>(std::min<uint64_t>(now() - begun, UINT32_MAX)));
            // What came too early for its flag comes now: the next round must not meet it.
            for (uint32_t i = 0; i < words; i++) wait_until("data", [&] { return load(data + i) == round; });
        }
        wrong += place.end_trial();
        std::printf("{\"request\": \"%s\", \"completion\": \"%s\", \"doorbell\": \"%s\", \"bytes\": %u, \"wrong\": %llu, ",
                    name(request), name(completion), combine ? "write combining" : "cached", bytes,
                    static_cast<unsigned long long>(wrong));
        std::printf("\"pause_ns\": %u, \"seen\": {", PAUSE_NS);
        print_samples(std::move(seen));
        std::printf(", ");
        print_samples(std::move(samples));
    }

    // Counts rounds in which a later packet is visible before an earlier one, and packets whose last word is visible
    // before the rest. The data are 4 KiB, stored without a fence.
    void scatter(bool alone, uint32_t packet_bytes, uint32_t rounds) {
        clear();
        constexpr uint32_t WORDS = 1024;
        uint32_t words = packet_bytes / 4, packets = WORDS / words;
        Trial trial{};
        trial.kind = Trial::Kind::scatter;
        trial.scatter = {rounds, WORDS, alone, cached.far(DOORBELL), cached.far(DATA)};
        uint32_t *data = cached.word(DATA);
        uint64_t torn = 0, crossed = 0, partly = 0;
        place.start_trial(trial, 1);
        for (uint32_t round = 1; round <= rounds; round++) {
            store(cached.word(DOORBELL), round);
            bool seen_partly = false, seen_crossed = false;
            uint64_t left = packets;
            std::vector<bool> whole(packets, false);
            wait_until("packets", [&] {
                bool later_is_there = false, one_is_missing = false;
                // The last packet is looked at first: what is missing after it was seen has been overtaken.
                for (uint32_t packet = packets; packet-- > 0;) {
                    uint32_t *at = data + packet * words;
                    if (load(at + words - 1) != round) {
                        one_is_missing = true;
                        seen_crossed = seen_crossed || later_is_there;
                        continue;
                    }
                    later_is_there = true;
                    if (whole[packet]) continue;
                    whole[packet] = true;
                    left--;
                    for (uint32_t i = 0; i + 1 < words; i++)
                        if (__atomic_load_n(at + i, __ATOMIC_RELAXED) != round) {
                            torn++;
                            break;
                        }
                }
                seen_partly = seen_partly || (later_is_there && one_is_missing);
                return left == 0;
            });
            for (uint32_t i = 0; i < WORDS; i++) wait_until("words", [&] { return load(data + i) == round; });
            partly += seen_partly;
            crossed += seen_crossed;
        }
        place.end_trial();
        std::printf("{\"stores\": \"%s\", \"packet\": %u, \"bytes\": %u, \"rounds\": %u, \"seen_partly\": %llu, "
                    "\"overtaken\": %llu, \"packets\": %llu, \"torn\": %llu}",
                    alone ? "16 B by one lane, in order" : "16 B by each of 32 lanes", packet_bytes, 4 * WORDS, rounds,
                    static_cast<unsigned long long>(partly), static_cast<unsigned long long>(crossed),
                    static_cast<unsigned long long>(packets) * rounds, static_cast<unsigned long long>(torn));
    }

    // Bandwidth of `copiers` warps while `pollers` warps poll host memory.
    void bandwidth(bool to_host, uint32_t copiers, uint32_t pollers, uint32_t bytes, uint32_t rounds) {
        clear();
        std::fill(cached.here + ENDED, cached.here + BYTES, uint8_t{0});
        Trial trial{};
        trial.kind = Trial::Kind::load;
        trial.load = {copiers, rounds, bytes / 4, to_host, cached.far(DATA), medium, cached.far(LINES),
                      reinterpret_cast<uint64_t *>(cached.far(ENDED))};
        auto told = [&](uint32_t at) { return __atomic_load_n(reinterpret_cast<uint64_t *>(cached.word(ENDED)) + at,
                                                               __ATOMIC_ACQUIRE); };
        uint64_t begun = now();
        place.start_trial(trial, copiers + pollers);
        wait_until("copies", [&] {
            for (uint32_t i = 0; i < copiers; i++)
                if (told(2 * i + 1) == 0) return false;
            return true;
        });
        for (uint32_t i = 0; i < pollers; i++) store(cached.word(LINES + i * LINE_BYTES), TRIAL_STOP);
        uint64_t took = now() - begun, looks = 0, first = UINT64_MAX, last = 0;
        place.end_trial();
        for (uint32_t i = 0; i < copiers; i++) {
            first = std::min(first, told(2 * i));
            last = std::max(last, told(2 * i + 1));
        }
        for (uint32_t i = 0; i < pollers; i++) looks += told(2 * (copiers + i) + 1);
        double seconds = static_cast<double>(std::max<uint64_t>(last - first, 1)) / 1e9;
        double moved = static_cast<double>(copiers) * rounds * bytes;
        std::printf("{\"to\": \"%s\", \"copiers\": %u, \"bytes\": %u, \"pollers\": %u, \"gb_per_s\": %.3f, "
                    "\"looks_per_s\": %.0f}",
                    to_host ? "host" : "device", copiers, bytes, pollers, moved / seconds / 1e9,
                    static_cast<double>(looks) / (static_cast<double>(took) / 1e9));
    }

    // Cost of stores to a doorbell: back to back from `cores` cores, to a line of each core or to one line of all; then
    // of a store with a full fence.
    void doorbells(bool combine, bool watched, bool same, uint32_t cores, uint32_t first_core, uint32_t rounds) {
        clear();
        const Shared &rung = combine ? combining : cached;
        if (watched) {
            Trial trial{};
            trial.kind = Trial::Kind::watch;
            trial.watch = {CORES, rung.far(0), reinterpret_cast<uint64_t *>(cached.far(ENDED))};
            place.start_trial(trial, 1);
        }
        std::vector<std::vector<uint32_t>> settled(cores);
        std::vector<uint64_t> took(cores);
        std::vector<std::thread> threads;
        std::atomic<uint32_t> ready{0};
        for (uint32_t core = 0; core < cores; core++)
            threads.emplace_back([&, core] {
                pin(first_core == ANY_CORE ? ANY_CORE : first_core + core);
                uint32_t *doorbell = rung.word(same ? LINE_BYTES : core * LINE_BYTES);
                ready++;
                while (ready < cores) sched_yield();
                uint64_t begun = now();
                for (uint32_t i = 1; i <= rounds; i++) {
                    __atomic_store_n(doorbell, i, __ATOMIC_RELAXED);
                    if (combine) drive_out();
                }
                took[core] = now() - begun;
                for (uint32_t i = 1; i <= rounds / 10; i++) {
                    uint64_t before = now();
                    __atomic_store_n(doorbell, i, __ATOMIC_RELAXED);
                    __atomic_thread_fence(__ATOMIC_SEQ_CST);
                    settled[core].push_back(static_cast<uint32_t>(std::min<uint64_t>(now() - before, UINT32_MAX)));
                }
            });
        for (std::thread &thread : threads) thread.join();
        uint64_t looks = 0;
        if (watched) {
            store(rung.word(0), TRIAL_STOP);
            drive_out();
            place.end_trial();
            looks = *reinterpret_cast<uint64_t *>(cached.word(ENDED));
        }
        uint64_t sum = 0;
        for (uint64_t one : took) sum += one;
        std::printf("{\"memory\": \"%s\", \"watched\": %s, \"line\": \"%s\", \"cores\": %u, \"looks\": %llu, "
                    "\"ns_a_store\": %.2f, \"settled\": {",
                    combine ? "write combining" : "cached", watched ? "true" : "false", same ? "shared" : "own", cores,
                    static_cast<unsigned long long>(looks),
                    static_cast<double>(sum) / cores / rounds);
        for (uint32_t core = 1; core < cores; core++)
            settled[0].insert(settled[0].end(), settled[core].begin(), settled[core].end());
        print_samples(std::move(settled[0]));
        std::printf("}");
    }

    // Time of one turn of the controller with all memory on the device; `ns_a_tick` is from the probe.
    void code(Face face, uint32_t packet_log2, uint32_t burst, uint32_t bytes, double ns_a_tick) {
        constexpr uint32_t ROUNDS = 2000;
        uint8_t *own = reinterpret_cast<uint8_t *>(medium), *window = own + OWN_BYTES, *blocks = window + OWN_WINDOW;
        place.fill(own, 0, OWN_BYTES + OWN_WINDOW);
        place.fill(blocks, 0x5a, PAGE_BYTES * 1024);
        Trial trial{};
        trial.kind = Trial::Kind::own;
        World &world = trial.own.world;
        world.host = {own, 1u << 20, OWN_BYTES};
        world.window = {reinterpret_cast<uint32_t *>(window), register_bytes(face)};
        world.medium = {blocks, PAGE_BYTES * 1024 >> 9, 9};
        world.face = face;
        world.packet_log2 = packet_log2;
        trial.own.rounds = ROUNDS, trial.own.burst = burst, trial.own.bytes = bytes;
        trial.own.samples = cached.far(DATA);
        place.start_trial(trial, 1);
        if (uint64_t wrong = place.end_trial())
            fail("the controller has served " + std::to_string(wrong) + " rounds wrongly from its own memory");
        std::vector<uint32_t> samples;
        for (uint32_t i = 0; i < ROUNDS; i++)
            samples.push_back(static_cast<uint32_t>(cached.word(DATA)[i] * ns_a_tick));
        std::printf("{\"interface\": \"%s\", \"packet\": %u, \"burst\": %u, \"bytes\": %u, ",
                    face == Face::nvme ? "nvme" : face == Face::dcx ? "dcx" : "block",
                    packet_log2 == 0 ? 0 : 1u << packet_log2, burst, bytes);
        print_samples(std::move(samples));
    }

    static const char *name(Request request) {
        return request == Request::entry ? "entry" : request == Request::doorbell ? "doorbell" : "doorbell, acquired";
    }

    static const char *name(Completion completion) {
        switch (completion) {
        case Completion::entry: return "entry behind a fence";
        case Completion::unfenced_entry: return "entry, no fence";
        case Completion::tag: return "tag behind a fence";
        case Completion::unfenced_tag: return "tag, no fence";
        default: return "a tag in each 64 B";
        }
    }

  private:
    static constexpr unsigned long long OWN_WINDOW = 0x4000, OWN_ALL = OWN_BYTES + OWN_WINDOW + PAGE_BYTES * 1024;
    static constexpr uint64_t ENTRY = 0, COMPLETED = 4096, DOORBELL = 0x2000, LINES = 0x4000;
    static constexpr uint64_t DATA = LINES + POLLERS * LINE_BYTES, ENDED = DATA + 4ull * COPIERS * TRIAL_WORDS;
    static constexpr uint64_t BYTES = ENDED + (16 * (COPIERS + POLLERS) + 4095) / 4096 * 4096;
    static_assert(DOORBELL >= CORES * LINE_BYTES, "doorbells in turn lie before the one that is rung alone");
    Place &place;
    Shared cached{}, combining{};
    uint32_t *medium;

    void clear() {
        std::fill(cached.here, cached.here + DATA + 4ull * TRIAL_WORDS, uint8_t{0});
        std::fill(combining.here, combining.here + LINES, uint8_t{0});
        drive_out();
    }

    static void await_data(Completion completion, uint32_t *data, uint32_t words, uint32_t *completed, uint32_t round) {
        switch (completion) {
        case Completion::entry:
        case Completion::unfenced_entry:
            wait_until("a completion", [&] { return load(completed + 3) == round; });
            break;
        case Completion::packets:
            for (uint32_t last = PACKET_WORDS - 1; last < words; last += PACKET_WORDS)
                wait_until("a packet", [&] { return load(data + last) == round; });
            break;
        default: wait_until("a tag", [&] { return load(data + words - 1) == round; });
        }
    }
};

void exchanges(Bench &bench, uint32_t rounds) {
    constexpr Completion ALL[] = {Completion::entry, Completion::unfenced_entry, Completion::tag,
                                  Completion::unfenced_tag, Completion::packets};
    const char *between = "\n    ";
    std::printf("  \"exchanges\": [");
    auto row = [&](Request request, Completion completion, bool combine, uint32_t bytes) {
        std::printf("%s", between);
        bench.exchange(request, completion, combine, bytes, bytes > 4096 ? rounds / 10 : rounds);
        between = ",\n    ";
    };
    for (uint32_t bytes : {64u, 128u, 256u, 512u, 1024u, 4096u, 16384u, 131072u})
        for (Completion completion : ALL)
            for (Request request : {Request::entry, Request::doorbell}) row(request, completion, false, bytes);
    row(Request::acquired, Completion::entry, false, 512);
    row(Request::acquired, Completion::tag, false, 512);
    row(Request::doorbell, Completion::entry, true, 512);
    row(Request::acquired, Completion::entry, true, 512);
    std::printf("],\n");
}

void order(Bench &bench, uint32_t rounds) {
    const char *between = "\n    ";
    std::printf("  \"order\": [");
    for (bool alone : {false, true})
        for (uint32_t packet : {16u, 32u, 64u, 128u, 256u, 512u}) {
            std::printf("%s", between);
            // More rounds for the sizes that a protocol would use.
            bench.scatter(alone, packet, packet == 64 || packet == 128 ? 4 * rounds : rounds);
            between = ",\n    ";
        }
    std::printf("],\n");
}

void bandwidths(Bench &bench, uint32_t rounds) {
    const char *between = "\n    ";
    std::printf("  \"bandwidth\": [");
    for (bool to_host : {true, false}) {
        for (uint32_t copiers : {1u, 8u, COPIERS}) {
            for (uint32_t bytes : {512u, 4096u, 131072u}) {
                std::printf("%s", between);
                bench.bandwidth(to_host, copiers, 0, bytes, std::max(1u, rounds * (131072 / bytes) / copiers));
                between = ",\n    ";
            }
        }
        for (uint32_t pollers : {1u, 2u, 4u, 8u, 16u, 32u, POLLERS}) {
            std::printf("%s", between);
            bench.bandwidth(to_host, COPIERS, pollers, 131072, std::max(1u, rounds / COPIERS));
        }
    }
    std::printf("],\n");
}

void codes(Bench &bench, double ns_a_tick) {
    const char *between = "\n    ";
    std::printf("  \"code\": [");
    for (auto [face, packet_log2] : {std::pair{Face::nvme, 0u}, {Face::dcx, 0u}, {Face::dcx, 7u}, {Face::blocks, 0u}})
        for (uint32_t burst : {1u, 8u})
            for (uint32_t bytes : {512u, 4096u}) {
                std::printf("%s", between);
                bench.code(face, packet_log2, burst, bytes, ns_a_tick);
                between = ",\n    ";
            }
    std::printf("],\n");
}

void doorbells(Bench &bench, uint32_t core, uint32_t rounds) {
    const char *between = "\n    ";
    std::printf("  \"doorbells\": [");
    for (bool combine : {false, true})
        for (bool watched : {false, true})
            for (uint32_t cores : {1u, 2u, 4u, CORES})
                for (bool same : {false, true}) {
                    if (same && cores == 1) continue;
                    std::printf("%s", between);
                    bench.doorbells(combine, watched, same, cores, core, rounds);
                    between = ",\n    ";
                }
    std::printf("],\n");
}

uint32_t number(const char *word, const char *text, uint32_t least, uint32_t most) {
    char *end = nullptr;
    unsigned long value = text == nullptr ? 0 : std::strtoul(text, &end, 10);
    if (text == nullptr || *text == 0 || *end != 0 || value < least || value > most)
        fail(std::string(word) + ": a number from " + std::to_string(least) + " to " + std::to_string(most) +
             " was expected");
    return static_cast<uint32_t>(value);
}

} // namespace

int main(int count, char **words) {
    uint32_t rounds = 20000, core = ANY_CORE;
    double ns_a_tick = 1;
    for (int i = 1; i < count; i += 2) {
        std::string word = words[i];
        const char *text = i + 1 < count ? words[i + 1] : nullptr;
        if (word == "--rounds") rounds = number("--rounds", text, 100, 10000000);
        else if (word == "--core") core = number("--core", text, 0, 4095);
        else if (word == "--ns-a-tick") ns_a_tick = text == nullptr ? 0 : std::strtod(text, nullptr);
        else fail(word + ": [--rounds N] [--core N] [--ns-a-tick N] was expected");
    }
    std::unique_ptr<Place> place = make_place();
    pin(core);
    Bench bench(*place);
    std::printf("{\n  \"device\": \"%s\",\n", place->name().c_str());
    codes(bench, ns_a_tick);
    exchanges(bench, rounds);
    order(bench, rounds);
    bandwidths(bench, rounds / 10);
    doorbells(bench, core, rounds * 10);
    pin(ANY_CORE);
    std::printf("  \"wakes\": [");
    const char *between = "\n    ";
    for (bool blocking : {false, true}) {
        std::vector<uint32_t> samples = place->wakes(blocking, std::min(rounds, 5000u));
        if (samples.empty()) continue;
        std::printf("%s{\"wait\": \"%s\", ", between, blocking ? "sleeping" : "polling");
        print_samples(std::move(samples));
        between = ",\n    ";
    }
    std::printf("]\n}\n");
}
