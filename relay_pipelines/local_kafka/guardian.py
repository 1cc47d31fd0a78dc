"""Runs one server and kills it when the process that started it is gone, for whatever reason.

The script `guardian.py <pid of the parent> <command ...>` imports only the standard library:

    stdin    one byte per signal to send, see SIGNALS; end of file when the parent is gone
    stdout   the server's pid and a line feed, then one byte for every signal sent
    stderr   the server's log

As the server's parent it never signals a reused pid. It exits with the server's exit code.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

SIGNALS = {
    b"T": signal.SIGTERM,
    b"K": signal.SIGKILL,
    b"S": signal.SIGSTOP,
    b"C": signal.SIGCONT,
}
_STDIN, _STDOUT = 0, 1
_PARENT_CHECK_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> int:
    """Run the command until it or the parent ends; return its exit code, or 128 + its signal."""
    ended = _child_signal()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    child = subprocess.Popen(  # noqa: S603 - the caller's own command
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=_die_with_guardian,  # noqa: PLW1509 - there is only one thread
    )
    try:
        os.write(_STDOUT, b"%d\n" % child.pid)
        while child.poll() is None and _serve(child, parent, ended):
            pass
    finally:
        # SIGKILL also ends a stopped process
        child.kill()
        child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _serve(child: subprocess.Popen[bytes], parent: int, ended: int) -> bool:
    """Wait for an order or the end of the child; False when the parent is gone."""
    ready, _, _ = select.select([_STDIN, ended], [], [], _PARENT_CHECK_SECONDS)
    if ended in ready:
        os.read(ended, 64)
    if _STDIN in ready:
        order = os.read(_STDIN, 1)
        if not order:
            return False
        child.send_signal(SIGNALS[order])
        if order == b"S" and hasattr(os, "waitid"):
            # wait until all its threads have stopped, or it has ended
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        os.write(_STDOUT, order)
    # a fork of the parent may keep the pipe open
    return os.getppid() == parent


def _child_signal() -> int:
    """Return a descriptor that becomes readable when the child ends."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _die_with_guardian() -> None:
    """Let the kernel, if it can, kill the server when the guardian is killed."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
