"""The bench of the checksum that data stream through: `rtl/tests/run` starts it."""

import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

# RFC 3720, appendix B.4: bytes, and their CRC-32C.
GOLDEN = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (bytes.fromhex("01c00000" + "00" * 12 + "14000000" + "00000400" + "00000014" + "00000018" + "28000000" + "00000000"
                   + "02000000" + "00000000"), 0xD9963A56),
]


def crc32c(data):
    """Bit by bit."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


async def stream(dut, packets, stall, dice):
    """All packets through the block; gives what came out, packet by packet, with its checksum."""
    width = len(dut.s_axis_tdata) // 8
    beats = [(packet[at:at + width], at + width >= len(packet))
             for packet in packets for at in range(0, len(packet), width)]
    out, packet, held, offered = [], b"", None, False
    while len(out) < len(packets):
        if not offered and beats and dice.randrange(100) >= stall:
            data, last = beats.pop(0)
            dut.s_axis_tdata.value = int.from_bytes(data, "little")
            dut.s_axis_tlast.value = int(last)
            offered = True
        dut.s_axis_tvalid.value = int(offered)
        ready = dice.randrange(100) >= stall
        dut.m_axis_tready.value = int(ready)
        await RisingEdge(dut.clock)
        taken = offered and bool(dut.s_axis_tready.value)
        valid = bool(dut.m_axis_tvalid.value)
        beat = (int(dut.m_axis_tdata.value), bool(dut.m_axis_tlast.value), int(dut.crc.value)) if valid else None
        assert held is None or beat == held, f"offered {held}, and then {beat}"
        held = None if ready else beat
        if valid and ready:
            packet += beat[0].to_bytes(width, "little")
            if beat[1]:
                out.append((packet, beat[2]))
                packet = b""
        if taken:
            offered = False
    return out


@cocotb.test(timeout_time=8 * 200_000, timeout_unit="step")
async def checksums(dut):
    """RFC 3720's own, and random ones, at full speed and with idle and backpressure."""
    assert all(crc32c(data) == crc for data, crc in GOLDEN)
    cocotb.start_soon(Clock(dut.clock, 8, "step").start())
    for name in ("s_axis_tdata", "s_axis_tlast", "s_axis_tvalid", "m_axis_tready"):
        getattr(dut, name).value = 0
    dut.reset.value = 1
    for _ in range(3):
        await RisingEdge(dut.clock)
    dut.reset.value = 0
    dice = random.Random(1)
    for stall in (0, 40, 80):
        packets = [data for data, _ in GOLDEN] + [dice.randbytes(16 * dice.randrange(1, 40)) for _ in range(12)]
        for packet, (data, crc) in zip(packets, await stream(dut, packets, stall, dice), strict=True):
            assert data == packet and crc == crc32c(packet), f"{crc:#x} of {packet.hex()}"
