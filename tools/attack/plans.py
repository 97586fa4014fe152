"""Built-in plans, and the keys with which each has contents that outlive its server.

Those of real drives are not among them: their media and software are those of tlc and gen4.
"""

FLASH = ["tlc", "small-flash", "flash-closer"]
# Flash behind a bridge has no state.
BRIDGED = ["flash-bridge"]
IMAGES = ["live", "gen4", "dc-express", "dc-express-linux", "descriptor-blocks", "fastpath", "vortex",
          "vortex-disks"]
ALL = FLASH + BRIDGED + IMAGES

# An image of this size is enough for any attack, whatever the plan's own capacity is.
CAPACITY = "64 MiB"


def keeping(plan, path):
    """Keys for a drive that is kept in a file."""
    if plan in FLASH:
        return ["medium.keep=everything", f"medium.flash.state={path}"]
    return ["medium.keep=everything", "medium.pace=immediate", f"medium.capacity={CAPACITY}",
            f"medium.file={path}"]
