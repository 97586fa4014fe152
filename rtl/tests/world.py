"""The world around the block: a host that writes its registers, memory and a drive behind its AXI master.

Every channel may idle and push back at random. The rules of AXI are checked in every cycle, and the drive
checks every command and every doorbell against what must come next.
"""

import collections
import dataclasses
import random
import struct

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge
import model

SQ, CQ = 0x1_0000_1000, 0x1_0000_8000
BELLS = 0xF000_1008
QUEUE_ID = 1
OKAY, SLVERR, DECERR = 0, 2, 3

# Offsets in the register map.
ID, VERSION, CONTROL, STATUS, SPACE = 0x00, 0x04, 0x14, 0x18, 0x1C
SETUP = {
    "sq": 0x40, "cq": 0x48, "sq_bell": 0x50, "cq_bell": 0x58, "depth": 0x60, "namespace": 0x64,
    "lba_shift": 0x68, "queue_id": 0x6C, "batch": 0x70, "poll": 0x74, "timeout": 0x78,
}
COUNTERS = {
    name: 0x80 + 4 * number for number, name in enumerate((
        "begun", "refused", "commands", "completed", "bad_statuses", "bus_errors", "no_sense", "overruns",
        "tail_bells", "head_bells", "polls", "min", "max", "count", "sum", "sum_above",
    ))
}
REQUEST, RESPONSE, HANDLE = 0x100, 0x140, 0x180


@dataclasses.dataclass
class Pace:
    """How often, of 100 cycles, a channel stands still; and how long memory and drive take, in cycles."""

    stall: int = 0
    written: tuple = (2, 2)
    read: tuple = (4, 4)
    drive: tuple = (20, 20)


class Fault(Exception):
    """The block did what it must not do."""


class World:
    """The block, its host and its drive."""

    def __init__(self, dut, seed=1, pace=None, depth=16, lba_shift=9, batch=1, poll=0, timeout=20_000):
        self.dut, self.pace = dut, pace or Pace()
        self.dice = random.Random(seed)
        self.depth, self.lba_shift = depth, lba_shift
        self.setup = {
            "sq": SQ, "cq": CQ, "sq_bell": BELLS, "cq_bell": BELLS + 4, "depth": depth, "namespace": 7,
            "lba_shift": lba_shift, "queue_id": QUEUE_ID, "batch": batch, "poll": poll, "timeout": timeout,
        }
        self.width = len(dut.m_axi_wdata) // 8
        self.cycle = 0
        self.handles = {}
        # What must come: commands in order, and what is known of each request by its tag.
        self.due = collections.deque()
        self.open = {}
        self.answered = []
        # The drive.
        self.sq = bytearray(64 * depth)
        self.cq = bytearray(16 * depth)
        self.in_memory = [False] * depth
        self.head = self.tail = self.cq_tail = self.cq_head = 0
        self.phase = 1
        self.working = []
        self.bells = []
        self.fetched = []
        self.status_of = lambda command: 0
        self.lose = lambda command: False
        self.strange = None
        # The bus.
        self.write_error_at = self.read_error_at = None
        self.writes = self.reads = 0
        self.addresses, self.bursts, self.burst = collections.deque(), collections.deque(), []
        self.responses, self.read_queue = collections.deque(), collections.deque()
        self.held = {}
        self.driven = {}
        self.signals = {}
        # What crossed the master port, and when: cycle, channel.
        self.crossed = []

    # ---- the host ----

    async def start(self):
        """Out of reset, and enabled."""
        dut = self.dut
        self.clock = cocotb.start_soon(Clock(dut.clock, 8, "step").start())
        for name in ("s_axi_awvalid", "s_axi_wvalid", "s_axi_bready", "s_axi_arvalid", "s_axi_rready",
                     "m_axi_awready", "m_axi_wready", "m_axi_bvalid", "m_axi_arready", "m_axi_rvalid",
                     "m_axi_bresp", "m_axi_rresp", "m_axi_rlast", "m_axi_rdata",
                     "s_axi_awaddr", "s_axi_wdata", "s_axi_wstrb", "s_axi_araddr"):
            getattr(dut, name).value = 0
        dut.reset_n.value = 0
        for _ in range(4):
            await RisingEdge(dut.clock)
        dut.reset_n.value = 1
        await RisingEdge(dut.clock)
        self.bus = cocotb.start_soon(self.run_bus())
        await self.configure()
        await self.enable()

    def end(self):
        """Another world may have the block."""
        self.bus.cancel()
        self.clock.cancel()

    async def configure(self):
        for name, value in self.setup.items():
            await self.write(SETUP[name], value & 0xFFFF_FFFF)
            if name in ("sq", "cq", "sq_bell", "cq_bell", "timeout"):
                await self.write(SETUP[name] + 4, value >> 32)

    async def enable(self):
        await self.write(CONTROL, 3)

    def stalls(self):
        return self.pace.stall and self.dice.randrange(100) < self.pace.stall

    async def idle(self):
        while self.stalls():
            await RisingEdge(self.dut.clock)

    async def send(self, channel, **payload):
        """One beat of the host's: valid until it is taken."""
        await self.idle()
        valid, ready = getattr(self.dut, f"s_axi_{channel}valid"), getattr(self.dut, f"s_axi_{channel}ready")
        for name, value in payload.items():
            getattr(self.dut, f"s_axi_{name}").value = value
        valid.value = 1
        await RisingEdge(self.dut.clock)
        while not ready.value:
            await RisingEdge(self.dut.clock)
        valid.value = 0

    async def receive(self, channel, *names):
        await self.idle()
        valid, ready = getattr(self.dut, f"s_axi_{channel}valid"), getattr(self.dut, f"s_axi_{channel}ready")
        ready.value = 1
        await RisingEdge(self.dut.clock)
        while not valid.value:
            await RisingEdge(self.dut.clock)
        ready.value = 0
        return [int(getattr(self.dut, f"s_axi_{name}").value) for name in names]

    async def write(self, offset, value, strobe=15, expect=OKAY):
        """Address and data in either order, or at once."""
        order = self.dice.randrange(3) if self.pace.stall else 0
        address = self.send("aw", awaddr=offset)
        data = self.send("w", wdata=value, wstrb=strobe)
        if order == 0:
            both = [cocotb.start_soon(address), cocotb.start_soon(data)]
            for one in both:
                await one
        else:
            for one in (address, data) if order == 1 else (data, address):
                await one
        (response,) = await self.receive("b", "bresp")
        if response != expect:
            raise Fault(f"write of {value:#x} to {offset:#x}: response {response}, expected {expect}")

    async def read(self, offset, expect=OKAY):
        await self.send("ar", araddr=offset)
        value, response = await self.receive("r", "rdata", "rresp")
        if response != expect:
            raise Fault(f"read of {offset:#x}: response {response}, expected {expect}")
        return value

    async def counters(self):
        return {name: await self.read(offset) for name, offset in COUNTERS.items()}

    async def set_handle(self, fp_id, handle):
        self.handles[fp_id] = handle
        words = [fp_id, handle.generation | handle.live << 16]
        for value in (handle.area_lba, handle.area_lbas, handle.buffer_address, handle.buffer_bytes):
            words += [value & 0xFFFF_FFFF, value >> 32]
        for number, word in enumerate(words):
            await self.write(HANDLE + 4 * number, word)

    async def post(self, request, expect=OKAY):
        """Writes a request, and notes what must come of it."""
        if expect == OKAY:
            code, commands = model.cut(request, self.handles, 1 << self.lba_shift, self.setup["namespace"])
            if request.tag in self.open:
                raise Fault(f"the bench used tag {request.tag} twice")
            self.open[request.tag] = {
                "code": code, "commands": len(commands), "completed": 0, "status": 0, "posted": self.cycle,
            }
            self.due.extend((request.tag, command) for command in commands)
        data = request.pack()
        for number, (word,) in enumerate(struct.iter_unpack("<I", data)):
            await self.write(REQUEST + 4 * number, word, expect=expect if number == 7 else OKAY)

    async def take(self):
        """The oldest response, judged."""
        words = [await self.read(RESPONSE + 4 * number) for number in range(4)]
        response = model.Response.unpack(struct.pack("<4I", *words))
        request = self.open.pop(response.tag, None)
        if request is None:
            raise Fault(f"a response to nothing: {response}")
        self.answered.append(response)
        if request["status"]:
            left_out = [one for one in self.due if one[0] == response.tag]
            self.due = collections.deque(one for one in self.due if one[0] != response.tag)
            request["commands"] -= len(left_out)
        return response, request

    async def take_good(self):
        """The oldest response, which must be what the model says."""
        response, request = await self.take()
        want = model.REFUSED | request["code"] if request["code"] else request["status"]
        if response.status != want:
            raise Fault(f"{response}: expected status {want:#x}")
        if response.completed != request["commands"] or request["completed"] != request["commands"]:
            done, commands = request["completed"], request["commands"]
            raise Fault(f"{response}: {done} of {commands} commands were completed")
        if request["code"] == 0 and not 0 < response.took <= self.cycle - request["posted"]:
            raise Fault(f"{response}: took longer than it was there")
        return response

    async def waiting(self):
        return await self.read(SPACE) >> 16

    async def take_all(self, number, patience=200_000):
        """So many responses, each good."""
        until = self.cycle + patience
        for _ in range(number):
            while not self.dut.irq.value:
                await RisingEdge(self.dut.clock)
                if self.cycle > until:
                    raise Fault(f"no response; {len(self.open)} requests are open")
            await self.take_good()

    # ---- memory and drive ----

    async def run_bus(self):
        while True:
            await RisingEdge(self.dut.clock)
            self.cycle += 1
            self.step_writes()
            self.step_reads()
            self.step_drive()

    def dut_signal(self, name):
        """Looking one up takes longer than reading it."""
        found = self.signals.get(name)
        if found is None:
            found = self.signals[name] = getattr(self.dut, name)
        return found

    def drive(self, name, value):
        if self.driven.get(name) != value:
            self.driven[name] = value
            getattr(self.dut, name).value = value

    def stable(self, channel, names):
        """Who offers a beat offers the same until it is taken. Gives whether one was taken in this cycle."""
        valid = bool(self.dut_signal(f"m_axi_{channel}valid").value)
        before = self.held.get(channel)
        if not valid and before is None:
            return None
        ready = self.driven.get(f"m_axi_{channel}ready", 0)
        offer = [int(self.dut_signal(f"m_axi_{name}").value) for name in names] if valid else None
        if before is not None and offer != before:
            raise Fault(f"{channel}: offered {before}, and then {offer} before it was taken")
        self.held[channel] = None if not valid or ready else offer
        return offer if valid and ready else None

    def step_writes(self):
        taken = self.stable("aw", ["awaddr", "awlen", "awsize", "awburst"])
        if taken:
            self.addresses.append(taken)
            self.crossed.append((self.cycle, "AW"))
        beat = self.stable("w", ["wdata", "wstrb", "wlast"])
        if beat:
            self.burst.append(beat)
            self.crossed.append((self.cycle, "W"))
            if beat[2]:
                self.bursts.append(self.burst)
                self.burst = []
        if self.driven.get("m_axi_bvalid") and self.dut.m_axi_bready.value:
            self.responses.popleft()[2]()
            self.crossed.append((self.cycle, "B"))
            self.driven["m_axi_bvalid"] = 0
        while self.addresses and self.bursts:
            self.land(self.addresses.popleft(), self.bursts.popleft())
        self.drive("m_axi_awready", int(not self.stalls()))
        self.drive("m_axi_wready", int(not self.stalls()))
        if self.responses and self.responses[0][0] <= self.cycle and not self.driven.get("m_axi_bvalid"):
            if not self.stalls():
                self.drive("m_axi_bresp", self.responses[0][1])
                self.drive("m_axi_bvalid", 1)
        if not self.driven.get("m_axi_bvalid"):
            self.dut.m_axi_bvalid.value = 0

    def land(self, address, beats):
        """A write is in memory, or at the drive, when its response is given."""
        at, length, size, burst = address
        if burst != 1 or length + 1 != len(beats):
            raise Fault(f"a burst of {len(beats)} beats, kind {burst}, said {length + 1}")
        self.writes += 1
        error = self.writes == self.write_error_at
        ready = self.cycle + self.dice.randint(*self.pace.written)
        effect = (lambda: None) if error else self.command_lands(at, beats, size)
        self.responses.append((ready, self.dice.choice((SLVERR, DECERR)) if error else OKAY, effect))

    def command_lands(self, at, beats, size):
        if len(beats) == 1:
            lane = at % self.width
            data, strobe, _ = beats[0]
            if size != 2 or strobe != 15 << lane:
                raise Fault(f"a doorbell at {at:#x} with strobes {strobe:#x}, size {size}")
            value = data >> 8 * lane & 0xFFFF_FFFF
            # A doorbell acts when it arrives, which is not after its response.
            self.bells.append((self.cycle, at, value))
            self.ring(at, value)
            return lambda: None
        data = b"".join(beat[0].to_bytes(self.width, "little") for beat in beats)
        place = (at - SQ) // 64
        if len(data) != 64 or (at - SQ) % 64 or not 0 <= place < self.depth or 1 << size != self.width:
            raise Fault(f"{len(data)} bytes written to {at:#x}")
        if any(beat[1] != (1 << self.width) - 1 for beat in beats):
            raise Fault(f"a command at {at:#x} without all its strobes")
        self.sq[64 * place:64 * place + 64] = data
        self.in_memory[place] = False

        def effect():
            self.in_memory[place] = True

        return effect

    def ring(self, at, value):
        if value >= self.depth:
            raise Fault(f"doorbell {at:#x} is {value}, the queue has {self.depth} entries")
        if at == BELLS:
            while self.tail != value:
                self.fetch()
        elif at == BELLS + 4:
            fresh = (value - self.cq_head) % self.depth
            if fresh > (self.cq_tail - self.cq_head) % self.depth:
                raise Fault(f"the head is said to be {value}, the tail is {self.cq_tail}")
            self.cq_head = value
        else:
            raise Fault(f"a write of 4 bytes to {at:#x}")

    def fetch(self):
        place = self.tail
        self.tail = (self.tail + 1) % self.depth
        if not self.in_memory[place]:
            raise Fault(f"entry {place} was announced before it was in memory")
        self.in_memory[place] = False
        data = bytes(self.sq[64 * place:64 * place + 64])
        cid = struct.unpack_from("<H", data, 2)[0]
        if not self.due:
            raise Fault(f"a command that nobody asked for: {data.hex()}")
        tag, want = self.due.popleft()
        # Of a request that has failed the rest may be left out.
        while self.due and data != want.pack(cid) and self.open[tag]["status"]:
            self.open[tag]["commands"] -= 1
            tag, want = self.due.popleft()
        if data != want.pack(cid):
            raise Fault(f"request {tag}: command {data.hex()}, expected {want.pack(cid).hex()}")
        if any(cid == other[1] for other in self.working):
            raise Fault(f"identifier {cid:#x} is used twice at once")
        if len(self.working) >= self.depth - 1:
            raise Fault("more commands in flight than the queue holds")
        self.fetched.append((self.cycle, tag, want))
        when = self.cycle + self.dice.randint(*self.pace.drive)
        if self.lose(want):
            when = 1 << 60
        self.working.append((when, cid, tag, want))

    def step_drive(self):
        """Completes at most one command a cycle, whichever is ready; late ones overtake early ones."""
        ready = [one for one in self.working if one[0] <= self.cycle]
        if not ready or (self.cq_tail + 1) % self.depth == self.cq_head:
            return
        one = ready[0]
        self.working.remove(one)
        _, cid, tag, command = one
        status = self.status_of(command)
        request = self.open[tag]
        request["completed"] += 1
        request["status"] = request["status"] or status
        self.complete(cid, status)

    def complete(self, cid, status, queue=QUEUE_ID, head=None):
        head = self.tail if head is None else head
        entry = struct.pack("<IIHHHH", self.dice.getrandbits(32), 0, head, queue,
                            cid, status << 1 | self.phase)
        if self.strange:
            entry = self.strange(entry)
        self.cq[16 * self.cq_tail:16 * self.cq_tail + 16] = entry
        self.cq_tail += 1
        if self.cq_tail == self.depth:
            self.cq_tail, self.phase = 0, 1 - self.phase

    def step_reads(self):
        taken = self.stable("ar", ["araddr", "arlen", "arsize", "arburst"])
        if taken:
            at, length, size, burst = taken
            self.reads += 1
            self.crossed.append((self.cycle, "AR"))
            bytes_read = (length + 1) * self.width
            if 1 << size != self.width or burst != 1 or at % 16 or bytes_read % 16 or bytes_read > 256:
                raise Fault(f"a read of {length + 1} beats of {1 << size} bytes at {at:#x}")
            if not CQ <= at or at + bytes_read > CQ + 16 * self.depth:
                raise Fault(f"a read of {bytes_read} bytes at {at:#x}, outside the completion queue")
            ready = self.cycle + self.dice.randint(*self.pace.read)
            error = self.reads == self.read_error_at
            for beat in range(length + 1):
                self.read_queue.append((ready, at - CQ + beat * self.width, beat == length, error))
        if self.driven.get("m_axi_rvalid") and self.dut.m_axi_rready.value:
            self.read_queue.popleft()
            self.crossed.append((self.cycle, "R"))
            self.driven["m_axi_rvalid"] = 0
        self.drive("m_axi_arready", int(not self.stalls()))
        waiting = self.read_queue and not self.driven.get("m_axi_rvalid")
        if waiting and self.read_queue[0][0] <= self.cycle and not self.stalls():
            _, place, last, error = self.read_queue[0]
            # Each beat is of its own moment: a drive may write between two.
            self.drive("m_axi_rdata", int.from_bytes(self.cq[place:place + self.width], "little"))
            self.drive("m_axi_rresp", SLVERR if error else OKAY)
            self.drive("m_axi_rlast", int(last))
            self.drive("m_axi_rvalid", 1)
        if not self.driven.get("m_axi_rvalid"):
            self.dut.m_axi_rvalid.value = 0
