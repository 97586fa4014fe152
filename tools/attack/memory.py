"""Memory that a device may access: an anonymous file, mapped here, whose descriptor the server is handed."""

import fcntl
import mmap
import os

F_ADD_SEALS = 1033
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1, 2, 4
MFD_HUGETLB = 4
HUGE_BYTES = 2 << 20


class Memory:
    """`size` bytes at `base` on the bus."""

    def __init__(self, size, base, sealed=False, huge=False):
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | (MFD_HUGETLB if huge else 0)
        self.fd = os.memfd_create("attack", flags)
        os.ftruncate(self.fd, size)
        if sealed:
            fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
        self.map = mmap.mmap(self.fd, size)
        self.words = memoryview(self.map).cast("I")
        self.size, self.base, self.used = size, base, 0

    def take(self, size, align=4096):
        """A piece of it: its offset."""
        at = -(-self.used // align) * align
        if at + size > self.size:
            raise MemoryError(f"{size} bytes of {self.size}, of which {self.used} are taken")
        self.used = at + size
        return at

    def punch(self, offset, size):
        """Makes a hole in the file, as its owner may behind a seal against shrinking."""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        keep_size_and_punch = 1 | 2
        result = libc.fallocate(self.fd, keep_size_and_punch, ctypes.c_long(offset), ctypes.c_long(size))
        if result != 0:
            raise OSError(ctypes.get_errno(), "fallocate")

    def close(self):
        self.words.release()
        self.map.close()
        os.close(self.fd)
