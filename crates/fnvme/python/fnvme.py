"""libfnvme for Python: an SSD's blocks in memory that the drive reads and writes itself.

    import fnvme

    fnvme.attach("memory:64m")
    with fnvme.Area(1 << 20) as area:
        area.buffer[:5] = b"hello"        # the DMA buffer: nothing is copied on the way
        area.write(0, 4096)
        area.buffer[:5] = bytes(5)
        area.read(0, 4096)
        assert bytes(area.buffer[:5]) == b"hello"
    fnvme.detach()

The calls of include/fnvme.h under names of Python's: what fails raises Error. They may be made from any thread, and
other threads run while one waits. The library is that of FNVME_LIBRARY, else the one that was
installed with this file (lib/libfnvme.so beside lib/python), else libfnvme.so where the loader looks.
"""

import ctypes
import os
import typing
import weakref

READS, WRITES, FLUSHES = range(3)

_DIRECT, _BLOCKING = 1, 2


class _Fastpath(ctypes.Structure):
    _fields_ = [
        ("dma_address", ctypes.c_void_p),
        ("fp_id", ctypes.c_int),
        ("block_size", ctypes.c_int),
    ]


class _Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_longlong) for name in ("requests", "failed", "least", "mean", "most")]


class Latency(typing.NamedTuple):
    """Requests of one kind: how many were carried out, how many failed or were refused, and nanoseconds."""

    requests: int
    failed: int
    least: int
    mean: int
    most: int


def _path():
    installed = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "libfnvme.so")
    return os.environ.get("FNVME_LIBRARY") or (installed if os.path.exists(installed) else "libfnvme.so")


class _Library:
    """The shared library, loaded when it is first called."""

    _pointer = ctypes.POINTER(_Fastpath)
    _calls = {
        "fastpath_alloc": ([ctypes.c_int], _pointer),
        "fastpath_alloc_named": ([ctypes.c_int, ctypes.c_char_p], _pointer),
        "fastpath_open": ([ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p], _pointer),
        "fastpath_remove": ([ctypes.c_char_p], ctypes.c_int),
        "fastpath_size": ([_pointer], ctypes.c_longlong),
        "fastpath_latency": ([_pointer, ctypes.c_int, ctypes.POINTER(_Counters)], ctypes.c_int),
        "fastpath_latency_percentile": ([_pointer, ctypes.c_int, ctypes.c_double], ctypes.c_longlong),
        "fastpath_latency_reset": ([_pointer], ctypes.c_int),
        "fastpath_write": ([_pointer, ctypes.c_void_p, ctypes.c_int, ctypes.c_int], ctypes.c_int),
        "fastpath_read": ([_pointer, ctypes.c_void_p, ctypes.c_int, ctypes.c_int], ctypes.c_int),
        "fastpath_polling": ([_pointer], ctypes.c_int),
        "fastpath_flush": ([_pointer], ctypes.c_int),
        "fastpath_free": ([_pointer], ctypes.c_int),
        "fastpath_attach": ([ctypes.c_char_p], ctypes.c_int),
        "fastpath_detach": ([], ctypes.c_int),
        "fastpath_error": ([], ctypes.c_int),
        "fastpath_error_text": ([ctypes.c_int], ctypes.c_char_p),
    }

    def __getattr__(self, name):
        library = ctypes.CDLL(_path())
        for call, (arguments, result) in self._calls.items():
            function = getattr(library, call)
            function.argtypes, function.restype = arguments, result
            setattr(self, call, function)
        return self.__dict__[name]


_library = _Library()


class Error(OSError):
    """What the library, its engine or the drive answered: `code` as in fnvme.h, and its words."""

    def __init__(self, code):
        self.code = code
        super().__init__(_library.fastpath_error_text(code).decode())


def _done(result):
    if result != 0:
        raise Error(-result)


def attach(device):
    """Says where the drive is: "memory", "memory:64m", "plan:PLAN", "shm:SOCKET", "vfio-user:SOCKET",
    "vfio:ADDRESS" or "engine:SOCKET"."""
    _done(_library.fastpath_attach(device.encode()))


def detach():
    """Lets the device go, when all areas are closed."""
    _done(_library.fastpath_detach())


def remove(name):
    """Frees the blocks of the area of this name, which is closed."""
    _done(_library.fastpath_remove(name.encode()))


class Area:
    """`size` bytes of the drive, and a DMA buffer as long, in which every byte has its offset in the area.

    `block_size` is 512, 1024, 2048, 4096 or 8192 bytes. `function` names one in the way of data: "crc32c",
    "aes-xts:KEY" or "filter:RECORD:AT:LEAST:MOST". An area keeps what its last owner has left there.

    With a `name` it is the area that was made by this name on this drive before, with its data, or a new one. A size
    of 0 finds one only. It stays on the drive when it is closed, until `remove`.
    """

    def __init__(self, size, block_size=4096, function=None, name=None):
        if name is not None:
            self._fp = _library.fastpath_open(name.encode(), size, function and function.encode())
        elif function is None:
            self._fp = _library.fastpath_alloc(size)
        else:
            self._fp = _library.fastpath_alloc_named(size, function.encode())
        if not self._fp:
            raise Error(_library.fastpath_error())
        self._fp.contents.block_size = block_size
        self._address = self._fp.contents.dma_address
        self.size = size = size or _library.fastpath_size(self._fp)
        self._memory = (ctypes.c_ubyte * size).from_address(self._address)
        self._buffer = memoryview(self._memory).cast("B")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def buffer(self):
        """The DMA buffer, as a memoryview."""
        self._open()
        return self._buffer

    def _open(self):
        if self._fp is None:
            raise ValueError("this area is closed")
        return self._fp

    def _at(self, offset, size):
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"bytes {offset} to {offset + size} of an area of {self.size}")
        return self._address + offset

    def write(self, offset, size, wait=True):
        """Writes so many bytes of the buffer from this offset on. Unless it is to wait, `poll` says how it went."""
        flags = _DIRECT | (_BLOCKING if wait else 0)
        _done(_library.fastpath_write(self._open(), self._at(offset, size), size, flags))

    def read(self, offset, size, wait=True):
        """Reads so many bytes into the buffer, from this offset on. As `write`."""
        flags = _DIRECT | (_BLOCKING if wait else 0)
        _done(_library.fastpath_read(self._open(), self._at(offset, size), size, flags))

    def poll(self):
        """Waits until all that was begun has ended; raises the first failure."""
        _done(_library.fastpath_polling(self._open()))

    def flush(self):
        """What was written and has ended is durable afterwards."""
        _done(_library.fastpath_flush(self._open()))

    def latency(self, kind):
        """Latency of READS, WRITES or FLUSHES since the area was opened or its counters were reset."""
        counters = _Counters()
        _done(_library.fastpath_latency(self._open(), kind, ctypes.byref(counters)))
        return Latency(*(getattr(counters, name) for name in Latency._fields))

    def latency_percentile(self, kind, percent):
        """The nanoseconds that `percent` of these requests did not exceed, to two digits; 0 without requests."""
        found = _library.fastpath_latency_percentile(self._open(), kind, percent)
        if found < 0:
            raise Error(-found)
        return found

    def reset_latency(self):
        """Sets all latency counters to zero."""
        _done(_library.fastpath_latency_reset(self._open()))

    def close(self):
        """Gives the area back. Views of its buffer must be gone: their memory goes with it."""
        if self._fp is None:
            return
        memory = weakref.ref(self._memory)
        self._buffer.release()
        self._buffer = self._memory = None
        left = memory()
        if left is not None:
            self._memory, self._buffer = left, memoryview(left).cast("B")
            raise BufferError("something still has a view of this area's buffer")
        fp, self._fp = self._fp, None
        _done(_library.fastpath_free(fp))
