// An SSD for doorbell's driver, of another make: `doorbell run JOB --world live --socket S` works on it as on
// `doorbell serve PLAN --shm S`.
//
//   endpoint SOCKET [--interface nvme|dcx|block] [--megabytes N] [--whole-lines] [--packets N]
#include "launch.h"
#include "shared.h"

#include <cstdio>
#include <cstdlib>
#include <unistd.h>

void fail(const std::string &what) {
    std::fprintf(stderr, "endpoint: %s\n", what.c_str());
    std::exit(1);
}

namespace {

constexpr uint32_t BLOCK_LOG2 = 9;

struct Arguments {
    std::string socket;
    Face face = Face::nvme;
    uint64_t megabytes = 64;
    bool whole_lines = false;
    uint32_t packet_log2 = 0;
};

Face face_of(const std::string &name) {
    if (name == "nvme") return Face::nvme;
    if (name == "dcx") return Face::dcx;
    if (name == "block") return Face::blocks;
    fail("--interface " + name + ": nvme, dcx or block was expected");
}

uint64_t megabytes_of(const std::string &text) {
    char *end = nullptr;
    unsigned long long count = std::strtoull(text.c_str(), &end, 10);
    if (text.empty() || *end != 0 || count == 0 || count > 1u << 20)
        fail("--megabytes " + text + ": a number from 1 to 1048576 was expected");
    return count;
}

// The one size of which no packet was seen in parts, on the one GPU that was tried (docs/gpu-measured.md).
uint32_t packet_log2_of(const std::string &text) {
    if (text == "128") return 7;
    fail("--packets " + text + ": 128 was expected");
}

Arguments arguments_of(int count, char **words) {
    Arguments arguments;
    for (int i = 1; i < count; i++) {
        std::string word = words[i];
        bool more = i + 1 < count;
        if (word == "--interface" && more) arguments.face = face_of(words[++i]);
        else if (word == "--megabytes" && more) arguments.megabytes = megabytes_of(words[++i]);
        else if (word == "--whole-lines") arguments.whole_lines = true;
        else if (word == "--packets" && more) arguments.packet_log2 = packet_log2_of(words[++i]);
        else if (arguments.socket.empty() && word[0] != '-') arguments.socket = word;
        else fail(word + ": SOCKET [--interface nvme|dcx|block] [--megabytes N] [--whole-lines] [--packets N] was expected");
    }
    if (arguments.socket.empty()) fail("the path of a socket was expected");
    return arguments;
}

void say(const Arguments &arguments, const std::string &what) {
    std::printf("endpoint: %s: %s\n", arguments.socket.c_str(), what.c_str());
    std::fflush(stdout);
}

// One host, from its greeting to its end. The contents stay.
void serve(const Arguments &arguments, Place &place, const Medium &medium, int socket, Mapping &memory) {
    int descriptor = -1;
    uint32_t bytes = register_bytes(arguments.face);
    Mapping window = make_window(bytes, descriptor);
    World world{};
    world.host = {place.map(memory.bytes, memory.length), memory.base, memory.length};
    world.window = {reinterpret_cast<uint32_t *>(place.map(window.bytes, window.length)), bytes};
    world.medium = medium;
    world.face = arguments.face;
    world.whole_lines = arguments.whole_lines;
    world.packet_log2 = arguments.packet_log2;
    place.start(world);
    if (welcome(socket, descriptor, window, bytes)) {
        while (!has_gone(socket, 100))
            if (place.has_ended()) fail("the controller has ended");
    }
    place.stop();
    place.unmap(memory.bytes);
    place.unmap(window.bytes);
    close(descriptor);
    unmap(window);
}

} // namespace

int main(int count, char **words) {
    Arguments arguments = arguments_of(count, words);
    std::unique_ptr<Place> place = make_place();
    if (arguments.whole_lines && !place->may_see_whole_lines())
        fail("--whole-lines: a GPU was expected, " + place->name() + " loads words");
    if (arguments.packet_log2 != 0 && !place->stores_land_in_order_or_whole())
        fail("--packets: " + place->name() + " may store a packet's last word first");
    uint64_t bytes = arguments.megabytes << 20;
    Medium medium{place->medium(bytes), bytes >> BLOCK_LOG2, BLOCK_LOG2};
    int listener = listen_at(arguments.socket);
    say(arguments, place->name());
    for (;;) {
        say(arguments, "waiting for a client");
        Mapping memory;
        std::string why;
        int socket = accept_host(listener, memory, why);
        if (socket < 0) {
            // A bad host is its own fault; the next may be better.
            say(arguments, why);
            continue;
        }
        say(arguments, "client connected");
        serve(arguments, *place, medium, socket, memory);
        close(socket);
        unmap(memory);
        say(arguments, "client disconnected");
    }
}
