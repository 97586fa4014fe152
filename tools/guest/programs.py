"""Our program, for the guest: linked statically, so that it runs where no library is."""

import os
import subprocess
from pathlib import Path

from .problem import Problem

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = "x86_64-unknown-linux-gnu"
# Optimised a little: more, or optimising at link time, would take longer than the checks.
PROFILE = ("inherits=\"release\"", "opt-level=1", "lto=false", "codegen-units=16", "debug=false")


def build(say):
    """Builds it, and says where it is."""
    say("building doorbell for the guest")
    words = ["cargo", "build", "--locked", "--package", "doorbell", "--bin", "doorbell",
             "--target", TARGET, "--target-dir", "target/guest", "--profile", "guest"]
    for setting in PROFILE:
        words += ["--config", f"profile.guest.{setting}"]
    environment = {**os.environ, "RUSTFLAGS": "-C target-feature=+crt-static"}
    built = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True,
                           check=False)
    if built.returncode:
        raise Problem(f"building doorbell for the guest:\n{built.stderr[-3000:]}")
    return ROOT / "target/guest" / TARGET / "guest/doorbell"
