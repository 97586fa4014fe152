"""A client of the Network Block Device protocol: fixed newstyle negotiation, simple replies.

Written from the protocol's own page (NetworkBlockDevice/nbd, doc/proto.md).
"""

import select
import socket
import struct
import time

from .errors import Gone, Hung, Refused

NBDMAGIC, IHAVEOPT, REPLYMAGIC = 0x4e42444d41474943, 0x49484156454f5054, 0x3e889045565a9
REQUEST_MAGIC, SIMPLE_REPLY_MAGIC = 0x25609513, 0x67446698
OPT_GO, REP_ACK, REP_INFO = 7, 1, 3
READ, WRITE, DISC, FLUSH, TRIM, WRITE_ZEROES = range(6)
FUA = 1
FLAG_FLUSH, FLAG_FUA = 1 << 2, 1 << 3


def dial(address, timeout):
    """Connects to a path, or to (host, port); says nothing."""
    kind = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
    one = socket.socket(kind, socket.SOCK_STREAM)
    one.settimeout(timeout)
    try:
        one.connect(address)
    except OSError as error:
        one.close()
        raise Gone(f"{address}: {error}") from error
    if kind == socket.AF_INET:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one


class Nbd:
    """One connection. Requests are submitted and answered in any order; see `drive.py` for the calls."""

    def __init__(self, address, timeout=60.0):
        self.timeout = timeout
        self.socket = dial(address, timeout)
        self.next_handle, self.under_way, self.received = 1, {}, bytearray()
        try:
            self._negotiate()
        except BaseException:
            self.socket.close()
            raise

    def _negotiate(self):
        magic, option, flags = struct.unpack(">QQH", self._exactly(18))
        if magic != NBDMAGIC or option != IHAVEOPT or not flags & 1:
            raise Refused(f"a greeting of magic {magic:x}, {option:x}, flags {flags:x}")
        self.socket.sendall(struct.pack(">I", 1 | flags & 2))
        # An empty name, and one piece of information that is asked for: block sizes.
        payload = struct.pack(">IHH", 0, 1, 3)
        self.socket.sendall(struct.pack(">QII", IHAVEOPT, OPT_GO, len(payload)) + payload)
        self.block_bytes = 512
        while True:
            magic, option, kind, length = struct.unpack(">QIII", self._exactly(20))
            data = self._exactly(length)
            if magic != REPLYMAGIC or option != OPT_GO or kind & 1 << 31:
                raise Refused(f"an answer to an option: {magic:x} {option} {kind:x} {data[:200]!r}")
            if kind == REP_ACK:
                break
            if kind == REP_INFO and data[:2] == b"\0\0":
                self.bytes, self.flags = struct.unpack(">QH", data[2:12])
            elif kind == REP_INFO and data[:2] == b"\0\3":
                self.block_bytes = struct.unpack(">I", data[2:6])[0]
        self.blocks = self.bytes // self.block_bytes

    def _exactly(self, count):
        data = bytearray()
        while len(data) < count:
            try:
                some = self.socket.recv(count - len(data))
            except TimeoutError as error:
                raise Hung(f"no answer within {self.timeout:.0f} s") from error
            except OSError as error:
                raise Gone(str(error)) from error
            if not some:
                raise Gone("the server closed the connection")
            data += some
        return bytes(data)

    def _request(self, kind, flags, lba, length, data=b""):
        handle = self.next_handle
        self.next_handle += 1
        self.under_way[handle] = length if kind == READ else 0
        header = struct.pack(">IHHQQI", REQUEST_MAGIC, flags, kind, handle, lba * self.block_bytes, length)
        try:
            self.socket.sendall(header + data)
        except TimeoutError as error:
            raise Hung("the server takes no request") from error
        except OSError as error:
            raise Gone(str(error)) from error
        return handle

    def submit_write(self, lba, data, fua=False):
        return self._request(WRITE, FUA if fua else 0, lba, len(data), data)

    def submit_read(self, lba, count):
        return self._request(READ, 0, lba, count * self.block_bytes)

    def submit_flush(self):
        return self._request(FLUSH, 0, 0, 0)

    def poll(self, wait=0.0):
        """Replies that have come: (tag, error or None, data). Waits up to `wait` seconds for the first."""
        replies = []
        end = time.monotonic() + wait
        while not replies:
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select([self.socket], [], [], left)
            if not ready:
                return replies
            try:
                some = self.socket.recv(1 << 20)
            except OSError as error:
                raise Gone(str(error)) from error
            if not some:
                raise Gone("the server closed the connection")
            self.received += some
            while (reply := self._take()) is not None:
                replies.append(reply)
        return replies

    def _take(self):
        if len(self.received) < 16:
            return None
        magic, error, handle = struct.unpack_from(">IIQ", self.received)
        if magic != SIMPLE_REPLY_MAGIC or handle not in self.under_way:
            raise Refused(f"a reply of magic {magic:x} to request {handle}")
        length = 0 if error else self.under_way[handle]
        if len(self.received) < 16 + length:
            return None
        data = bytes(self.received[16:16 + length])
        del self.received[:16 + length], self.under_way[handle]
        return handle, f"NBD error {error}" if error else None, data

    def close(self):
        """Ends in order."""
        try:
            self.socket.sendall(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, DISC, 0, 0, 0))
        except OSError:
            pass
        self.socket.close()
