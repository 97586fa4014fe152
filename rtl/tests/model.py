"""What FastPath must do, in Python: requests judged and cut into commands, as the contract in `wire::fastpath` says.

The bytes are those of crates/wire/tests/golden/fastpath.txt, which the tests of `wire` read too.
"""

import dataclasses
import pathlib
import struct

GOLDEN = pathlib.Path(__file__).parents[2] / "crates/wire/tests/golden/fastpath.txt"

FLUSH, WRITE, READ = 0, 1, 2
HANDLE, STALE, AREA, BUFFER, SIZE, OPCODE, TIME_OUT, BUS, CONTROLLER = range(1, 10)
SIZE_MAX = 1 << 20
REFUSED = 0x8000
MASK = (1 << 64) - 1


@dataclasses.dataclass
class Request:
    """The 32 bytes of a request."""

    opcode: int = READ
    reserved: int = 0
    tag: int = 0
    fp_id: int = 0
    generation: int = 0
    offset: int = 0
    size: int = 4096
    block_size: int = 4096
    buffer_offset: int = 0

    LAYOUT = "<BBHHHQIIQ"

    def pack(self):
        return struct.pack(self.LAYOUT, *dataclasses.astuple(self))

    @classmethod
    def unpack(cls, data):
        return cls(*struct.unpack(cls.LAYOUT, data))

    def senseless(self, lba_bytes):
        """Why it makes no sense whatever the table of handles says, or 0."""
        if self.reserved or self.opcode not in (FLUSH, WRITE, READ):
            return OPCODE
        if self.opcode == FLUSH:
            return SIZE if self.size else 0
        good = (
            self.block_size in (512, 1024, 2048, 4096, 8192)
            and self.block_size % lba_bytes == 0
            and 0 < self.size <= SIZE_MAX
            and self.size % self.block_size == 0
            and self.offset % lba_bytes == 0
            and self.buffer_offset % self.block_size == 0
        )
        return 0 if good else SIZE


@dataclasses.dataclass
class Response:
    """The 16 bytes of a response."""

    tag: int
    status: int
    completed: int
    took: int

    LAYOUT = "<HHIQ"

    def pack(self):
        return struct.pack(self.LAYOUT, *dataclasses.astuple(self))

    @classmethod
    def unpack(cls, data):
        return cls(*struct.unpack(cls.LAYOUT, data))


@dataclasses.dataclass
class Handle:
    """An entry of the table of handles."""

    live: bool
    generation: int
    area_lba: int
    area_lbas: int
    buffer_address: int
    buffer_bytes: int


@dataclasses.dataclass(frozen=True)
class Command:
    """What matters of the 64 bytes of a command, but its identifier."""

    opcode: int
    namespace: int
    prp1: int
    prp2: int
    lba: int
    blocks: int

    LAYOUT = "<BBHIQQQQQIIII"

    def pack(self, cid):
        return struct.pack(
            self.LAYOUT, self.opcode, 0, cid, self.namespace, 0, 0, self.prp1, self.prp2,
            self.lba, self.blocks, 0, 0, 0,
        )


def cut(request, handles, lba_bytes, namespace):
    """The code of a refusal and no commands, or 0 and the commands."""
    code = request.senseless(lba_bytes)
    if code:
        return code, []
    handle = handles.get(request.fp_id)
    if handle is None or not handle.live:
        return HANDLE, []
    if handle.generation != request.generation:
        return STALE, []
    if request.opcode == FLUSH:
        return 0, [Command(FLUSH, namespace, 0, 0, 0, 0)]
    if (request.offset + request.size) // lba_bytes > handle.area_lbas:
        return AREA, []
    if request.buffer_offset + request.size > handle.buffer_bytes:
        return BUFFER, []
    commands = []
    for done in range(0, request.size, request.block_size):
        address = (handle.buffer_address + request.buffer_offset + done) & MASK
        commands.append(Command(
            request.opcode, namespace, address, (address + 4096) & MASK if request.block_size == 8192 else 0,
            (handle.area_lba + (request.offset + done) // lba_bytes) & MASK,
            request.block_size // lba_bytes - 1,
        ))
    return 0, commands


def golden(kind):
    """Lines of one kind: name, bytes, and the fields behind the colon."""
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        if line.startswith(kind + " "):
            head, fields = line.split(": ")
            name, digits = head[len(kind) + 1:].split(" = ")
            yield name, bytes.fromhex(digits), fields.split(" ")
