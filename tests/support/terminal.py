"""Runs the relay command in a terminal of its own."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

from tests.support.commands import RELAY, environment


def in_a_terminal(config: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], "Terminal"]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen(
        [RELAY, "-c", config, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment() | {"TERM": "xterm"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - makes Ctrl-C reach the whole group
    )
    os.close(theirs)
    return process, Terminal(ours)


class Terminal:
    """The text drawn in a terminal, without escape sequences."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._drawn = bytearray()

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._drawn.decode(errors="ignore")).replace(
            "\r", "\n"
        )

    def until(self, pattern: str) -> None:
        while not re.search(pattern, self.text[-4000:]):
            assert self._read(), self.text[-2000:]

    def until_closed(self) -> None:
        while self._read():
            pass
        os.close(self.descriptor)

    def _read(self) -> bool:
        try:
            piece = os.read(self.descriptor, 65536)
        except OSError:  # how a pty says that it has no writers left
            return False
        self._drawn += piece
        return bool(piece)
