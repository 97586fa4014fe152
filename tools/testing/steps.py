"""What a check is made of: commands that must succeed, and what is left out where a tool is missing."""

import os
import shlex
import shutil
import subprocess
import sys
import traceback

from . import needs
from .session import PARTLY_STATUS, SKIPPED_STATUS, reasons_file


class Failed(Exception):
    """The part has failed; the text says why."""


class Skipped(Exception):
    """Nothing of the part can be done here; the text says why."""


# Why something was left out, as far as the part has come.
left_out = []


def status_of(words, environment):
    """Runs a command; its exit status, negative where a signal ended it."""
    sys.stdout.flush()
    try:
        return subprocess.run(words, env=os.environ | environment, check=False).returncode
    except OSError as error:
        raise Failed(f"{shlex.join(words)}: {error.strerror}") from error


def run(line, *words, **environment):
    """Runs a command, which must succeed: `line` is split as a shell does, `words` are taken as they are."""
    words = [*shlex.split(line), *words]
    if status := status_of(words, environment):
        raise Failed(f"{shlex.join(words)}: {ended(status)}")


def try_to(line, *words, **environment):
    """As `run`, of a command whose status 77 says that it could not be done; whether it was done."""
    words = [*shlex.split(line), *words]
    status = status_of(words, environment)
    if status == SKIPPED_STATUS:
        leave_out(f"{shlex.join(words)}: its output says why")
    elif status:
        raise Failed(f"{shlex.join(words)}: {ended(status)}")
    return status == 0


def output_of(line, *words, **environment):
    """Standard output of a command that must succeed."""
    words = [*shlex.split(line), *words]
    sys.stdout.flush()
    try:
        ran = subprocess.run(words, env=os.environ | environment, stdout=subprocess.PIPE, check=False)
    except OSError as error:
        raise Failed(f"{shlex.join(words)}: {error.strerror}") from error
    text = ran.stdout.decode("utf-8", "replace")
    if ran.returncode:
        print(text, end="")
        raise Failed(f"{shlex.join(words)}: {ended(ran.returncode)}")
    return text


def ended(status):
    """An exit status in words."""
    return f"exit status {status}" if status > 0 else f"killed by signal {-status}"


def leave_out(reason):
    """Notes that something was left out."""
    print(f"left out: {reason}", flush=True)
    left_out.append(reason)


def has(tool):
    """Whether a tool is installed. If not, that is noted; with CI=true, where it can be, it is a failure."""
    if shutil.which(tool):
        return True
    reason = f"{tool} is not installed ({next(needs.lines([tool]), 'by hand')})"
    if os.environ.get("CI") == "true":
        raise Failed(f"{reason}; with CI=true this is a failure")
    leave_out(reason)
    return False


def need(tool):
    """As `has`, where without the tool nothing can be done."""
    if not has(tool):
        raise Skipped(left_out.pop())


def alone(part, folder):
    """Runs a part in this process; its exit status. What was left out goes to a file, a line each."""
    status = 0
    try:
        part.check()
        status = PARTLY_STATUS if left_out else 0
    except Skipped as reason:
        left_out.append(str(reason))
        status = SKIPPED_STATUS
    except Failed as reason:
        print(f"FAILED: {reason}")
        left_out.insert(0, str(reason))
        status = 1
    except Exception as error:
        traceback.print_exc()
        left_out.insert(0, f"{type(error).__name__}: {error}")
        status = 1
    sys.stdout.flush()
    if left_out:
        text = "".join(" ".join(reason.split()) + "\n" for reason in left_out)
        reasons_file(folder, part.name).write_text(text, encoding="utf-8", errors="replace")
    return status
