"""An NVMe host, written from the base specification 2.0: one admin queue, one I/O queue pair or more, PRPs, polling.

It stands on a function: `read32`, `write32`, `ring` (a doorbell), `share`, `check_alive`, `close`.
"""

import struct
import time

from .errors import Hung, Refused
from .memory import Memory

CAP, CC, CSTS, AQA, ASQ, ACQ, DOORBELLS = 0x00, 0x14, 0x1c, 0x24, 0x28, 0x30, 0x1000
PAGE = 4096
BASE = 1 << 32
ADMIN_ENTRIES = 32
SUBMISSION = struct.Struct("<IIIIQQQIIIIII")
DELETE_SQ, CREATE_SQ, DELETE_CQ, CREATE_CQ, IDENTIFY, SET_FEATURES, GET_FEATURES = 0, 1, 4, 5, 6, 9, 10
FLUSH, WRITE, READ = 0, 1, 2
FUA = 1 << 30


class Ring:
    """A queue pair in host memory."""

    def __init__(self, host, number, entries):
        self.host, self.number, self.entries = host, number, entries
        self.submissions = host.memory.take(entries * 64)
        self.completions = host.memory.take(entries * 16)
        self.clear()

    def clear(self):
        """As after a reset of the controller."""
        memory = self.host.memory
        memory.map[self.submissions:self.submissions + self.entries * 64] = bytes(self.entries * 64)
        memory.map[self.completions:self.completions + self.entries * 16] = bytes(self.entries * 16)
        self.tail = self.head = 0
        self.phase, self.next_id, self.under_way = 1, 0, 0

    def put(self, opcode, namespace=0, prp1=0, prp2=0, dwords=(0, 0, 0, 0, 0, 0), ring=True):
        """Stores an entry, and rings the doorbell; returns the command's identifier."""
        number = self.next_id
        self.next_id = (number + 1) & 0x7fff
        entry = SUBMISSION.pack(opcode | number << 16, namespace, 0, 0, 0, prp1, prp2, *dwords)
        at = self.submissions + self.tail * 64
        self.host.memory.map[at:at + 64] = entry
        self.tail = (self.tail + 1) % self.entries
        self.under_way += 1
        if ring:
            self.ring()
        return number

    def ring(self):
        self.host.function.ring(DOORBELLS + 2 * self.number * self.host.stride, self.tail)

    def take(self):
        """Completions that have come: (identifier, status, dword 0)."""
        found, words = [], self.host.memory.words
        while True:
            at = self.completions // 4 + self.head * 4
            last = words[at + 3]
            if last >> 16 & 1 != self.phase:
                break
            found.append((last & 0xffff, last >> 17, words[at]))
            self.head += 1
            if self.head == self.entries:
                self.head, self.phase = 0, 1 - self.phase
        if found:
            self.under_way -= len(found)
            self.host.function.ring(DOORBELLS + (2 * self.number + 1) * self.host.stride, self.head)
        return found


class Rings:
    """I/O queue pairs that are used in turn. An identifier has the number of its queue in the upper half."""

    def __init__(self, rings):
        self.rings, self.turn, self.entries = rings, 0, rings[0].entries

    def clear(self):
        for ring in self.rings:
            ring.clear()

    @property
    def under_way(self):
        return max(ring.under_way for ring in self.rings)

    def put(self, *entry):
        ring = self.rings[self.turn % len(self.rings)]
        self.turn += 1
        return ring.number << 16 | ring.put(*entry)

    def take(self):
        return [(ring.number << 16 | number, status, result)
                for ring in self.rings for number, status, result in ring.take()]


class Nvme:
    """A controller that was enabled, with I/O queue pairs; see `drive.py` for its calls as a drive."""

    def __init__(self, function, memory=None, entries=64, slots=32, slot_bytes=64 << 10, grace=30.0, queues=1):
        self.function, self.grace = function, grace
        self.memory = memory or Memory(4 << 20, BASE)
        function.share(self.memory)
        self.admin = Ring(self, 0, ADMIN_ENTRIES)
        self.rings = [Ring(self, number, entries) for number in range(1, queues + 1)]
        self.queue = self.rings[0] if queues == 1 else Rings(self.rings)
        self.page = self.memory.take(PAGE)
        self.slot_bytes = slot_bytes
        self.slots = [(self.memory.take(slot_bytes), self.memory.take(PAGE)) for _ in range(slots)]
        self.free, self.tags, self.early = list(range(slots)), {}, []
        self.ready_s = 0.0
        self.bring_up()
        self.identify()

    def _read64(self, at):
        return self.function.read32(at) | self.function.read32(at + 4) << 32

    def _write64(self, at, value):
        self.function.write32(at, value & 0xffff_ffff)
        self.function.write32(at + 4, value >> 32)

    def _ready(self, wanted):
        """Waits for CSTS.RDY: CAP.TO says how long, and the grace is this client's."""
        begin = time.monotonic()
        while True:
            status = self.function.read32(CSTS)
            if status == 0xffff_ffff:
                raise Refused("CSTS reads as all ones")
            if wanted and status & 2:
                raise Refused("CSTS.CFS is 1")
            if status & 1 == wanted:
                self.ready_s = time.monotonic() - begin
                return
            if time.monotonic() > begin + self.timeout_s + self.grace:
                bound = f"CAP.TO of {self.timeout_s:.1f} s and {self.grace:.0f} s"
                raise Hung(f"CSTS.RDY is not {wanted} within {bound}")
            self.function.check_alive()
            time.sleep(0.001)

    def disable(self):
        cap = self._read64(CAP)
        self.timeout_s, self.stride = (cap >> 24 & 0xff) * 0.5, 4 << (cap >> 32 & 0xf)
        self.entries_max = (cap & 0xffff) + 1
        self.function.write32(CC, self.function.read32(CC) & ~1)
        self._ready(0)

    def enable(self):
        """Enables it, and makes the I/O queues, over empty rings."""
        self.admin.clear()
        self.queue.clear()
        self.free, self.tags, self.early = list(range(len(self.slots))), {}, []
        self.function.write32(AQA, ADMIN_ENTRIES - 1 | ADMIN_ENTRIES - 1 << 16)
        self._write64(ASQ, self.memory.base + self.admin.submissions)
        self._write64(ACQ, self.memory.base + self.admin.completions)
        self.function.write32(CC, 1 | 6 << 16 | 4 << 20)
        self._ready(1)

    def create_queues(self):
        for queue in self.rings:
            sizes = queue.number | queue.entries - 1 << 16
            self.command(CREATE_CQ, prp1=self.memory.base + queue.completions, dwords=(sizes, 1, 0, 0, 0, 0))
            submissions = self.memory.base + queue.submissions
            self.command(CREATE_SQ, prp1=submissions, dwords=(sizes, 1 | queue.number << 16, 0, 0, 0, 0))

    def bring_up(self):
        self.disable()
        self.enable()
        self.create_queues()

    def command(self, opcode, patience=60.0, **keys):
        """An admin command: returns dword 0 of its completion."""
        number = self.admin.put(opcode, **keys)
        end = time.monotonic() + patience
        while time.monotonic() < end:
            for other, status, result in self.admin.take():
                if other == number:
                    if status & 0x7ff:
                        raise Refused(f"admin command {opcode:02x}h: status {status & 0x7ff:x}h")
                    return result
            self.function.check_alive()
            time.sleep(0.0005)
        raise Hung(f"admin command {opcode:02x}h was not completed within {patience:.0f} s")

    def identify(self):
        at = self.memory.base + self.page
        self.command(IDENTIFY, prp1=at, dwords=(1, 0, 0, 0, 0, 0))
        self.controller = bytes(self.memory.map[self.page:self.page + PAGE])
        self.command(IDENTIFY, namespace=1, prp1=at, dwords=(0, 0, 0, 0, 0, 0))
        data = bytes(self.memory.map[self.page:self.page + PAGE])
        self.blocks = struct.unpack_from("<Q", data)[0]
        form = struct.unpack_from("<I", data, 128 + 4 * (data[26] & 0xf))[0]
        self.block_bytes = 1 << (form >> 16 & 0xff)

    def _transfer(self, opcode, lba, size, fua):
        if size > self.slot_bytes:
            raise ValueError(f"{size} bytes in a slot of {self.slot_bytes}")
        slot = self.free.pop()
        buffer, listed = self.slots[slot]
        address, pages = self.memory.base + buffer, -(-size // PAGE)
        second = 0
        if pages == 2:
            second = address + PAGE
        elif pages > 2:
            second = self.memory.base + listed
            for page in range(1, pages):
                struct.pack_into("<Q", self.memory.map, listed + 8 * (page - 1), address + page * PAGE)
        dwords = (lba & 0xffff_ffff, lba >> 32, size // self.block_bytes - 1 | (FUA if fua else 0), 0, 0, 0)
        number = self.queue.put(opcode, 1, address, second, dwords)
        self.tags[number] = (slot, size if opcode == READ else 0)
        return number

    def _room(self):
        """Takes completions until there is a slot."""
        end = time.monotonic() + 60
        while not self.free or self.queue.under_way >= self.queue.entries - 1:
            if time.monotonic() > end:
                raise Hung("no command was completed within 60 s")
            self.early += self.poll(0.1, fresh=True)

    def submit_write(self, lba, data, fua=False):
        self._room()
        buffer, _ = self.slots[self.free[-1]]
        self.memory.map[buffer:buffer + len(data)] = data
        return self._transfer(WRITE, lba, len(data), fua)

    def submit_read(self, lba, count):
        self._room()
        return self._transfer(READ, lba, count * self.block_bytes, False)

    def submit_flush(self):
        self._room()
        number = self.queue.put(FLUSH, 1)
        self.tags[number] = (self.free.pop(), 0)
        return number

    def poll(self, wait=0.0, fresh=False):
        if self.early and not fresh:
            replies, self.early = self.early, []
            return replies
        end, replies = time.monotonic() + wait, []
        while True:
            for number, status, _ in self.queue.take():
                if number not in self.tags:
                    raise Refused(f"a completion of command {number}, which is not under way")
                slot, size = self.tags.pop(number)
                buffer, _ = self.slots[slot]
                data = bytes(self.memory.map[buffer:buffer + size])
                self.free.append(slot)
                replies.append((number, f"status {status & 0x7ff:x}h" if status & 0x7ff else None, data))
            if replies or time.monotonic() >= end:
                return replies
            self.function.check_alive()
            time.sleep(0.0002)

    def close(self):
        self.function.close()
