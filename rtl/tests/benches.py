"""The benches of FastPath, for cocotb. `rtl/tests/run` starts them."""

import os
import random

import cocotb
from cocotb.triggers import RisingEdge
import model
import world
from model import Handle, Request
from world import Pace, SLVERR, World

SHORT = os.environ.get("FASTPATH_SHORT") == "1"
# Ten times what the longest takes: a block that hangs is found.
LIMIT = 8 * 400_000
STALLS = Pace(stall=40, written=(1, 20), read=(1, 30), drive=(5, 300))


def roomy(fp_id=0, generation=0, area_lbas=1 << 20):
    return Handle(True, generation, 1 << 33 | fp_id << 24, area_lbas, 0x2_0000_0000 + (fp_id << 28), 16 << 20)


async def idle_cycles(world_, number):
    until = world_.cycle + number
    while world_.cycle < until:
        await RisingEdge(world_.dut.clock)


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def registers_say_what_they_are(dut):
    w = World(dut, pace=STALLS)
    await w.start()
    assert await w.read(world.ID) == int.from_bytes(b"FTPH", "little")
    assert await w.read(world.VERSION) == 1
    for offset in (0xD0, 0x11C, 0x1A8, 0xFFC, 0x101, world.RESPONSE, world.RESPONSE + 12):
        await w.read(offset, expect=SLVERR)
    for offset, value in ((world.ID, 1), (0xFFC, 0), (world.CONTROL, 4), (world.STATUS, 0), (0x102, 0)):
        await w.write(offset, value, expect=SLVERR)
    await w.write(world.REQUEST, 0, strobe=7, expect=SLVERR)
    # While it runs, nothing of the set-up changes.
    for offset in world.SETUP.values():
        await w.write(offset, 16, expect=SLVERR)
    await w.write(world.CONTROL, 0)
    senseless = {"depth": (0, 1, 4096), "lba_shift": (8, 14), "sq": (0x1040,), "cq": (8,), "sq_bell": (2,),
                 "namespace": (0,), "batch": (0, 65536)}
    for name, values in senseless.items():
        for value in values:
            await w.write(world.SETUP[name], value, expect=SLVERR)
    for name, value in w.setup.items():
        assert await w.read(world.SETUP[name]) == value & 0xFFFF_FFFF, name
    # Disabled, it takes no request.
    await w.post(Request(), expect=SLVERR)
    assert (await w.counters())["overruns"] == 1


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def golden_bytes(dut):
    """Every request of the golden file is judged as the file says, byte for byte."""
    w = World(dut)
    await w.start()
    for fp_id in (0, 1, 3):
        for_all = {0: 0, 1: 7 if fp_id == 1 else 0, 3: 1}
        await w.set_handle(fp_id, Handle(True, for_all[fp_id], 0, 1 << 55, 0x2_0000_0000, 1 << 40))
    names = 0
    for name, data, fields in model.golden("request"):
        request = Request.unpack(data)
        assert request.pack() == data, name
        said = [int(field, 16) for field in fields[:9]]
        assert said == [request.opcode, request.reserved, request.tag, request.fp_id, request.generation,
                        request.offset, request.size, request.block_size, request.buffer_offset], name
        code = request.senseless(512)
        assert fields[10] == (f"{code:x}" if code else "ok"), name
        await w.post(request)
        await w.take_all(1)
        if code:
            assert w.answered[-1].status == model.REFUSED | code, name
        names += 1
    assert names >= 16
    for name, data, fields in model.golden("response"):
        assert model.Response(*(int(field, 16) for field in fields)).pack() == data, name


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def every_bound(dut):
    """A handle's bounds, from both sides; stale and forged handles; a handle that is freed."""
    w = World(dut)
    await w.start()
    await w.set_handle(5, Handle(True, 9, 1000, 64, 0x3_0000_0000, 16384))
    # A table of 64 has no entry 69, though it ends like 5.
    for fp_id in (4, 5 + 64, 0x8005, 0xFFFF):
        await w.post(Request(tag=1, fp_id=fp_id, generation=9))
        await w.take_all(1)
        assert w.answered[-1].status == 0x8001
    cases = [(0, 4096, 0), (28672, 4096, 0), (29184, 4096, 0), (32768, 4096, 0), (16384, 16384, 0),
             (20480, 16384, 0), (0, 16384, 0), (0, 4096, 12288), (0, 4096, 16384), (0, 8192, 12288),
             (model.MASK - 511, 512, 0), (0, 512, model.MASK - 511), (1 << 32, 4096, 0), (0, 4096, 1 << 32)]
    for opcode in (model.READ, model.WRITE):
        for offset, size, buffer_offset in cases:
            for generation in (9, 8):
                request = Request(opcode, 0, 2, 5, generation, offset, size, min(size, 4096), buffer_offset)
                await w.post(request)
                await w.take_all(1)
    await w.set_handle(5, Handle(False, 9, 1000, 64, 0x3_0000_0000, 16384))
    await w.post(Request(tag=3, fp_id=5, generation=9))
    await w.take_all(1)
    assert w.answered[-1].status == 0x8001
    counters = await w.counters()
    assert counters["begun"] + counters["refused"] == len(w.answered)
    assert counters["commands"] == counters["completed"] == len(w.fetched)


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def sizes_and_blocks(dut):
    """Every size of block on every size of LBA."""
    for lba_shift in (9, 12, 13):
        w = World(dut, lba_shift=lba_shift, depth=7)
        await w.start()
        await w.set_handle(1, roomy(1))
        for block in (512, 1024, 2048, 4096, 8192):
            for opcode in (model.READ, model.WRITE):
                await w.post(Request(opcode, 0, block, 1, 0, 8192, 3 * block, block, 8192))
                await w.take_all(1)
        await w.post(Request(model.FLUSH, 0, 1, 1, 0, 99, 0, 0, 99))
        await w.take_all(1)
        w.end()


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def the_longest_request(dut):
    w = World(dut, depth=64, pace=Pace(drive=(5, 5)), batch=8)
    await w.start()
    await w.set_handle(1, roomy(1))
    await w.post(Request(model.WRITE, 0, 1, 1, 0, 0, 1 << 20, 2048 if SHORT else 512, 0))
    await w.take_all(1)
    assert len(w.fetched) == (512 if SHORT else 2048)


async def random_work(dut, seed, pace, number, **setup):
    """Requests of all kinds, many at once; each response judged by the model, in whatever order they come."""
    w = World(dut, seed, pace, **setup)
    dice = random.Random(seed)
    # Some commands fail, each always in the same way.
    w.status_of = lambda command: 0x4080 + command.lba % 7 if command.lba % 11 == 0 else 0
    await w.start()
    for fp_id in range(4):
        await w.set_handle(fp_id, roomy(fp_id, fp_id + 1, area_lbas=256))
    left, tag = number, 0
    while left or w.open:
        can_post = left and await w.read(world.SPACE) & 0xFFFF > 0
        if can_post and (not w.open or dice.randrange(3)):
            block = dice.choice((512, 1024, 2048, 4096, 8192))
            opcode = dice.choice((0, 1, 1, 1, 2, 2, 2, 2, 3))
            tag = (tag + 1) % 65536
            fp_id = dice.randrange(4) if dice.randrange(20) else 4
            await w.post(Request(
                opcode, int(dice.randrange(40) == 0), tag, fp_id, fp_id + int(dice.randrange(20) > 0),
                512 * dice.randrange(280), block * dice.randrange(1, 6) if opcode else 0, block,
                block * dice.randrange(8),
            ))
            left -= 1
        elif w.open and await w.waiting():
            await w.take_good()
        if dice.randrange(60) == 0:
            await idle_cycles(w, dice.randrange(400))
    counters = await w.counters()
    assert counters["begun"] + counters["refused"] == number == len(w.answered)
    assert counters["commands"] == counters["completed"] == len(w.fetched)
    assert not w.due and not w.working
    assert counters["bus_errors"] == counters["no_sense"] == counters["overruns"] == 0
    took = [response.took for response in w.answered if response.took]
    assert [counters["min"], counters["max"], counters["count"]] == [min(took), max(took), len(took)]
    assert counters["sum"] + (counters["sum_above"] << 32) == sum(took)
    w.end()
    return w


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def random_requests(dut):
    number = 60 if SHORT else 120
    await random_work(dut, 1, Pace(drive=(5, 60)), number, depth=16, batch=4)
    await random_work(dut, 2, STALLS, number, depth=5, batch=1, poll=20)
    await random_work(dut, 3, STALLS, number, depth=2, batch=3)
    await random_work(dut, 4, Pace(written=(1, 40), read=(1, 40), drive=(1, 2000)), number, depth=64, batch=16)


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def nobody_takes_responses(dut):
    """Responses that nobody reads: nothing is lost, and commands in flight complete."""
    w = World(dut, depth=16)
    await w.start()
    await w.set_handle(1, roomy(1))
    for tag in range(16):
        # Every third is refused.
        await w.post(Request(tag=tag, fp_id=1, generation=int(tag % 3 == 2), offset=4096 * tag))
    await idle_cycles(w, 500)
    # As many as the queue of responses holds have been begun; requests go on waiting.
    assert await w.waiting() == 16
    for tag in range(16, 32):
        await w.post(Request(tag=tag, fp_id=1, offset=4096 * tag))
    assert await w.read(world.SPACE) & 0xFFFF == 0
    await w.post(Request(tag=99), expect=SLVERR)
    await idle_cycles(w, 500)
    assert len(w.fetched) == 11
    await w.take_all(32)
    assert (await w.counters())["overruns"] == 1


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def a_bad_status(dut):
    """The first that fails gives the status. What is submitted by then is done; no more is."""
    w = World(dut, depth=16, pace=Pace(drive=(5, 90)))
    w.status_of = lambda command: 0x4081 if command.lba & 0xFFF == 24 else 0x0281 if command.lba & 0xFFF == 40 else 0
    await w.start()
    await w.set_handle(1, roomy(1))
    await w.post(Request(tag=1, fp_id=1, size=32768))
    await w.take_all(1)
    assert w.answered[-1].status in (0x4081, 0x0281) and w.answered[-1].completed == 8
    assert (await w.counters())["bad_statuses"] == 2
    # Longer than all queues together: most of it is left out, and the next request is a whole one.
    await w.post(Request(tag=2, fp_id=1, size=1 << 20))
    await w.post(Request(tag=3, fp_id=1, offset=1 << 20, size=65536))
    await w.take_all(2)
    assert {one.tag: one.status for one in w.answered}[3] == 0
    assert [one.completed for one in w.answered if one.tag == 2][0] < 60
    # A failure at the end of what is cut: nothing is left to drop.
    w.status_of = lambda command: 0x0281
    for tag, blocks in ((4, 1), (5, 2), (6, 5), (7, 20)):
        await w.post(Request(tag=tag, fp_id=1, size=4096 * blocks))
    await w.take_all(4)


async def fails(w, cause, in_flight=3, idle=3000):
    """All requests that are in flight are answered with the cause, later ones with `CONTROLLER`."""
    await idle_cycles(w, idle)
    status = await w.read(world.STATUS)
    assert status >> 8 == cause and status & 4, f"status {status:#x}, expected cause {cause}"
    seen = []
    while await w.waiting():
        response, _ = await w.take()
        seen.append(response.status)
    assert not w.open, f"{len(w.open)} requests were never answered"
    assert all(one in (0, 0x8000 | cause, 0x8009) for one in seen), [hex(one) for one in seen]
    assert seen.count(0x8000 | cause) >= in_flight, [hex(one) for one in seen]
    bells = len(w.bells)
    w.due.clear()
    await w.post(Request(tag=77, fp_id=1))
    w.due.clear()
    await idle_cycles(w, 100)
    response, _ = await w.take()
    assert response.status == 0x8009 and len(w.bells) == bells
    # The owner resets the drive, disables the engine and enables it again.
    await w.write(world.CONTROL, 0)
    while await w.read(world.STATUS):
        pass
    w.working.clear()
    w.status_of, w.lose, w.strange = lambda command: 0, lambda command: False, None
    w.head = w.tail = w.cq_tail = w.cq_head = 0
    w.phase = 1
    w.cq = bytearray(16 * w.depth)
    w.in_memory = [False] * w.depth
    await w.enable()
    assert set((await w.counters()).values()) <= {0, 0xFFFF_FFFF}
    await w.post(Request(tag=78, fp_id=1, size=65536))
    await w.take_all(1)
    assert w.answered[-1].status == 0


async def busy_world(dut, **setup):
    w = World(dut, depth=16, **setup)
    await w.start()
    await w.set_handle(1, roomy(1))
    return w


async def three_requests(w):
    for tag in range(3):
        await w.post(Request(tag=tag, fp_id=1, offset=65536 * tag, size=65536))


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def a_drive_that_falls_silent(dut):
    w = await busy_world(dut, timeout=1000)
    w.lose = lambda command: command.lba & 0xFFF == 0x18
    await three_requests(w)
    await fails(w, model.TIME_OUT, in_flight=1)
    w.end()


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def errors_on_the_bus(dut):
    for number in (1, 2, 7):
        w = await busy_world(dut, pace=Pace(drive=(300, 400)))
        w.write_error_at = number
        await three_requests(w)
        await fails(w, model.BUS, in_flight=1)
        w.end()
    for number in (1, 5):
        w = await busy_world(dut, pace=Pace(drive=(300, 400)))
        w.read_error_at = number
        await three_requests(w)
        await fails(w, model.BUS, in_flight=1)
        w.end()


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def completions_of_no_sense(dut):
    """Of an identifier that is not out, of an earlier use, of another queue, with a head that is none."""
    def replaced(at, value):
        def strange(entry):
            return entry[:at] + value(entry).to_bytes(2, "little") + entry[at + 2:]
        return strange

    def cid(entry):
        return int.from_bytes(entry[12:14], "little")

    lies = [replaced(12, lambda entry: 15), replaced(12, lambda entry: cid(entry) ^ 0x8000),
            replaced(10, lambda entry: 2), replaced(8, lambda entry: 16)]
    for lie in lies:
        w = await busy_world(dut, pace=Pace(drive=(300, 400)))
        w.strange = lie
        await three_requests(w)
        await fails(w, model.CONTROLLER)
        w.end()


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def a_completion_twice(dut):
    """The same identifier again, after its command has completed: the request is not counted down twice."""
    w = await busy_world(dut, pace=Pace(drive=(40, 40)))
    first = []

    def twice(entry):
        if first:
            return first[0][:14] + entry[14:]
        first.append(entry)
        return entry

    w.strange = twice
    await three_requests(w)
    await fails(w, model.CONTROLLER)
    w.end()


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def disabled_in_flight(dut):
    """Disabled while it works, it ends what it has begun on the bus, forgets the rest, and starts afresh."""
    for moment in range(0, 120, 40 if SHORT else 9):
        w = await busy_world(dut, pace=Pace(stall=30, drive=(50, 90)))
        await three_requests(w)
        await idle_cycles(w, moment)
        await w.write(world.CONTROL, 0)
        while await w.read(world.STATUS):
            pass
        bells = len(w.bells)
        await idle_cycles(w, 50)
        assert len(w.bells) == bells and await w.waiting() == 0
        w.working.clear()
        w.due.clear()
        w.open.clear()
        w.head = w.tail = w.cq_tail = w.cq_head = 0
        w.phase = 1
        w.cq = bytearray(16 * w.depth)
        w.in_memory = [False] * w.depth
        await w.enable()
        await w.post(Request(tag=9, fp_id=1, size=65536))
        await w.take_all(1)
        w.end()


def drawn(crossed, begin, end):
    """Beats by channel, one column a cycle; a stretch in which only polls come is cut out."""
    crossed = [(cycle - begin, channel) for cycle, channel in crossed if begin <= cycle <= end]
    rung = [cycle for cycle, channel in crossed if channel == "AW"][1]
    late = sorted(cycle for cycle, channel in crossed if channel == "AR")[-1] - 2
    columns = list(range(0, rung + 8)) + list(range(late, end - begin + 1))
    for channel in ("AW", "W", "B", "AR", "R"):
        beats = {cycle for cycle, name in crossed if name == channel}
        row = ["#" if cycle in beats else "." for cycle in columns]
        yield f"{channel:>3} " + "".join(row[:rung + 8]) + " ~ " + "".join(row[rung + 8:])


@cocotb.test(timeout_time=LIMIT, timeout_unit="step")
async def cycles(dut):
    """Cycles a command, sustained and by itself. `docs/fastpath-rtl.md` has what this prints."""
    beats = 64 // (len(dut.m_axi_wdata) // 8)
    for batch in (1, 16):
        w = World(dut, depth=64, batch=batch, pace=Pace(written=(8, 8), read=(20, 20), drive=(100, 100)))
        await w.start()
        await w.set_handle(1, roomy(1))
        for tag in range(3):
            await w.post(Request(model.READ, 0, tag, 1, 0, 0, 1 << 20, 4096, 0))
        await w.take_all(3)
        # Without what the empty queue takes at once, and without the end.
        moments = [cycle for cycle, _, _ in w.fetched][128:-64]
        each = (moments[-1] - moments[0]) / (len(moments) - 1)
        dut._log.info(f"CYCLES {len(dut.m_axi_wdata)} bits, sustained, head after {batch}: {each:.2f}")
        # Data beats, a doorbell, and with each entry the head's.
        limit = beats + 1 + 1 / batch
        assert each <= limit + 0.35, f"{each} cycles a command, at most {limit}"
        w.end()
    w = World(dut, depth=64, pace=Pace(written=(2, 2), read=(2, 2), drive=(50, 50)))
    await w.start()
    await w.set_handle(1, roomy(1))
    await w.post(Request(model.READ, 0, 1, 1, 0, 0, 4096, 4096, 0))
    posted = w.cycle
    while not dut.irq.value:
        await RisingEdge(dut.clock)
    answered = w.cycle
    await w.take_all(1)
    for line in drawn(w.crossed, posted, answered):
        dut._log.info(f"CYCLES |{line}")
    rung = w.fetched[0][0] - posted
    took = w.answered[0].took
    dut._log.info(f"CYCLES {len(dut.m_axi_wdata)} bits, one command: {took} in the engine's own count, of which "
                  f"the drive has 50")
    dut._log.info(f"CYCLES {len(dut.m_axi_wdata)} bits, posted to doorbell: {rung}")
    assert took - 50 <= beats + 26, took
