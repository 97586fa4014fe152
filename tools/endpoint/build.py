"""Compiling gpu/: for a processor by any C++17 compiler, for a GPU by nvcc."""

import os
import shutil
import subprocess
from pathlib import Path

from .problem import Problem, Unavailable

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "gpu"
OUT = ROOT / "target/gpu"

STRICT = ["-std=c++17", "-g", "-Wall", "-Wextra", "-Werror"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# A kernel that one warp runs: registers are not what is short.
CUDA_STRICT = ["-std=c++17", "-O3", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]


def run(command):
    """Runs a compiler, and shows what it says only if it fails."""
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise Problem(f"{command[0]} failed:\n{said.stdout}{said.stderr}")


def compiler():
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return name
    raise Unavailable("there is no C++ compiler (c++, g++ or clang++, or $CXX)")


def nvcc():
    for name in (os.environ.get("NVCC"), "nvcc", "/usr/local/cuda/bin/nvcc"):
        if name and shutil.which(name):
            return name
    raise Unavailable("there is no nvcc in the PATH or in /usr/local/cuda, nor is it named by $NVCC: "
                      "the kernel needs a CUDA toolkit, all else does not")


def program(name, sources, flags):
    """A program for this processor."""
    OUT.mkdir(parents=True, exist_ok=True)
    sources = [SOURCES / source for source in sources]
    run([compiler(), *STRICT, *flags, *sources, "-lpthread", "-o", OUT / name])
    return OUT / name


def sanitized():
    """The endpoint in a thread, the host that lies to it, and what takes the protocols apart."""
    flags = ["-O1", *SANITIZERS]
    endpoint = program("endpoint-sanitized", ["serve.cc", "shared.cc", "cpu.cc"], flags)
    trials = program("trials-sanitized", ["trials.cc", "cpu.cc"], flags)
    return endpoint, program("hostile", ["hostile.cc"], flags), trials


def plain():
    """The endpoint in a thread, and what measures it, as fast as they go."""
    endpoint = program("endpoint", ["serve.cc", "shared.cc", "cpu.cc"], ["-O2"])
    return [endpoint] + [program(name, [f"{name}.cc", "cpu.cc"], ["-O2"]) for name in ("probe", "trials")]


def on_gpu():
    """The same with the kernel in the place of the thread."""
    compiled = kernel()
    programs = []
    for name, sources in (("endpoint-gpu", ["serve.cc", "shared.cc"]), ("probe-gpu", ["probe.cc"]),
                          ("trials-gpu", ["trials.cc"])):
        sources = [SOURCES / source for source in sources]
        run([nvcc(), *CUDA_STRICT, *sources, compiled, "-o", OUT / name])
        programs.append(OUT / name)
    return programs


def kernel():
    """The object with the kernel for one architecture."""
    OUT.mkdir(parents=True, exist_ok=True)
    architecture = os.environ.get("DOORBELL_CUDA_ARCH", "sm_90")
    compiled = OUT / "cuda.o"
    run([nvcc(), *CUDA_STRICT, f"-arch={architecture}", "-c", SOURCES / "cuda.cu", "-o", compiled])
    return compiled
