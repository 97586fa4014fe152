"""A disk that the machine's firmware starts from: a boot sector that reads a later block and prints it.

The firmware (SeaBIOS) has an NVMe driver of its own, and knows nothing of Linux's.
"""

import os
import select
import subprocess
import time
import unittest

SECTOR = 512
# What is read lies here on the disk, in blocks, and there in memory.
PLACE = 9
MEMORY = 0x7E00
TEXT = b"started from the SSD\r\n"
# Reading (INT 13h, AH = 42h) is asked for by a packet: its length, blocks, where to, from which block.
PACKET_AT = 0x40


def disk_image():
    """The first blocks of the disk."""
    packet = bytes([16, 0, 1, 0]) + MEMORY.to_bytes(2, "little") + bytes(2)
    packet += PLACE.to_bytes(8, "little")
    code = bytes([
        0x31, 0xC0, 0x8E, 0xD8, 0x8E, 0xC0, 0x8E, 0xD0,  # ax, ds, es and ss are 0
        0xBC, 0x00, 0x7C,  # the stack lies below this code
        0xBE, PACKET_AT, 0x7C, 0xB4, 0x42, 0xCD, 0x13,  # read; the drive's number is in dl
        0x72, 0x0F,  # failed: halt
        0xBA, 0xF8, 0x03,  # the first serial line
        0xBE, MEMORY & 0xFF, MEMORY >> 8, 0xFC,
        0xAC, 0x84, 0xC0, 0x74, 0x03, 0xEE, 0xEB, 0xF8,  # print up to the zero
        0xFA, 0xF4])  # halt
    sector = code.ljust(PACKET_AT, b"\0") + packet
    sector = sector.ljust(SECTOR - 2, b"\0") + b"\x55\xaa"
    return sector.ljust(PLACE * SECTOR, b"\0") + TEXT.ljust(SECTOR, b"\0")


def start(tree, devices, seconds):
    """What a machine prints that starts from these devices, until it has said what it is to say."""
    qemu = subprocess.Popen(  # pylint: disable=consider-using-with
        tree.command(
            "usr/bin/qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
            "-L", tree.path / "usr/share/qemu", "-L", tree.path / "usr/share/seabios",
            "-machine", "q35,accel=tcg,memory-backend=ram",
            "-object", "memory-backend-memfd,id=ram,size=64M,share=on", "-m", "64M",
            "-serial", "stdio", *devices),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, deadline = b"", time.monotonic() + seconds
    try:
        # It halts when it has said it, and does not end.
        while TEXT not in said:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([qemu.stdout], [], [], left)[0]:
                break
            more = os.read(qemu.stdout.fileno(), 4096)
            if not more:
                break
            said += more
    finally:
        qemu.kill()
        qemu.wait()
        qemu.stdout.close()
    return said


class Tests(unittest.TestCase):
    """The boot sector."""

    def test_the_sector_is_one_and_is_marked(self):
        image = disk_image()
        self.assertEqual(len(image), (PLACE + 1) * SECTOR)
        self.assertEqual(image[SECTOR - 2:SECTOR], b"\x55\xaa")
        self.assertEqual(image[PACKET_AT], 16)

    def test_a_failed_read_jumps_to_the_halt(self):
        image = disk_image()
        jump = image.index(b"\xcd\x13\x72") + 2
        target = jump + 2 + image[jump + 1]
        self.assertEqual(image[target:target + 2], b"\xfa\xf4")
