"""A client of the shared-memory socket: a greeting, then registers and memory that both sides map.

Greeting of the host, with a descriptor of its memory: "DOOR", version 1, base on the bus, length. Answer, with a
descriptor of the window of registers: "DOOR", version 1, length of the registers, length of the window. Both are
sealed against shrinking.
"""

import mmap
import os
import struct

from .errors import Refused
from .nbd import dial
from .vfio_user import VfioUser, receive_exactly, send_message

GREETING = struct.Struct("<4sIQQ")


class Shm:
    """A connection. The memory is part of the greeting."""

    def __init__(self, path, memory, timeout=60.0):
        self.socket = dial(path, timeout)
        try:
            send_message(self.socket, GREETING.pack(b"DOOR", 1, memory.base, memory.size), [memory.fd])
            answer, fds = receive_exactly(self.socket, GREETING.size)
        except BaseException:
            self.socket.close()
            raise
        magic, version, self.register_bytes, size = GREETING.unpack(answer)
        if magic != b"DOOR" or version != 1 or len(fds) != 1:
            raise Refused(f"a greeting of {magic!r}, version {version}, {len(fds)} descriptors")
        self.map = mmap.mmap(fds[0], size)
        os.close(fds[0])
        self.words = memoryview(self.map).cast("I")

    def read32(self, at):
        return self.words[at // 4]

    def write32(self, at, value):
        self.words[at // 4] = value

    ring = write32

    def share(self, memory):
        """The greeting has done it."""

    check_alive = VfioUser.check_alive

    def close(self):
        self.words.release()
        self.map.close()
        self.socket.close()
