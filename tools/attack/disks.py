"""A disk that is full: a small tmpfs where it can be mounted, else a limit on the length of files."""

import os
import resource
import subprocess


class SmallDisk:
    """A folder with so much room, which can be given more."""

    def __init__(self, folder, size):
        self.folder, self.size = folder, size
        os.makedirs(folder, exist_ok=True)
        options = f"size={size},mode=0700"
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "attack", folder],
                                 stderr=subprocess.DEVNULL, check=False)
        self.is_mounted = mounted.returncode == 0

    def limits(self):
        """Of the server's process, if nothing could be mounted."""
        return {} if self.is_mounted else {resource.RLIMIT_FSIZE: self.size}

    def used(self):
        paths = [os.path.join(self.folder, name) for name in os.listdir(self.folder)]
        return sum(512 * os.stat(path).st_blocks for path in paths)

    def grow(self, size, server):
        """Makes room, for a server that runs."""
        self.size = size
        if self.is_mounted:
            subprocess.run(["mount", "-o", f"remount,size={size}", self.folder], check=True)
        elif server.is_alive():
            _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, hard))

    def close(self):
        if self.is_mounted:
            subprocess.run(["umount", "-l", self.folder], check=False)
