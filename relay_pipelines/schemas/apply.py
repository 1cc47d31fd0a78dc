"""Registers schemas at the destination under their own ids, and reads everything back.

docs/schemas.md says what holds when two do it at once, or one is killed, at any point.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from relay_pipelines.errors import FencedError, RelayError
from relay_pipelines.schemas.import_record import Lease
from relay_pipelines.schemas.plan import Action, Step, chunks
from relay_pipelines.schemas.registry import (
    IMPORT,
    READ_ONLY,
    READ_WRITE,
    IdsNotTakenError,
    Registry,
    RegistryRefusedError,
)
from relay_pipelines.schemas.schema import Version

_STEPS_AT_ONCE = 50


class State(StrEnum):
    """What became of a step."""

    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a version.

    Args:
        why: it failed.
    """

    step: Step
    state: State
    why: str = ""


class Import:
    """An import into a registry.

    Args:
        has_versions: subjects that have versions there, softly deleted ones among them.
    """

    def __init__(self, registry: Registry, lease: Lease, has_versions: Iterable[str]) -> None:
        self._registry = registry
        self._lease = lease
        self._has_versions = set(has_versions)

    def run(self, steps: Sequence[Step]) -> Generator[Applied, None, None]:
        """Follow the steps of a plan; what was left by an import that was killed is restored first.

        A version that fails stops no other, but for those that reference it. A registry that gives
        ids of its own stops the import.

        Raises:
            RelayError: modes could not be restored, or the destination does not answer; the next
                import restores them.
        """
        left = self._lease.acquire()
        try:
            self._restore(left)
            self._lease.hold({})
            for chunk in chunks(steps, _STEPS_AT_ONCE):
                yield from self._chunk(chunk)
        finally:
            self._lease.release()

    def _chunk(self, chunk: Sequence[Step]) -> Generator[Applied, None, None]:
        subjects = {s.version.subject for s in chunk if s.action is Action.REGISTER}
        modes, refused = self._modes_before(sorted(subjects))
        self._lease.hold(modes)
        try:
            for subject in modes:
                self._set_import(subject, refused)
            for step in chunk:
                self._lease.renew()
                why = refused.get(step.version.subject) or self._why_failed(step)
                yield Applied(step, State.FAILED if why else State.DONE, why)
        finally:
            self._restore(modes)
            self._lease.hold({})

    def _modes_before(self, subjects: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the own modes of subjects that must change, and why others are refused."""
        modes, refused = {}, {}
        for subject in subjects:
            try:
                current = self._registry.mode(subject, inherited=True)
                if current == READ_ONLY:
                    refused[subject] = "the registry lets nobody write to the subject (READONLY)"
                elif current != IMPORT:
                    modes[subject] = self._registry.mode(subject) or ""
            except RelayError as error:
                refused[subject] = error.what
        return modes, refused

    def _set_import(self, subject: str, refused: dict[str, str]) -> None:
        """Let versions with given ids be registered under a subject.

        Without force, the registry itself refuses a subject that has got versions meanwhile. With
        it, it would not delete those that are softly deleted.
        """
        try:
            self._registry.set_mode(subject, IMPORT, force=subject in self._has_versions)
        except RelayError as error:
            refused[subject] = error.what

    def _why_failed(self, step: Step) -> str:
        version = step.version
        try:
            if step.action is Action.DELETE:
                return self._why_not_deleted(version)
            self._registry.register(version)
            self._has_versions.add(version.subject)
            found = self._registry.version(version.subject, version.number)
            if found is None or found.id != version.id or not version.schema.is_same(found.schema):
                return "the registry said that it is registered, and answers another schema"
            at_id = self._registry.by_id(version.id)
        except IdsNotTakenError:
            raise
        except RelayError as error:
            return error.what
        if not version.schema.is_same(at_id):
            return f"it was registered, and id {version.id} does not mean it"
        return ""

    def _why_not_deleted(self, version: Version) -> str:
        self._registry.delete(version.subject, version.number)
        if self._registry.version(version.subject, version.number) is None:
            return "it is not there"
        live = self._registry.versions(version.subject, deleted=False)
        return "it was deleted, and is still there" if version.number in live else ""

    def _restore(self, modes: Mapping[str, str]) -> None:
        """Give subjects back the modes that they had.

        Raises:
            RelayError: some could not be restored.
        """
        failed = {}
        for subject, mode in modes.items():
            try:
                self._restore_one(subject, mode)
            except FencedError:
                raise
            except RelayError as error:
                failed[subject] = error.what
        if failed:
            subject, why = next(iter(failed.items()))
            raise RelayError(
                f"{len(failed)} subjects are still in import mode, {subject} among them: {why}",
                remedy="run `relay schemas apply --execute` again, which restores them first",
            )

    def _restore_one(self, subject: str, mode: str) -> None:
        if self._registry.mode(subject) != IMPORT:
            return  # it was not changed, or somebody has changed it since
        if mode:
            self._registry.set_mode(subject, mode)
        else:
            self._take_away_mode(subject)
        if self._registry.mode(subject) == IMPORT:
            raise RelayError("the registry has not changed its mode")

    def _take_away_mode(self, subject: str) -> None:
        """Let a subject have the mode of its context; older registries cannot delete a mode."""
        try:
            self._registry.delete_mode(subject)
        except RegistryRefusedError:
            self._registry.set_mode(subject, READ_WRITE)
