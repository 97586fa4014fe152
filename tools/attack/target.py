"""A vfio-user server with an NVMe controller behind it, in Python: what our driver meets that is not ours.

It looks at its doorbells all the time, and at its socket once a millisecond, as SPDK's target does. What it
accesses by DMA is the client's memory, mapped; blocks are in memory here.
"""

import mmap
import os
import select
import socket
import struct
import threading
import time

from .errors import Gone
from .vfio_user import (BAR0, CONFIG, DEVICE_INFO, DMA_MAP, DMA_UNMAP, ERROR, IRQ_INFO, REGION_INFO,
                        REGION_READ, REGION_WRITE, REPLY, RESET, SET_IRQS, VERSION, receive_exactly, send_message)

BAR_BYTES, DOORBELLS, PAGE = 0x2000, 0x1000, 4096
CAP, VS, CC, CSTS, AQA, ASQ, ACQ = 0x00, 0x08, 0x14, 0x1c, 0x24, 0x28, 0x30
BLOCK_BYTES, BLOCKS = 512, 32768
INVALID_OPCODE, INVALID_FIELD, OUT_OF_RANGE = 0x01, 0x02, 0x80


def config_space():
    """Of an NVMe controller with one 64-bit window and MSI-X."""
    space = bytearray(4096)
    struct.pack_into("<HHHH", space, 0, 0x1b36, 0x0010, 0, 0x10)
    space[8:12] = bytes([1, 2, 8, 1])
    struct.pack_into("<I", space, 0x10, 0x4)
    struct.pack_into("<HH", space, 0x2c, 0x1af4, 0x1100)
    space[0x34] = 0x40
    struct.pack_into("<BBHII", space, 0x40, 0x11, 0, 3, 0x4, 0x804)
    return space


class Queue:
    def __init__(self, base, entries, other=None):
        self.base, self.entries, self.other = base, entries, other
        self.at, self.phase = 0, 1


class Target(threading.Thread):
    """Serves one client after another. `doorbells` is the file of its page, `mqes` the longest queue less one."""

    def __init__(self, path, doorbells, mqes=1023):
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(8)
        self.file, self.mqes = doorbells, mqes
        os.ftruncate(doorbells, BAR_BYTES)
        self.page = mmap.mmap(doorbells, PAGE, offset=DOORBELLS)
        self.words = memoryview(self.page).cast("I")
        self.blocks = bytearray(BLOCK_BYTES * BLOCKS)
        self.by_message = self.commands = self.queue_entries = 0
        self.stopping, self.failure = False, None

    def run(self):
        while not self.stopping:
            try:
                ready, _, _ = select.select([self.listener], [], [], 0.1)
                if ready:
                    self.socket, _ = self.listener.accept()
                    self.socket.settimeout(10.0)
                    self.serve()
            except (Gone, OSError):
                pass
            except Exception as error:  # The case that waits for a client has to hear of it.
                self.failure = repr(error)
                return

    def serve(self):
        self.memory, self.config = [], config_space()
        self.reset()
        next_look = 0.0
        while not self.stopping:
            now = time.monotonic()
            if now >= next_look:
                next_look = now + 0.001
                while select.select([self.socket], [], [], 0)[0]:
                    self.message()
            self.work()

    def stop(self):
        self.stopping = True
        self.join(10)
        self.listener.close()

    # Messages.

    def message(self):
        header, fds = receive_exactly(self.socket, 16)
        number, command, size, flags, _ = struct.unpack("<HHIII", header)
        payload, more = receive_exactly(self.socket, size - 16)
        fds, beside = fds + more, []
        answer = self.answer(command, payload, fds, beside)
        for fd in fds:
            os.close(fd)
        if flags & 0x10:
            return
        if isinstance(answer, int):
            reply = struct.pack("<HHIII", number, command, 16, REPLY | ERROR, answer)
        else:
            reply = struct.pack("<HHIII", number, command, 16 + len(answer), REPLY, 0) + answer
        send_message(self.socket, reply, beside)

    def answer(self, command, payload, fds, beside):
        if command == VERSION:
            return struct.pack("<HH", 0, 1) + b'{"capabilities":{"max_msg_fds":8}}\0'
        if command == DMA_MAP:
            _, _, offset, base, length = struct.unpack_from("<IIQQQ", payload)
            self.memory.append((base, length, mmap.mmap(fds[0], length, offset=offset)))
            return b""
        if command == DMA_UNMAP:
            return payload[:24]
        if command == DEVICE_INFO:
            return struct.pack("<IIII", 16, 3, 9, 5)
        if command == REGION_INFO:
            return self.region_info(struct.unpack_from("<IIIIQQ", payload)[2], beside)
        if command == IRQ_INFO:
            index = struct.unpack_from("<IIII", payload)[2]
            return struct.pack("<IIII", 16, 1, index, 4 if index == 2 else 0)
        if command == SET_IRQS:
            return b""
        if command == RESET:
            self.reset()
            return b""
        if command in (REGION_READ, REGION_WRITE):
            return self.access(command, payload)
        return 95

    def region_info(self, index, beside):
        if index == BAR0:
            beside.append(self.file)
            area = struct.pack("<HHIIIQQ", 1, 1, 0, 1, 0, DOORBELLS, PAGE)
            return struct.pack("<IIIIQQ", 32 + len(area), 0xf, index, 32, BAR_BYTES, 0) + area
        size = len(self.config) if index == CONFIG else 0
        return struct.pack("<IIIIQQ", 32, 3 if size else 0, index, 0, size, 0)

    def access(self, command, payload):
        at, region, count = struct.unpack_from("<QII", payload)
        if region not in (BAR0, CONFIG):
            return 22
        space = self.config if region == CONFIG else self.registers
        if command == REGION_READ:
            return payload[:16] + bytes(space[at:at + count])
        data = payload[16:16 + count]
        if region == BAR0 and at >= DOORBELLS:
            self.by_message += 1
            self.words[(at - DOORBELLS) // 4] = struct.unpack("<I", data)[0]
        elif region == BAR0:
            self.write_register(at, data)
        else:
            self.config[at:at + count] = data
        return payload[:16]

    # The controller.

    def reset(self):
        self.registers = bytearray(DOORBELLS)
        struct.pack_into("<Q", self.registers, CAP, self.mqes | 1 << 16 | 20 << 24 | 1 << 37)
        struct.pack_into("<I", self.registers, VS, 0x1_0400)
        self.disable()

    def disable(self):
        self.submissions, self.completions = {}, {}
        self.page[:] = bytes(PAGE)
        struct.pack_into("<I", self.registers, CSTS, 0)

    def write_register(self, at, data):
        if at in (CC, AQA, ASQ, ACQ, ASQ + 4, ACQ + 4):
            before = self.registers[CC] & 1
            self.registers[at:at + len(data)] = data
            now = self.registers[CC] & 1
            if now and not before:
                sizes, = struct.unpack_from("<I", self.registers, AQA)
                submissions, completions = struct.unpack_from("<QQ", self.registers, ASQ)
                self.completions[0] = Queue(completions, (sizes >> 16 & 0xfff) + 1)
                self.submissions[0] = Queue(submissions, (sizes & 0xfff) + 1, 0)
                struct.pack_into("<I", self.registers, CSTS, 1)
            elif before and not now:
                self.disable()
            elif struct.unpack_from("<I", self.registers, CC)[0] >> 14 & 3:
                struct.pack_into("<I", self.registers, CSTS, self.registers[CSTS] & 1 | 2 << 2)

    def at(self, address, count):
        for base, length, memory in self.memory:
            if base <= address and address + count <= base + length:
                return memory, address - base
        raise Gone(f"{count} bytes at {address:x} were not mapped")

    def pieces(self, prp1, prp2, count):
        """Where the bytes of a command lie."""
        first = min(count, PAGE - prp1 % PAGE)
        found, left = [(prp1, first)], count - first
        if 0 < left <= PAGE:
            found.append((prp2, left))
        while left > PAGE or (left > 0 and len(found) > 1 and found[-1][0] != prp2):
            memory, at = self.at(prp2, 8)
            page, = struct.unpack_from("<Q", memory, at)
            prp2 += 8
            found.append((page, min(left, PAGE)))
            left -= min(left, PAGE)
            if left == 0:
                break
        return found

    def put(self, prp1, prp2, data):
        done = 0
        for address, count in self.pieces(prp1, prp2, len(data)):
            memory, at = self.at(address, count)
            memory[at:at + count] = data[done:done + count]
            done += count

    def work(self):
        """Carries out what has been submitted."""
        for number, queue in list(self.submissions.items()):
            tail = self.words[2 * number]
            while queue.at != tail and tail < queue.entries:
                memory, at = self.at(queue.base + 64 * queue.at, 64)
                entry = struct.unpack_from("<IIIIQQQIIIIII", memory, at)
                queue.at = (queue.at + 1) % queue.entries
                self.commands += 1
                result = (self.admin if number == 0 else self.io)(entry)
                if result is not None and number in self.submissions:
                    self.complete(number, queue, entry[0] >> 16, *result)

    def complete(self, number, queue, identifier, status, value=0):
        into = self.completions[queue.other]
        memory, at = self.at(into.base + 16 * into.at, 16)
        struct.pack_into("<III", memory, at, value, 0, queue.at | number << 16)
        # The word with the phase is the last one, and stored as one.
        word = memoryview(memory)[at + 12:at + 16].cast("I")
        word[0] = identifier | into.phase << 16 | status << 17
        word.release()
        into.at += 1
        if into.at == into.entries:
            into.at, into.phase = 0, 1 - into.phase

    def admin(self, entry):
        opcode, prp1, prp2, dword10, dword11 = entry[0] & 0xff, entry[5], entry[6], entry[7], entry[8]
        number, entries = dword10 & 0xffff, (dword10 >> 16) + 1
        if opcode in (1, 5) and (number == 0 or entries - 1 > self.mqes):
            # Invalid queue identifier, invalid queue size.
            return (0x101 if number == 0 else 0x102,)
        if opcode == 5:
            self.completions[number] = Queue(prp1, entries)
        elif opcode == 1:
            self.submissions[number] = Queue(prp1, entries, dword11 >> 16)
            self.queue_entries = max(self.queue_entries, entries)
        elif opcode == 0:
            self.submissions.pop(number, None)
            self.words[2 * number] = 0
        elif opcode == 4:
            self.completions.pop(number, None)
        elif opcode == 6:
            return self.identify(dword10 & 0xff, entry[1], prp1, prp2)
        elif opcode == 9:
            return (0, 7 | 7 << 16) if dword10 & 0xff == 7 else (0,)
        elif opcode == 2:
            self.put(prp1, prp2, bytes(4 * ((dword10 >> 16) + 1)))
        elif opcode == 0xc:
            return None
        elif opcode not in (8, 0xa, 0x18):
            return (INVALID_OPCODE,)
        return (0,)

    def identify(self, what, namespace, prp1, prp2):
        data = bytearray(PAGE)
        if what == 1:
            struct.pack_into("<HH20s40s8s", data, 0, 0x1b36, 0x1af4, b"ATTACK".ljust(20), b"target".ljust(40),
                             b"1".ljust(8))
            data[77] = 5
            struct.pack_into("<I", data, 80, 0x1_0400)
            data[512], data[513] = 0x66, 0x44
            struct.pack_into("<I", data, 516, 1)
            data[525] = 1
        elif what == 0 and namespace == 1:
            struct.pack_into("<QQQ", data, 0, BLOCKS, BLOCKS, BLOCKS)
            struct.pack_into("<I", data, 128, 9 << 16)
        elif what == 2:
            struct.pack_into("<I", data, 0, 1 if namespace < 1 else 0)
        elif what == 3:
            data[:4], data[4:20] = bytes([3, 16, 0, 0]), b"attack namespace"
        elif what != 0:
            return (INVALID_FIELD,)
        self.put(prp1, prp2, data)
        return (0,)

    def io(self, entry):
        opcode, lba = entry[0] & 0xff, entry[7] | entry[8] << 32
        begin, count = lba * BLOCK_BYTES, ((entry[9] & 0xffff) + 1) * BLOCK_BYTES
        if opcode == 0:
            return (0,)
        if opcode not in (1, 2):
            return (INVALID_OPCODE,)
        if begin + count > len(self.blocks):
            return (OUT_OF_RANGE,)
        if opcode == 2:
            self.put(entry[5], entry[6], self.blocks[begin:begin + count])
            return (0,)
        for address, length in self.pieces(entry[5], entry[6], count):
            memory, at = self.at(address, length)
            self.blocks[begin:begin + length] = memory[at:at + length]
            begin += length
        return (0,)
