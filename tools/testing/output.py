"""What a session prints: whole lines, whatever standard output is."""

import os
import select
import threading


class Output:
    """A file descriptor that several threads write to.

    A pipe may be non-blocking, a terminal may take ASCII only, a reader may be gone: none of these
    ends the session. Its result is its exit status, and what was printed is in the logs.
    """

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.lock = threading.RLock()

    def say(self, text):
        """Writes lines of text."""
        self.write((text + "\n").encode("utf-8", "backslashreplace"))

    def write(self, data):
        """Writes bytes, in one piece as far as other threads are concerned."""
        with self.lock:
            while data and self.descriptor is not None:
                try:
                    data = data[os.write(self.descriptor, data):]
                except BlockingIOError:
                    select.select([], [self.descriptor], [], 1)
                except OSError:
                    self.descriptor = None


class Tail:
    """A log that grows, copied to the output by whole lines."""

    HELD_MAX = 1 << 16

    def __init__(self, path, output):
        self.path, self.output = path, output
        self.offset, self.held = 0, b""

    def copy(self, to_the_end=False):
        """Copies what is new; a line without an end only where the log is complete."""
        try:
            with open(self.path, "rb") as log:
                log.seek(self.offset)
                new = log.read()
        except OSError:
            return
        self.offset += len(new)
        self.held += new
        cut = len(self.held) if to_the_end or len(self.held) > self.HELD_MAX else self.held.rfind(b"\n") + 1
        if to_the_end and self.held and not self.held.endswith(b"\n"):
            self.held += b"\n"
            cut += 1
        if cut:
            self.output.write(self.held[:cut])
            self.held = self.held[cut:]


def last_lines(data, count):
    """The last lines of a log."""
    lines = data.splitlines(keepends=True)[-count:]
    return b"".join(lines) + (b"" if not lines or lines[-1].endswith(b"\n") else b"\n")


def open_standard_descriptors():
    """Opens those of 0, 1 and 2 that are closed: the next file would be opened in their place otherwise."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest that is free, hence this one.
            os.open(os.devnull, os.O_RDWR)
