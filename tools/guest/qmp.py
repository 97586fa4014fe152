"""QEMU's monitor: devices are plugged and unplugged while a guest runs."""

import json
import socket
import time

from .problem import Problem

LISTENING_S = 30


class Monitor:
    """A connection to QEMU's monitor (QMP)."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        deadline = time.monotonic() + LISTENING_S
        while True:
            try:
                self.socket.connect(str(path))
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise Problem(f"{path}: QEMU's monitor does not listen: {error}") from error
                time.sleep(0.05)
        self.replies = self.socket.makefile("rb")
        self.replies.readline()
        self.execute("qmp_capabilities")

    @staticmethod
    def arguments(path):
        """QEMU's arguments for it."""
        return ["-qmp", f"unix:{path},server=on,wait=off"]

    def execute(self, command, **arguments):
        """The result of a command; events before it are dropped."""
        asked = {"execute": command, "arguments": arguments}
        self.socket.sendall(json.dumps(asked).encode() + b"\n")
        while line := self.replies.readline():
            reply = json.loads(line)
            if "return" in reply:
                return reply["return"]
            if "error" in reply:
                raise Problem(f"QEMU: {command}: {reply['error'].get('desc')}")
        raise Problem(f"QEMU: {command}: the monitor was closed")

    def close(self):
        """Ends the connection."""
        self.replies.close()
        self.socket.close()
