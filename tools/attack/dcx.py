"""DC Express from its layouts: a queue in memory that both sides have, over a shared-memory connection."""

import struct
import time

from .errors import Hung, Refused

MAGIC = struct.unpack("<I", b"DCX1")[0]
COMMAND = struct.Struct("<BBHIQQI32xI")
REPORT = struct.Struct("<IHHII")
READ, WRITE, FENCE = 1, 2, 3
ENTRIES_LOG2 = 6
ENTRIES = 1 << ENTRIES_LOG2


class Dcx:
    """Queue 0 of a device. `memory` has room for the rings and a buffer."""

    def __init__(self, function, memory, patience=30.0):
        self.function, self.memory, self.patience = function, memory, patience
        words = range(0, function.register_bytes, 4)
        self.block = next((at for at in words if function.read32(at) == MAGIC), None)
        if self.block is None:
            raise Refused("no register block of DC Express")
        self.commands, self.reports, self.notice = (memory.take(4096) for _ in range(3))
        self.buffer = memory.take(64 << 10)

    def group(self, queue=0):
        return self.block + 0x40 + 0x40 * queue

    def open(self, commands=None, reports=None, notice=None):
        """Enables the queue with these bus addresses, its own if there are none; returns STATUS."""
        base, group, write32 = self.memory.base, self.group(), self.function.write32
        write32(group + 0x1c, 0)
        self._status(0)
        self.memory.map[self.commands:self.commands + 8192] = bytes(8192)
        own = (self.commands, self.reports, self.notice)
        for at, asked, mine in zip((0x00, 0x08, 0x10), (commands, reports, notice), own):
            address = base + mine if asked is None else asked
            write32(group + at, address & 0xffff_ffff)
            write32(group + at + 4, address >> 32)
        write32(group + 0x18, ENTRIES_LOG2)
        write32(group + 0x1c, 1)
        self.number = self.reported = 0
        return self._status(1)

    def _status(self, ready):
        end = time.monotonic() + self.patience
        while (status := self.function.read32(self.group() + 0x20)) & 1 != ready:
            if time.monotonic() > end:
                raise Hung(f"STATUS of a queue of DC Express is {status:x}h for {self.patience:.0f} s")
            self.function.check_alive()
            time.sleep(0.0005)
        return status

    def put(self, opcode, lba=0, size=4096, address=None, tag=0, slot=0, number=None):
        """Stores a command; its number, which is the next unless it is forged."""
        self.number += 1
        at = self.commands + 64 * ((self.number - 1) % ENTRIES)
        address = self.memory.base + self.buffer if address is None else address
        number = self.number if number is None else number
        entry = COMMAND.pack(opcode, 0, slot, tag, lba, address, 0 if opcode == FENCE else size, number)
        self.memory.map[at:at + 60] = entry[:60]
        self.memory.words[at // 4 + 15] = number & 0xffff_ffff
        return number

    def settle(self):
        """Stores a fence, and waits for its report; returns (command, code) of what was reported."""
        fence, found = self.put(FENCE), []
        end = time.monotonic() + self.patience
        while not found or found[-1][0] != fence:
            at = self.reports + 16 * (self.reported % ENTRIES)
            if self.memory.words[at // 4 + 3] == self.reported + 1:
                command, _, code, _, _ = REPORT.unpack_from(self.memory.map, at)
                self.reported += 1
                found.append((command, code))
            elif time.monotonic() > end:
                raise Hung(f"a fence of DC Express was not reported within {self.patience:.0f} s")
            else:
                self.function.check_alive()
                time.sleep(0.0002)
        return found[:-1]

    def read(self, lba, size):
        """Reads blocks. The fence behind the read says that it has ended."""
        self.put(READ, lba, size)
        codes = self.settle()
        if codes:
            raise Refused(f"DC Express: read of LBA {lba}: code {codes[0][1]}")
        return bytes(self.memory.map[self.buffer:self.buffer + size])
