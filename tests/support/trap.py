"""Stops a Spark worker in the middle of a chunk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Trap:
    """Stops the next Python worker of a Spark session that sends a batch, once per `set()`."""

    token: Path

    def set(self) -> None:
        """Arm the trap."""
        self.token.unlink()

    @property
    def sprung(self) -> bool:
        """Whether a worker has been stopped."""
        return self.token.exists()

    @property
    def fault(self) -> str:
        """The value of RELAY_FAULT for the workers."""
        return f"mid_chunk=SIGSTOP@1:{self.token}"

    @classmethod
    def unset(cls, folder: Path) -> Trap:
        """Create a trap that is not armed."""
        token = folder / "trap"
        token.touch()
        return cls(token)
