"""A file system that can lose its power: an ext4 image in a file, mounted through a loop device.

EXT4_IOC_SHUTDOWN with the flag NOLOGFLUSH drops everything that was not made durable, as a pulled plug would. But a
sync that is under way meanwhile may be answered with success although nothing was kept (Linux 6.18: up to 15 ms later,
in 2 of 45 pulls under load). A real plug takes the processor with it, so nobody hears that answer; here the process
must be stopped first (`BrokerProcess.pause`), and killed afterwards.

It needs root and loop mounts; a test that wants it asks `PulledPlug.allowed` first.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

EXT4_IOC_SHUTDOWN: Final = 0x8004587D
NO_LOG_FLUSH: Final = 2


class PulledPlug:
    """An ext4 file system in a file that can lose its power."""

    def __init__(self, folder: Path, name: str = "disk", size: int = 512 << 20) -> None:
        self.image = folder / f"{name}.img"
        self.folder = folder / name
        self.size = size
        self._mounted = False

    @staticmethod
    def allowed() -> bool:
        """Whether it is worth trying; a mount may still be refused with OSError."""
        return os.geteuid() == 0 and shutil.which("mkfs.ext4") is not None and shutil.which("mount") is not None

    def make(self) -> None:
        self.folder.mkdir()
        with self.image.open("wb") as image:
            image.truncate(self.size)
        _run("mkfs.ext4", "-q", "-F", str(self.image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.folder))
        self._mounted = True

    def unmount(self) -> None:
        if self._mounted:
            _run("umount", str(self.folder))
            self._mounted = False

    def remove(self) -> None:
        """Unmount it and delete the image."""
        self.unmount()
        self.image.unlink(missing_ok=True)

    def pull(self) -> None:
        """From here on nothing reaches the disk any more. A process that writes there must be standing still."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
