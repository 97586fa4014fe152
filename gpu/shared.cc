#include "shared.h"

#include "launch.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace {

constexpr uint32_t MAGIC = 0x524f4f44, VERSION = 1; // DOOR
constexpr uint64_t PAGE = 4096;
constexpr time_t GREETING_SECONDS = 5;

struct Greeting {
    uint32_t magic, version;
    uint64_t first, second;
};
static_assert(sizeof(Greeting) == 24, "as it goes over the socket");

// Room for one descriptor in a control message, or for a few that nobody wants.
union Control {
    cmsghdr header;
    char bytes[CMSG_SPACE(4 * sizeof(int))];
};

sockaddr_un address_of(const std::string &path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) fail(path + ": a shorter path was expected");
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return address;
}

// One greeting and the descriptor beside it; all others are closed.
bool receive(int socket, Greeting &greeting, int &descriptor, std::string &why) {
    Control control{};
    iovec part{&greeting, sizeof greeting};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    if (got < 0) {
        why = std::strerror(errno);
        return false;
    }
    descriptor = -1;
    for (cmsghdr *at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int one;
            std::memcpy(&one, CMSG_DATA(at) + i * sizeof(int), sizeof one);
            if (descriptor < 0) descriptor = one;
            else close(one);
        }
    }
    if (got == static_cast<ssize_t>(sizeof greeting) && descriptor >= 0) return true;
    if (descriptor >= 0) close(descriptor);
    why = "the peer's greeting is too short, or came without a memory descriptor";
    return false;
}

// A host's memory, if it is what it says and cannot shrink under us.
bool take_memory(int descriptor, const Greeting &greeting, Mapping &memory, std::string &why) {
    if (greeting.magic != MAGIC || greeting.version != VERSION) {
        why = "the peer does not speak version 1 of doorbell's shared-memory protocol";
        return false;
    }
    int seals = fcntl(descriptor, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
        why = "the peer's memory is not sealed against shrinking (F_SEAL_SHRINK expected)";
        return false;
    }
    struct stat file {};
    uint64_t length = greeting.second;
    bool sense = fstat(descriptor, &file) == 0 && length > 0 && length % PAGE == 0 && greeting.first % PAGE == 0;
    // No access computes an address that passes the end of the address space.
    if (!sense || static_cast<uint64_t>(file.st_size) < length || greeting.first + length < length) {
        why = "the peer's memory is not what it has announced";
        return false;
    }
    void *mapped = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) {
        why = std::string("mapping the peer's memory: ") + std::strerror(errno);
        return false;
    }
    memory = {static_cast<uint8_t *>(mapped), length, greeting.first};
    return true;
}

} // namespace

int listen_at(const std::string &path) {
    sockaddr_un address = address_of(path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    auto *generic = reinterpret_cast<sockaddr *>(&address);
    if (connect(listener, generic, sizeof address) == 0) fail(path + ": another server listens here");
    close(listener);
    struct stat file {};
    if (lstat(path.c_str(), &file) == 0 && S_ISSOCK(file.st_mode)) unlink(path.c_str());
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, generic, sizeof address) != 0 || listen(listener, 4) != 0)
        fail(path + ": binding: " + std::strerror(errno));
    return listener;
}

int accept_host(int listener, Mapping &memory, std::string &why) {
    int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) {
        why = std::strerror(errno);
        return -1;
    }
    timeval patience{GREETING_SECONDS, 0};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    Greeting greeting{};
    int descriptor = -1;
    if (receive(socket, greeting, descriptor, why)) {
        bool taken = take_memory(descriptor, greeting, memory, why);
        close(descriptor);
        if (taken) return socket;
    }
    close(socket);
    return -1;
}

Mapping make_window(uint32_t register_bytes, int &descriptor) {
    uint64_t length = (register_bytes + 4 * VECTORS + PAGE - 1) / PAGE * PAGE;
    descriptor = memfd_create("endpoint-registers", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool made = descriptor >= 0 && ftruncate(descriptor, static_cast<off_t>(length)) == 0 &&
                fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
    void *mapped = made ? mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) : MAP_FAILED;
    if (mapped == MAP_FAILED) fail(std::string("memory for registers: ") + std::strerror(errno));
    return {static_cast<uint8_t *>(mapped), length, 0};
}

bool welcome(int socket, int descriptor, const Mapping &window, uint32_t register_bytes) {
    Greeting greeting{MAGIC, VERSION, register_bytes, window.length};
    Control control{};
    iovec part{&greeting, sizeof greeting};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof(int));
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof greeting);
}

bool has_gone(int socket, int milliseconds) {
    pollfd wanted{socket, POLLIN, 0};
    if (poll(&wanted, 1, milliseconds) <= 0) return false;
    char nothing[16];
    ssize_t got = recv(socket, nothing, sizeof nothing, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void unmap(Mapping &mapping) {
    if (mapping.bytes != nullptr) munmap(mapping.bytes, mapping.length);
    mapping = {};
}
