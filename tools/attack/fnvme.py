"""libfnvme through its C interface (include/fnvme.h), declared here anew."""

import ctypes

from .errors import Gone, Refused

DIRECT, BLOCKING = 1, 2
ERROR_NVME, ERROR_BUS, ERROR_CONTROLLER, ERROR_GONE = 0x10000, 8, 9, 103


class Area(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("number", ctypes.c_int), ("block_size", ctypes.c_int)]


class Library:
    """The shared library at a path."""

    def __init__(self, path):
        self.calls = calls = ctypes.CDLL(path)
        area, pointer = ctypes.POINTER(Area), ctypes.c_void_p
        integer, long = ctypes.c_int, ctypes.c_longlong
        declared = {
            "fastpath_attach": ([ctypes.c_char_p], integer),
            "fastpath_detach": ([], integer),
            "fastpath_alloc": ([integer], area),
            "fastpath_free": ([area], integer),
            "fastpath_pwrite": ([area, pointer, integer, long, integer], integer),
            "fastpath_pread": ([area, pointer, integer, long, integer], integer),
            "fastpath_flush": ([area], integer),
            "fastpath_error": ([], integer),
            "fastpath_error_text": ([integer], ctypes.c_char_p),
        }
        for name, (arguments, result) in declared.items():
            function = getattr(calls, name)
            function.argtypes, function.restype = arguments, result

    def text(self, error):
        return f"{self.calls.fastpath_error_text(error).decode()} ({error})"

    def attach(self, device):
        error = self.calls.fastpath_attach(device.encode())
        if error != 0:
            raise Refused(f"attach {device}: {self.text(error)}")

    def detach(self):
        error = self.calls.fastpath_detach()
        if error != 0:
            raise Refused(f"detach: {self.text(error)}")


class Fnvme:
    """An area of a drive as a drive; see `drive.py`. Each call has ended when it returns."""

    def __init__(self, library, device, size, block_bytes):
        self.library, self.calls = library, library.calls
        library.attach(device)
        self.area = self.calls.fastpath_alloc(size)
        if not self.area:
            error = self.calls.fastpath_error()
            library.detach()
            raise Gone(f"no area of {device}: {library.text(error)}")
        self.area.contents.block_size = block_bytes
        self.block_bytes, self.blocks = block_bytes, size // block_bytes
        self.buffer = ctypes.create_string_buffer(64 * block_bytes)
        self.replies, self.next_tag = [], 1

    def _ended(self, error, data=b""):
        tag = self.next_tag
        self.next_tag += 1
        self.replies.append((tag, None if error == 0 else self.library.text(error), data))
        return tag

    def submit_write(self, lba, data, fua=False):
        ctypes.memmove(self.buffer, data, len(data))
        at = lba * self.block_bytes
        error = self.calls.fastpath_pwrite(self.area, self.buffer, len(data), at, BLOCKING)
        if fua and error == 0:
            error = self.calls.fastpath_flush(self.area)
        return self._ended(error)

    def submit_read(self, lba, count):
        size = count * self.block_bytes
        error = self.calls.fastpath_pread(self.area, self.buffer, size, lba * self.block_bytes, BLOCKING)
        return self._ended(error, self.buffer.raw[:size])

    def submit_flush(self):
        return self._ended(self.calls.fastpath_flush(self.area))

    def poll(self, _wait=0.0):
        replies, self.replies = self.replies, []
        return replies

    def close(self):
        self.calls.fastpath_free(self.area)
        self.library.detach()
