"""Who a drive is, and what it counts: over starts, kills, power cuts, copies, forks and wear, by an NVMe host."""

import os
import shutil
import signal
import struct

from . import plans
from .cases import case
from .control import Rpc
from .nvme import IDENTIFY
from .server import Server

GET_LOG_PAGE, SMART = 2, 2
SHST = 0xc
# Of plan tlc, whose blocks are rated for 1,500 cycles and were written once at most.
USED = 200


def seen(client):
    """Serial number, EUI-64 and NGUID; and counts of the log page of health."""
    def page(opcode, namespace, dword):
        client.command(opcode, namespace=namespace, prp1=client.memory.base + client.page,
                       dwords=(dword, 0, 0, 0, 0, 0))
        return bytes(client.memory.map[client.page:client.page + 4096])
    controller, namespace = page(IDENTIFY, 0, 1), page(IDENTIFY, 1, 0)
    health = page(GET_LOG_PAGE, 0xffff_ffff, SMART | 127 << 16)
    wide = lambda at: int.from_bytes(health[at:at + 16], "little")
    counts = {"used": health[5], "units_written": wide(48), "writes": wide(80), "cycles": wide(112),
              "unsafe": wide(144)}
    return (controller[4:24], namespace[120:128], namespace[104:120]), counts


def shut_down(client):
    """CC.SHN of 01b, until CSTS.SHST is 10b."""
    client.function.write32(0x14, client.function.read32(0x14) | 1 << 14)
    while client.function.read32(0x1c) & SHST != 8:
        client.function.check_alive()


def one(plan):
    @case(f"identity/{plan}", f"names and counts of {plan} over starts, kills, cuts, copies and forks")
    def campaign(context):
        number = 0

        def serve(path):
            nonlocal number
            number += 1
            name = f"server{number}"
            control = os.path.join(context.folder, f"{name}.control")
            server = Server(context.program, context.folder, plan, "vfio-user", plans.keeping(plan, path),
                            name=name, extra=["--control", control])
            return server, control

        def check(what, found, expected):
            context.row.checked += 1
            if found != expected:
                context.fail("wrong", f"{what}: found {found}, expected {expected}")

        path = context.path("contents")
        server, control = serve(path)
        client = server.client()
        names, counts = seen(client)
        check("a new drive", (counts["cycles"], counts["unsafe"], counts["writes"]), (1, 0, 0))
        check("NGUID is not zero", any(names[2]), True)
        for lba in range(8):
            client.submit_write(lba, bytes(client.block_bytes))
            client.poll(5)
        _, written = seen(client)
        check("writes", written["writes"], 8)
        client.close()
        client = server.client()
        check("another client", seen(client), (names, written))
        client.function.reset()
        client.bring_up()
        check("a reset of the function", seen(client), (names, written))
        client.close()
        # What a kill may lose is of the last ten seconds.
        server.kill()
        server, control = serve(path)
        client = server.client()
        found, counts = seen(client)
        check("names after a kill", found, names)
        check("counts after a kill", (counts["cycles"], counts["unsafe"]), (2, 1))
        client.submit_write(9, bytes(client.block_bytes))
        client.poll(5)
        shut_down(client)
        client.close()
        server.kill()
        server, control = serve(path)
        client = server.client()
        found, counts = seen(client)
        check("names after a shutdown", found, names)
        check("counts after a shutdown and a kill", (counts["cycles"], counts["unsafe"], counts["writes"] > 0),
              (3, 1, True))
        with_control = Rpc(control)
        with_control.call("power.cut")
        client.close()
        with_control.call("power.restore")
        client = server.client()
        found, counts = seen(client)
        check("names after a power cut", found, names)
        check("counts after a power cut", (counts["cycles"], counts["unsafe"]), (4, 2))
        fork = context.path("fork")
        answer = with_control.call("fork", file=fork)
        with_control.close()
        client.close()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()
        copy = context.path("copy")
        shutil.copy(path, copy)
        all_names = [names]
        for other, expected in ((fork, answer.get("serial")), (copy, None)):
            server, control = serve(other)
            client = server.client()
            found, counts = seen(client)
            check("power cycles of a copy", counts["cycles"], 1)
            if expected is not None:
                check("the serial number of a fork", found[0].decode().strip(), expected)
            all_names.append(found)
            client.close()
            server.kill()
        for which in range(3):
            check("names of copies differ", len({found[which] for found in all_names}), 3)
        server, control = serve(path)
        client = server.client()
        found, counts = seen(client)
        check("names in the end", found, names)
        check("an end in order is no unsafe shutdown", (counts["cycles"], counts["unsafe"]), (5, 2))
        if plan == "tlc":
            with_control = Rpc(control)
            with_control.call("wear", years=3, cycles=3000)
            with_control.close()
            check("Percentage Used after wear", seen(client)[1]["used"], USED)
        client.close()
        server.kill()
        context.row.tried += number


for _plan in ("small-flash", "tlc", "live"):
    one(_plan)
