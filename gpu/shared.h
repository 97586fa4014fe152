// The greeting of doorbell's two-process bus: each side brings its own memory, sealed, and hands the other a
// descriptor of it over a socket. After that the socket carries nothing; its end of file says that the other
// has gone.
#pragma once

#include <cstdint>
#include <string>

// Memory that two processes have.
struct Mapping {
    uint8_t *bytes = nullptr;
    uint64_t length = 0;
    uint64_t base = 0; // on the bus; of a host's memory alone
};

// A listening socket. A file that a dead server has left at its path is replaced.
int listen_at(const std::string &path);

// Accepts a host and takes its memory. Gives the socket, or -1 and why.
int accept_host(int listener, Mapping &memory, std::string &why);

// Registers, and a count for each vector behind them; the descriptor is for `welcome`.
Mapping make_window(uint32_t register_bytes, int &descriptor);

// Hands the host the registers: the device stands behind them from now on.
bool welcome(int socket, int descriptor, const Mapping &window, uint32_t register_bytes);

// Waits until the host has gone, but no longer than so many milliseconds; says whether it has.
bool has_gone(int socket, int milliseconds);

void unmap(Mapping &mapping);
