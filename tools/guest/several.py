"""Two drives of one server in one guest, and two tenants of one drive: Linux tells them apart, and so does a fault."""

import time

from .faults import Drive

SLOT = 0x10
FAULT = '{ name = "bad", what = "status", status = "Write Fault", command = "write", dnr = true }'
TENANTS = ("one=0+65536", "two=65536+65536")


def _guest(bench, name, tenants):
    """One guest with two of them; `tenants`: of one drive."""
    begun, folder = time.monotonic(), bench.folder(f"drives/{name}")
    image = folder / "ssd.img"
    keys = ["medium.capacity=64MiB", f"medium.file={image}"]
    drive = Drive(bench, folder, "ssd", ("live", keys, SLOT), 2, TENANTS if tenants else ())

    def hear(line):
        bench.say(line)
        if line == "# inject":
            drive.request("faults.inject", fault=FAULT)
        elif line == "# clear":
            drive.request("faults.clear")

    try:
        facts = f"FIRST=0000:00:{SLOT:02x}.0\nSECOND=0000:00:{SLOT + 1:02x}.0\nTENANTS={int(tenants)}\n"
        guest = bench.guest(f"drives/{name}", "drives", {"facts": facts.encode()}, devices=drive.devices())
        try:
            guest.follow(300, hear)
        finally:
            guest.kill()
    finally:
        drive.end()
    bench.count(f"drives/{name}", guest, begun)
    # Of two drives each has a file, of two tenants each a half.
    places = [(image, 0), (image, 32 << 20)] if tenants else [(image, 0), (image.with_name("ssd.img.2"), 0)]
    for word, (file, begin) in zip((b"first\n", b"second\n"), places, strict=True):
        found = b""
        if file.is_file():
            with open(file, "rb") as contents:
                contents.seek(begin)
                found = contents.read(1 << 20)
        expected = (word * (1 << 20))[:1 << 20]
        bench.check(f"{file.name} has what the guest wrote to the {word.decode().strip()}", found == expected, found[:20])


def drives(bench):
    """Both guests; in the short form two drives."""
    _guest(bench, "drives", False)
    if not bench.short:
        _guest(bench, "tenants", True)
