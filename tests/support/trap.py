"""A way to stop a Spark worker in the middle of a chunk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Trap:
    """Stops the next Python worker of a Spark that sends a batch; each time it is set, once."""

    token: Path

    def set(self) -> None:
        """Arm it."""
        self.token.unlink()

    @property
    def sprung(self) -> bool:
        """Whether a worker has been stopped by now."""
        return self.token.exists()

    @property
    def fault(self) -> str:
        """For the environment of the workers."""
        return f"mid_chunk=SIGSTOP@1:{self.token}"

    @classmethod
    def unset(cls, folder: Path) -> Trap:
        """Make one that does nothing yet."""
        token = folder / "trap"
        token.touch()
        return cls(token)
