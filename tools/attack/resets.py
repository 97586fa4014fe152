"""Resets of the controller under I/O: what is submitted afterwards is completed, and reads what was written.

The host rings doorbells while the controller is disabled, and with the values that they had before.
"""

from . import drive, plans
from .cases import case
from .drive import Writer
from .errors import Hung
from .ledger import Ledger
from .nvme import DOORBELLS
from .server import Server
from .vfio_user import CONFIG

NUMBER = 16


def same_number(context, nvme, count, disable):
    """`count` commands, a reset with `count` others under way, and `count` again over the new queue."""
    for _ in range(count):
        nvme.submit_read(context.rng.randrange(0, 64), 1)
    left = count
    while left:
        left -= len(nvme.poll(drive.PATIENCE)) or fail_hung(f"{left} of {count} reads before a reset")
    disable()
    if context.rng.random() < 0.5:
        # A thread of the host that has not heard of the reset yet.
        nvme.function.ring(DOORBELLS + 2 * nvme.stride, count)
        nvme.function.ring(DOORBELLS + 3 * nvme.stride, count)
    nvme.enable()
    nvme.create_queues()
    # The doorbell takes the value that it had before.
    for _ in range(count):
        nvme.submit_read(context.rng.randrange(0, 64), 1)
    left = count
    while left:
        left -= len(nvme.poll(drive.PATIENCE / 4)) or fail_hung(
            f"{left} of {count} reads, submitted after a reset by the value of the doorbell before it,")


def fail_hung(what):
    raise Hung(f"{what} got no completion")


def under_io(context, nvme, ledger, disable):
    """A reset with writes under way; then everything that was answered is checked."""
    writer = Writer(nvme, ledger, context.rng, 256)
    writer.run(context.rng.randrange(1, 60))
    writer.fill()
    disable()
    nvme.enable()
    nvme.create_queues()
    context.check(nvme, ledger, newest=True, when="after a reset: ")


def resets(front_end, mapped):
    way = "" if front_end == "shm" else "-mapped" if mapped else "-messages"

    @case(f"resets/{front_end}{way}", f"resets under I/O, {front_end}{way.replace('-', ', doorbells ')}")
    def campaign(context):
        sets = plans.keeping("live", context.path("contents"))
        server = Server(context.program, context.folder, "live", front_end, sets)
        nvme = server.client(mapped=mapped)
        if mapped and front_end != "shm" and nvme.function.words is None:
            context.fail("wrong", "the doorbell page cannot be mapped")
        ledger = Ledger(nvme.block_bytes, context.seed)

        def by_register():
            nvme.disable()

        def by_message():
            nvme.function.reset()
            nvme.function.write(CONFIG, 4, b"\6\0")
            nvme.disable()

        ways = [by_register] if front_end == "shm" else [by_register, by_message]
        for number in range(context.count(12, 500)):
            disable = ways[number % len(ways)]
            context.row.tried += 2
            try:
                same_number(context, nvme, context.rng.choice([1, 2, 7, NUMBER]), disable)
                under_io(context, nvme, ledger, disable)
            except Hung as error:
                context.fail("hung", f"reset {number}: {error}")
                break
        server.expect_alive()
        server.kill()


for _front_end in ("vfio-user", "shared"):
    resets(_front_end, True)
    resets(_front_end, False)
resets("shm", True)


@case("resets/admin", "Keep Alive Timer and Host Behavior Support; an identify after each reset")
def admin(context):
    server = Server(context.program, context.folder, "live", "vfio-user")
    nvme = server.client()
    for feature, name in ((0x0f, "Keep Alive Timer"), (0x16, "Host Behavior Support")):
        context.row.tried += 1
        context.guarded(lambda: nvme.command(
            10, prp1=nvme.memory.base + nvme.page, dwords=(feature, 0, 0, 0, 0, 0)))
        if context.row.failures and "0ah" in context.row.failures[-1]:
            context.row.failures[-1] += f" (Get Features, {name})"
    for _ in range(context.count(10, 200)):
        context.row.tried += 1
        nvme.bring_up()
        nvme.identify()
    server.kill()
