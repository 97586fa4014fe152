"""A client of vfio-user, protocol 0.1, written from its specification (QEMU's docs/interop/vfio-user.rst)."""

import array
import json
import mmap
import os
import select
import socket
import struct
import time

from .errors import Gone, Hung, Refused
from .nbd import dial

(VERSION, DMA_MAP, DMA_UNMAP, DEVICE_INFO, REGION_INFO, REGION_IO_FDS, IRQ_INFO, SET_IRQS, REGION_READ,
 REGION_WRITE, DMA_READ, DMA_WRITE, RESET) = range(1, 14)
BAR0, CONFIG = 0, 7
REPLY, ERROR = 1, 1 << 5
CAP_SPARSE_MMAP = 1
DOORBELLS = 0x1000


def send_message(one, data, fds=()):
    """Sends bytes, with descriptors beside the first of them."""
    try:
        if fds:
            beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            sent = one.sendmsg([data], beside)
            data = data[sent:]
        one.sendall(data)
    except TimeoutError as error:
        raise Hung("the other side takes no message") from error
    except OSError as error:
        raise Gone(str(error)) from error


def receive_exactly(one, count):
    """Receives so many bytes, and the descriptors beside them."""
    data, fds = bytearray(), []
    while len(data) < count:
        try:
            some, beside, _, _ = one.recvmsg(count - len(data), socket.CMSG_SPACE(16 * 4))
        except TimeoutError as error:
            raise Hung("the other side is silent") from error
        except OSError as error:
            raise Gone(str(error)) from error
        for level, kind, payload in beside:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += array.array("i", payload[:len(payload) // 4 * 4])
        if not some:
            raise Gone("the other side closed the connection")
        data += some
    return bytes(data), fds


class VfioUser:
    """A connection to a function. `mapped` says whether doorbells go through the page that may be mapped."""

    def __init__(self, path, timeout=60.0, mapped=True):
        self.path, self.timeout = path, timeout
        self.socket = dial(path, timeout)
        self.next_id, self.page, self.words = 0, None, None
        try:
            self._greet()
            self._region(mapped)
        except BaseException:
            self.socket.close()
            raise

    def _greet(self):
        capabilities = {"capabilities": {"max_msg_fds": 8, "max_data_xfer_size": 1 << 20}}
        said = struct.pack("<HH", 0, 1) + json.dumps(capabilities).encode() + b"\0"
        answer, _ = self.call(VERSION, said)
        major, _minor = struct.unpack_from("<HH", answer)
        if major != 0:
            raise Refused(f"version {major}")
        self.capabilities = json.loads(answer[4:].rstrip(b"\0") or b"{}").get("capabilities", {})

    def send(self, command, payload=b"", fds=()):
        self.next_id = (self.next_id + 1) & 0xffff
        header = struct.pack("<HHIII", self.next_id, command, 16 + len(payload), 0, 0)
        send_message(self.socket, header + payload, fds)
        return self.next_id

    def receive(self):
        header, fds = receive_exactly(self.socket, 16)
        number, command, size, flags, error = struct.unpack("<HHIII", header)
        payload, more = receive_exactly(self.socket, size - 16)
        return number, command, flags, error, payload, fds + more

    def reply(self, number):
        """Waits for the reply to a message; later messages' replies come later."""
        while True:
            other, command, flags, error, payload, fds = self.receive()
            if not flags & 0xf == REPLY:
                raise Refused(f"the server sends command {command}")
            if other == number:
                if flags & ERROR:
                    raise Refused(f"message {command}: error {error}")
                return payload, fds

    def call(self, command, payload=b"", fds=()):
        return self.reply(self.send(command, payload, fds))

    def _region(self, mapped):
        payload = struct.pack("<IIIIQQ", 4096, 0, BAR0, 0, 0, 0)
        answer, fds = self.call(REGION_INFO, payload)
        _, flags, _, capabilities, self.bar_bytes, offset = struct.unpack_from("<IIIIQQ", answer)
        areas = []
        while flags & 8 and capabilities:
            kind, _, following, count = struct.unpack_from("<HHII", answer, capabilities)
            if kind == CAP_SPARSE_MMAP:
                first = capabilities + 16
                areas = [struct.unpack_from("<QQ", answer, first + 16 * area) for area in range(count)]
            capabilities = following
        self.areas = areas
        for at, size in areas:
            if mapped and fds and at <= DOORBELLS < at + size:
                self.page = mmap.mmap(fds[0], size, offset=offset + at)
                self.page_at, self.words = at, memoryview(self.page).cast("I")
        for fd in fds:
            os.close(fd)

    def read(self, region, at, count):
        answer, _ = self.call(REGION_READ, struct.pack("<QII", at, region, count))
        return answer[16:]

    def write(self, region, at, data):
        self.call(REGION_WRITE, struct.pack("<QII", at, region, len(data)) + data)

    # What an NVMe host asks of a function.

    def read32(self, at):
        return struct.unpack("<I", self.read(BAR0, at, 4))[0]

    def write32(self, at, value):
        self.write(BAR0, at, struct.pack("<I", value))

    def ring(self, at, value):
        if self.words is not None:
            self.words[(at - self.page_at) // 4] = value
        else:
            self.write32(at, value)

    def share(self, memory):
        """Lets the device access memory."""
        self.dma_map(memory.base, memory.size, memory.fd, 0)
        self.write(CONFIG, 4, struct.pack("<H", 6))

    def dma_map(self, base, size, fd, offset):
        self.call(DMA_MAP, struct.pack("<IIQQQ", 32, 3, offset, base, size), [fd])

    def dma_unmap(self, base, size):
        self.call(DMA_UNMAP, struct.pack("<IIQQ", 24, 0, base, size))

    def reset(self):
        self.call(RESET)

    def check_alive(self):
        """Raises Gone if the server has closed the connection."""
        ready, _, _ = select.select([self.socket], [], [], 0)
        if ready:
            try:
                some = self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                raise Gone(str(error)) from error
            if not some:
                raise Gone("the server closed the connection")

    def close(self):
        if self.words is not None:
            self.words.release()
            self.page.close()
        self.words = self.page = None
        self.socket.close()


def served(path, patience, check, **keys):
    """Connects until a client is served, as a server lets one after another in; `check` raises if it has died."""
    end = time.monotonic() + patience
    while True:
        check()
        try:
            return VfioUser(path, timeout=max(1.0, end - time.monotonic()), **keys)
        except Gone as error:
            if time.monotonic() > end:
                raise Hung(f"no client was served within {patience:.0f} s: {error}") from error
            time.sleep(0.05)
