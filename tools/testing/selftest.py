"""tools/test --self-test: what the session, the budgets and the installation do when something goes wrong."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
from pathlib import Path

from . import budget, choice, needs, output, processes, steps
from .parts import PARTS
from .session import (BACKGROUND, FAILED, FOREGROUND, PARTLY, PARTLY_STATUS, PASSED, SKIPPED,
                      SKIPPED_STATUS, Part, Session, reasons_file)

TOOLS = Path(__file__).resolve().parent.parent


class Budgets(unittest.TestCase):
    """Minutes, and the machine's speed."""

    def test_minutes_are_read(self):
        for text, expected in (("0.25", 25), ("0.5", 50), ("2", 200), ("11.25", 1125), ("1.05", 105),
                               ("0.08", 8), ("08.09", 809), ("0", 0)):
            self.assertEqual(budget.hundredths(text), expected, text)
        for text in ("", ".", "1.", ".5", "1.234", "a", "-1", "1 2", "1\n", "١"):
            with self.assertRaises(ValueError, msg=text):
                budget.hundredths(text)

    def test_minutes_are_written(self):
        for count, expected in ((25, "0.25"), (1105, "11.05"), (0, "0.00")):
            self.assertEqual(budget.minutes(count), expected)

    def test_budgets_are_scaled_by_the_speed(self):
        for count, pace, expected in ((100, 100, 100), (100, 50, 200), (325, 130, 250), (25, 200, 13)):
            self.assertEqual(budget.scaled(count, pace), expected)
        self.assertEqual(budget.speed(budget.REFERENCE_MS, budget.REFERENCE_MS), 100)
        self.assertEqual(budget.speed(2 * budget.REFERENCE_MS, 2 * budget.REFERENCE_MS), 50)
        self.assertEqual(budget.speed(None, 100), 100)
        self.assertEqual(budget.speed(1 << 30, 1 << 30), 1)

    def test_verdict_lines(self):
        line = budget.verdict_line("part", PASSED, 110, 100, 100)
        self.assertEqual(line, "part         passed     1.10 min of  1.00,  1.00 at this speed"
                               "  warning: over its budget")
        self.assertTrue(budget.verdict_line("part", PASSED, 110, 100, 80).endswith(",  1.25 at this speed"))
        self.assertIn("warning", budget.verdict_line("part", PASSED, 110, 105, 200))
        self.assertIn(" 1.00 at this speed,  1.95 of CPU", 
                      budget.verdict_line("part", PASSED, 110, 100, 100, 195))
        beside = budget.verdict_line("part", PASSED, 110, 100, 100, beside=True)
        self.assertTrue(beside.endswith("at this speed  in the background"), beside)

    def test_the_loop_is_timed(self):
        self.assertGreater(budget.loop_ms(), 0)


class Table(unittest.TestCase):
    """The parts."""

    def test_every_part_has_a_budget_and_comes_after_what_it_uses(self):
        seen = []
        for part in PARTS:
            self.assertGreater(budget.hundredths(part.budget), 0, part.name)
            self.assertTrue(callable(part.check), part.name)
            self.assertTrue(set(part.after) <= set(seen), part.name)
            self.assertNotIn(part.name, seen)
            seen.append(part.name)

    def test_what_a_part_needs_can_be_installed(self):
        for tool in {tool for part in PARTS for tool in part.tools}:
            self.assertTrue(list(needs.lines([tool])), tool)


class Choice(unittest.TestCase):
    """The parts that a call runs."""

    def names(self, *paths):
        return [part.name for part in choice.of_paths(PARTS, paths)]

    def test_budgets_add_up(self):
        def sum_of(names, column):
            found = [part for part in PARTS if part.name in names and part.column == column]
            return sum(budget.hundredths(part.budget) for part in found)

        self.assertLessEqual(sum_of(choice.SHORT, FOREGROUND), 1000)
        whole = [part.name for part in choice.whole(PARTS)]
        for column in (FOREGROUND, BACKGROUND):
            self.assertLessEqual(sum_of(whole, column), 3000, column)

    def test_a_page_concerns_the_short_parts_alone(self):
        self.assertEqual(self.names("docs/flash.md", "README.md"), list(choice.SHORT))

    def test_what_a_part_uses_runs_too(self):
        self.assertIn("release", self.names("examples/boot/src/main.rs"))
        self.assertNotIn("gpu", self.names("examples/boot/src/main.rs"))

    def test_the_longest_beginning_decides(self):
        self.assertIn("rtl", self.names("crates/rtl-command/src/main.rs"))

    def test_a_path_without_a_row_concerns_all(self):
        whole = [part.name for part in choice.whole(PARTS)]
        for path in ("Cargo.toml", "crates/wire/src/lib.rs", "crates/new/src/lib.rs", "tools/test"):
            self.assertEqual(self.names("docs/flash.md", path), whole, path)

    def test_rows_name_parts_and_files_that_there_are(self):
        known = {part.name for part in PARTS}
        for begin, parts in choice.CONCERNS.items():
            self.assertLessEqual(set(parts), known, begin)
            self.assertTrue(any(TOOLS.parent.glob(begin.rstrip("/") + "*")), begin)

    def test_a_crate_concerns_the_parts_of_the_programs_that_use_it(self):
        workspace = tomllib.loads((TOOLS.parent / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]
        folders = {name: of["path"] for name, of in workspace["dependencies"].items() if "path" in of}
        for manifest, part in (("fuzz", "fuzz"), ("examples/bare", "bare"), ("examples/boot", "guest"),
                               ("crates/python", "python"), ("crates/fnvme", "fnvme"),
                               ("crates/fio-engine", "fnvme"), ("crates/rtl-command", "rtl"),
                               ("crates/qemu", "guest"), ("crates/papers", "papers")):
            text = (TOOLS.parent / manifest / "Cargo.toml").read_text(encoding="utf-8")
            used = [folders[name] for name in tomllib.loads(text)["dependencies"] if name in folders]
            self.assertTrue(used, manifest)
            for folder in used:
                concerned = choice.concerned(f"{folder}/src/lib.rs")
                self.assertTrue(concerned is None or part in concerned,
                                f"{folder} without {part}, for {manifest}")

    def test_git_that_cannot_tell(self):
        self.assertIsNone(choice.changed("no-such-commit", TOOLS.parent))
        with tempfile.TemporaryDirectory() as folder:
            self.assertIsNone(choice.changed("HEAD", folder))


class Collected(output.Output):
    """Keeps what is printed."""

    def __init__(self):
        super().__init__(1)
        self.data = b""

    def write(self, data):
        with self.lock:
            self.data += data

    @property
    def text(self):
        return self.data.decode("utf-8", "backslashreplace")


PASS, FAIL = "print('done well')", "print('went wrong'); raise SystemExit(3)"


class Sessions(unittest.TestCase):
    """Parts that pass, fail, raise and are left out, in either column."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.out = Path(folder.name), Collected()

    def session(self, *parts, columns=True):
        """Runs parts, each with the Python program that stands for it; whether it is good."""
        programs = {part.name: program for part, program in parts}

        def command(part):
            program = programs[part.name]
            if isinstance(program, BaseException):
                raise program
            return [sys.executable, "-c", program]

        self.ran = Session([part for part, _ in parts], command, self.folder, self.out, self.folder)
        good = self.ran.run(columns)
        self.verdicts = {name: result.verdict for name, result in self.ran.results.items()}
        return good

    def test_parts_that_pass(self):
        self.assertTrue(self.session((Part("a", "1"), PASS), (Part("b", "1", column=BACKGROUND), PASS)))
        self.assertEqual(self.verdicts, {"a": PASSED, "b": PASSED})
        self.assertEqual(self.ran.count(), "2 passed, 0 failed")
        self.assertEqual(self.out.text.count("done well"), 2)

    def test_a_part_that_fails_in_either_column(self):
        for column in ("foreground", BACKGROUND):
            for columns in (True, False):
                good = self.session((Part("a", "1"), PASS), (Part("b", "1", column=column), FAIL),
                                    (Part("c", "1"), PASS), columns=columns)
                self.assertFalse(good)
                self.assertEqual(self.verdicts, {"a": PASSED, "b": FAILED, "c": PASSED})
                self.assertEqual(self.ran.count(), "2 passed, 1 failed")
                self.assertIn("exit status 3", "\n".join(self.ran.summary(100)))

    def test_a_part_that_a_signal_ends_has_failed(self):
        self.assertFalse(self.session((Part("a", "1"), "import os; os.kill(os.getpid(), 9)")))
        self.assertEqual(self.ran.results["a"].reasons, ["killed by signal 9"])

    def test_a_part_that_cannot_be_run_has_failed_in_either_column(self):
        for column in ("foreground", BACKGROUND):
            for error in (OSError("no such program"), KeyError("anything")):
                good = self.session((Part("a", "1", column=column), error),
                                    (Part("b", "1", column=column), PASS))
                self.assertFalse(good)
                self.assertEqual(self.verdicts, {"a": FAILED, "b": PASSED})

    def test_a_background_that_is_ended_inside_a_part_fails_that_part(self):
        good = self.session((Part("a", "1", column=BACKGROUND), SystemExit()), (Part("b", "1"), PASS))
        self.assertFalse(good)
        self.assertEqual(self.verdicts, {"a": FAILED, "b": PASSED})
        self.assertEqual(self.ran.results["a"].reasons, ["it did not end"])

    def test_a_background_that_ends_early_fails_what_it_has_not_run(self):
        self.out.say = lambda text: sys.exit() if text.startswith("-- a") else None
        parts = [(Part(name, "1", column=BACKGROUND), PASS) for name in "ab"]
        self.assertFalse(self.session(*parts, (Part("c", "1", after=("b",)), PASS)))
        self.assertEqual(self.verdicts, {"a": PASSED, "b": FAILED, "c": FAILED})

    def test_a_part_fails_with_what_it_uses(self):
        later = Part("c", "1", after=("b", "not in this session"))
        self.assertFalse(self.session((Part("b", "1", column=BACKGROUND), FAIL), (later, PASS)))
        self.assertEqual(self.ran.results["c"].reasons, ["needs b, which failed"])
        used = Part("b", "1", column=BACKGROUND)
        self.assertTrue(self.session((used, "import time; time.sleep(0.5)"), (later, PASS)))
        self.assertGreater(self.ran.results["c"].took + 1, budget.since(time.monotonic() - 0.4))

    def test_what_is_left_out_is_neither_passed_nor_failed(self):
        good = self.session((Part("a", "1"), f"raise SystemExit({SKIPPED_STATUS})"),
                            (Part("b", "1", column=BACKGROUND), f"raise SystemExit({PARTLY_STATUS})"))
        self.assertTrue(good)
        self.assertEqual(self.verdicts, {"a": SKIPPED, "b": PARTLY})
        self.assertEqual(self.ran.count(), "0 passed, 0 failed, 1 partly, 1 skipped")

    def test_a_background_part_prints_all_it_said_where_it_failed(self):
        said = "import os\nfor n in range(100): os.write(1, b'line %d \\xff\\n' % n)\n"
        self.session((Part("a", "1", column=BACKGROUND), said))
        self.assertNotIn("line 0 ", self.out.text)
        self.assertIn("line 99 ", self.out.text)
        self.session((Part("a", "1", column=BACKGROUND), said + "raise SystemExit(1)"))
        self.assertIn("line 0 ", self.out.text)

    def test_a_foreground_part_prints_all_it_said(self):
        self.session((Part("a", "1"),
                      "import os\nfor n in range(9000): os.write(1 + n % 2, b'%d \\xff\\n' % n)\n"
                                      "os.write(1, b'without an end')"))
        lines = [line for line in self.out.data.split(b"\n") if line.endswith(b" \xff")]
        self.assertEqual(lines, [b"%d \xff" % number for number in range(9000)])
        self.assertIn("without an end\n-- a: passed", self.out.text)

    def test_logs_that_cannot_be_made_fail_the_part(self):
        (self.folder / "a.log").mkdir()
        self.assertFalse(self.session((Part("a", "1"), PASS)))


class Steps(unittest.TestCase):
    """What a part does in its own process."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        steps.left_out.clear()
        self.addCleanup(steps.left_out.clear)
        self.addCleanup(os.environ.update, {"CI": os.environ["CI"]} if "CI" in os.environ else {})
        os.environ.pop("CI", None)
        # What the parts under test print is not of this one.
        sys.stdout.flush()
        kept, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
        for number, saved in ((1, kept),):
            os.dup2(null, number)
            self.addCleanup(os.close, saved)
            self.addCleanup(os.dup2, saved, number)
        os.close(null)

    def alone(self, check):
        """The exit status of a part, and the reasons that it gave."""
        steps.left_out.clear()
        reasons_file(self.folder, "part").unlink(missing_ok=True)
        kept = sys.stderr
        with open(os.devnull, "w", encoding="utf-8") as sys.stderr:
            status = steps.alone(Part("part", "1", check), self.folder)
        sys.stderr = kept
        file = reasons_file(self.folder, "part")
        return status, file.read_text(encoding="utf-8") if file.exists() else ""

    def test_a_command_that_fails_ends_the_part(self):
        reached = []

        def check():
            steps.run("sh -c", "exit 5")
            reached.append(True)

        self.assertEqual(self.alone(check), (1, "sh -c 'exit 5': exit status 5\n"))
        self.assertEqual(reached, [])
        # Only what is asked for it may say that it could not be done.
        self.assertEqual(self.alone(lambda: steps.run("sh -c", "exit 77"))[0], 1)
        self.assertEqual(self.alone(lambda: steps.output_of("false"))[0], 1)
        self.assertEqual(self.alone(lambda: steps.run("/no/such/program"))[0], 1)
        self.assertEqual(self.alone(lambda: steps.run("sh -c", "kill -9 $$")),
                         (1, "sh -c 'kill -9 $$': killed by"
                                                                                   " signal 9\n"))

    def test_an_exception_fails_the_part(self):
        self.assertEqual(self.alone(lambda: {}["key"]), (1, "KeyError: 'key'\n"))

    def test_what_passes(self):
        self.assertEqual(self.alone(lambda: steps.run("true")), (0, ""))
        self.assertEqual(self.alone(lambda: self.assertEqual(steps.output_of("echo a  b"), "a b\n")), (0, ""))
        self.assertEqual(self.alone(lambda: steps.run("sh -c", "test $SOME = thing", SOME="thing")), (0, ""))

    def test_what_is_left_out(self):
        self.assertEqual(self.alone(lambda: steps.try_to("sh -c", "exit 77"))[0], PARTLY_STATUS)
        self.assertEqual(self.alone(lambda: steps.try_to("sh -c", "exit 1"))[0], 1)
        self.assertEqual(self.alone(lambda: steps.has("no-such-tool"))[0], PARTLY_STATUS)
        status, said = self.alone(lambda: steps.need("no-such-tool"))
        self.assertEqual(status, SKIPPED_STATUS)
        self.assertEqual(said, "no-such-tool is not installed (by hand)\n")

    def test_a_lacking_tool_is_a_failure_of_continuous_integration(self):
        os.environ["CI"] = "true"
        self.addCleanup(os.environ.pop, "CI")
        self.assertEqual(self.alone(lambda: steps.has("no-such-tool"))[0], 1)
        self.assertEqual(self.alone(lambda: steps.need("no-such-tool"))[0], 1)


class Machine:
    """A machine that is not there: what is installed, and which commands fail."""

    def __init__(self, has, fails=lambda words: False):
        self.has, self.fails, self.ran, self.said = set(has), fails, [], []

    def run(self, *words):
        self.ran.append(" ".join(words))
        if self.fails(self.ran[-1]):
            return False
        self.has |= {need for need in needs.PACKAGES if "install" in words and needs.PACKAGES[need] in words}
        if "miri" in words:
            self.has.add(needs.MIRI)
        return True

    def install(self, *wanted, root=True):
        installer = needs.Installer(self.said.append, "log", root, self.run, lambda need: need in self.has,
                                    lambda seconds: None)
        return installer.install(wanted)


class Installation(unittest.TestCase):
    """On machines where one thing or another can't be had."""

    ALL = ("fio", "yosys", needs.MIRI)

    def test_what_is_there_is_left_alone(self):
        machine = Machine(self.ALL)
        self.assertEqual(machine.install(*self.ALL), [])
        self.assertEqual(machine.ran, [])

    def test_all_is_installed_at_once(self):
        machine = Machine(["apt-get", "rustup"])
        self.assertEqual(machine.install(*self.ALL), [])
        self.assertEqual(len(machine.ran), 3)
        self.assertTrue(machine.ran[0].endswith(" update"))
        self.assertIn("DPkg::Lock::Timeout=600", machine.ran[0])
        self.assertTrue(machine.ran[1].endswith("install --yes --no-install-recommends libc6-dev fio yosys"))

    def test_a_mirror_that_is_away_for_a_while(self):
        count = []
        machine = Machine(["apt-get", "rustup"],
                          lambda line: count.append(line) or len(count) in (1, 2, 4, 5))
        self.assertEqual(machine.install(*self.ALL), [])
        verbs = ["update" if line.endswith("update") else line.split()[0] for line in machine.ran]
        self.assertEqual(verbs, ["update"] * 3 + ["apt-get"] * 3 + ["rustup"])

    def test_lists_that_cannot_be_updated_may_do(self):
        machine = Machine(["apt-get", "rustup"], lambda line: line.endswith("update"))
        self.assertEqual(machine.install(*self.ALL), [])

    def test_one_package_that_cannot_be_had_takes_no_other_with_it(self):
        machine = Machine(["apt-get", "rustup"], lambda line: " yosys" in line)
        self.assertEqual(machine.install(*self.ALL), ["yosys"])
        self.assertIn("    as root: apt-get install --yes --no-install-recommends yosys", machine.said)

    def test_nothing_can_be_had(self):
        for has in (["apt-get", "rustup"], [], ["apt-get"]):
            machine = Machine(has, lambda line: True)
            self.assertEqual(machine.install(*self.ALL), list(self.ALL))

    def test_a_nightly_without_miri_is_replaced(self):
        machine = Machine(["rustup"], lambda line: "component add" in line)
        self.assertEqual(machine.install(needs.MIRI), [])
        self.assertIn("toolchain install nightly", machine.ran[-1])

    def test_only_root_asks_apt(self):
        machine = Machine(["apt-get", "rustup"])
        self.assertEqual(machine.install(*self.ALL, root=False), ["fio", "yosys"])
        self.assertFalse([line for line in machine.ran if "apt-get" in line])

    def test_huge_pages(self):
        said = []
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "nr_hugepages"
            for before, root, after in (("0\n", True, "8"), ("3\n", True, "3\n"), ("0\n", False, "0\n"),
                                        ("?", True, "?")):
                file.write_text(before, encoding="ascii")
                needs.huge_pages(said.append, file, root)
                self.assertEqual(file.read_text(encoding="ascii"), after)
            needs.huge_pages(said.append, Path(folder) / "none", True)
        self.assertEqual(len(said), 3)

    def test_an_error_in_here_is_said(self):
        said = []
        with tempfile.TemporaryDirectory() as folder:
            needs.prepare(said.append, Path(folder), ["no-such-tool"], True)
        self.assertEqual(len(said), 1, said)
        self.assertIn("IsADirectoryError", said[0])

    def test_a_command_that_cannot_be_run_or_takes_too_long(self):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            self.assertIsNone(processes.logged(["/no/such/program"], log, "/", 5, None))
            self.assertEqual(processes.logged(["sleep", "60"], log, "/", 0.1, None), 124)
            self.assertFalse(needs.quiet("/no/such/program"))


# A session whose parts do not end, each with a child that does not end; it prints their process identifiers.
ENDLESS = """
import os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
from testing import output, processes
from testing.session import BACKGROUND, Part, Session
program = ("import subprocess, sys; sys.path.insert(0, sys.argv[1]); from testing import processes;"
           "processes.end_with_parent(); child = subprocess.Popen(['sleep', '300']);"
           "print(child.pid, flush=True); child.wait()")
processes.raise_on_signals()
parts = [Part("a", "1"), Part("b", "1", column=BACKGROUND), Part("c", "1", column=BACKGROUND)]
session = Session(parts, lambda part: [sys.executable, "-B", "-c", program, sys.argv[1]], sys.argv[2],
                  output.Output(1), sys.argv[2])
try:
    session.run(True)
except processes.Stopped as reason:
    sys.exit(reason.status)
"""


class Stopping(unittest.TestCase):
    """A session that is told to end, or is killed, leaves no process behind."""

    def test_children_end_with_the_session(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
            with self.subTest(number), tempfile.TemporaryDirectory() as folder:
                session = subprocess.Popen([sys.executable, "-c", ENDLESS, str(TOOLS), folder], text=True,
                                           stdin=subprocess.DEVNULL,
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                           preexec_fn=lambda: signal.signal(signal.SIGINT,
                                                                            signal.default_int_handler))
                self.addCleanup(session.wait)
                self.addCleanup(session.kill)
                logs = [Path(folder) / f"{name}.log" for name in "ab"]
                self.wait(lambda: all(log.exists() and log.read_text().endswith("\n") for log in logs))
                children = [int(log.read_text()) for log in logs]
                self.addCleanup(self.kill, children)
                session.send_signal(number)
                self.assertEqual(session.wait(30), status)
                self.wait(lambda: not set(children) & set(processes.parents()))
                begun = (Path(folder) / "c.log").exists()
                self.assertFalse(begun, "a part was begun when the session had ended")

    def kill(self, children):
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def wait(self, holds):
        """Waits until something holds, for as long as a machine may be busy."""
        for _ in range(600):
            if holds():
                return
            time.sleep(0.05)
        self.fail("it did not come to hold")


class Printing(unittest.TestCase):
    """Outputs of every kind."""

    def test_a_pipe_that_does_not_block(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        text, pid = b"x" * 300_000 + b"\n", os.fork()
        if pid == 0:
            os.close(reader)
            output.Output(writer).write(text)
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:
            self.assertEqual(file.read(), text)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_a_reader_that_is_gone(self):
        reader, writer = os.pipe()
        os.close(reader)
        out = output.Output(writer)
        out.say("no more")
        out.say("no more")
        os.close(writer)

    def test_text_that_is_no_text(self):
        out = Collected()
        out.say("\udcff ä")
        self.assertEqual(out.data, "\\udcff ä\n".encode())

    def test_last_lines(self):
        self.assertEqual(output.last_lines(b"a\nb\nc", 2), b"b\nc\n")
        self.assertEqual(output.last_lines(b"", 2), b"")


def main():
    """Runs all of it; the exit status."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    return 0 if unittest.TextTestRunner(verbosity=1).run(suite).wasSuccessful() else 1
