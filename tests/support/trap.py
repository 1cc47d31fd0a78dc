"""Stops a Spark worker in the middle of a chunk."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Trap:
    """Stops the next Python worker of a Spark session that sends a batch, once per `set()`."""

    token: Path

    def set(self) -> None:
        self.token.unlink()

    @property
    def sprung(self) -> bool:
        return self.token.exists()

    @property
    def fault(self) -> str:
        return f"mid_chunk=SIGSTOP@1:{self.token}"

    @classmethod
    def unset(cls, folder: Path) -> "Trap":
        token = folder / "trap"
        token.touch()
        return cls(token)
