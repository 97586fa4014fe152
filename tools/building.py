"""The debug build, for the tools that use it."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Set where a build of the whole workspace is there already. For one package Cargo chooses other features of what lies
# below it, and would compile that once more.
BUILT = "DOORBELL_BUILT"


def folder():
    """Where the debug build is."""
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"


def build(*words):
    """Builds what Cargo's `words` name, unless all of it is there."""
    if not os.environ.get(BUILT):
        subprocess.run(("cargo", "build", "--quiet", "--locked", *words), cwd=ROOT, check=True)
