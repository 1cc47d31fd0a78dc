"""The files of the user's classes: read once for a run, and imported by all its tasks as read.

Python imports a file once per process: tasks of one run in reused and in new workers would use two
versions of a file that changes, and a living driver its first one for ever.

A package may be the running program's own, such as that of a Dagster project. What the program has
imported of it stays as it is on the driver, which checks classes; tasks, which decide, import all
as read.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Self

from relay_pipelines.model import ClassSpec, RecordPolicy, SourceFile

_INIT = "__init__.py"
_OURS = __name__.partition(".")[0]


class Sources:
    """The user's files, each read once. On the driver.

    One object for each run, or for all runs of a round, lets all of them use the same version.
    """

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], tuple[SourceFile, ...]] = {}
        """Folder and name of a module -> its files; none if Python finds it by itself, or not."""

    @classmethod
    def of(cls, specs: Iterable[ClassSpec]) -> Self:
        """Read the files of these classes."""
        sources = cls()
        for spec in specs:
            sources.fix_class(spec)
        return sources

    def fix(self, record_policy: RecordPolicy) -> RecordPolicy:
        """Return the policy with the files of its classes."""
        transform = record_policy.transform
        if transform is None and not record_policy.filters:
            return record_policy
        return replace(
            record_policy,
            filters=tuple(self.fix_class(spec) for spec in record_policy.filters),
            transform=None if transform is None else self.fix_class(transform),
        )

    def fix_class(self, spec: ClassSpec) -> ClassSpec:
        """Return the class with its module, and with what that imports from the same folder."""
        module, colon, _ = spec.name.partition(":")
        by_module: dict[str, tuple[SourceFile, ...]] = {}
        names = [module.partition(".")[0]] if colon and spec.folder else []
        while names:
            name = names.pop()
            if name not in by_module:
                by_module[name] = files = self._read(spec.folder, name)
                names += [imported for file in files for imported in _imports(file)]
        return replace(
            spec, sources=tuple(file for _, files in sorted(by_module.items()) for file in files)
        )

    def changes(self, before: Sources | None) -> list[str]:
        """Say which files have changed since they were read before."""
        if before is None:
            return []
        return sorted(
            f"{path.relative_to(folder)} has changed"
            for folder, name in self.files.keys() & before.files.keys()
            for path in _differing(self.files[folder, name], before.files[folder, name])
        )

    def _read(self, folder: str, name: str) -> tuple[SourceFile, ...]:
        key = (folder, name)
        if key not in self.files:
            self.files[key] = _read(Path(folder), name)
        return self.files[key]


def _differing(now: Iterable[SourceFile], before: Iterable[SourceFile]) -> set[Path]:
    return {Path(file.path) for file in set(now).symmetric_difference(before)}


def _read(folder: Path, name: str) -> tuple[SourceFile, ...]:
    """Read a module or package of the folder; nothing if it is not there, or installed as well."""
    package, module = folder / name, folder / f"{name}.py"
    if _is_installed(name, folder):
        return ()
    # as Python looks: a folder without __init__.py comes after a module
    if package.is_dir() and ((package / _INIT).is_file() or not module.is_file()):
        paths = sorted(package.rglob("*.py"))
    else:
        paths = [module] if module.is_file() else []
    try:
        return tuple(
            SourceFile(_dotted(path, folder), str(path), path.read_bytes()) for path in paths
        )
    except OSError:
        return ()  # its import says so


def _dotted(path: Path, folder: Path) -> str:
    inside = path.relative_to(folder).with_suffix("")
    return ".".join(inside.parent.parts if path.name == _INIT else inside.parts)


def _is_installed(name: str, folder: Path) -> bool:
    """Whether Python finds a module of this name elsewhere, which goes before the folder's."""
    if name in sys.stdlib_module_names or name == _OURS:
        return True
    spec = PathFinder.find_spec(name)
    if spec is None or spec.origin is None:  # a folder without __init__.py is as good as none
        return False
    return home(Path(spec.origin)).resolve() != folder.resolve()


# a package of some hundred files takes a second, and every snapshot asks
@lru_cache(maxsize=4096)
def _imports(file: SourceFile) -> frozenset[str]:
    """Return the first part of each name that the file imports."""
    try:
        tree = ast.parse(file.content)
    except (SyntaxError, ValueError):
        return frozenset()  # its import says so
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return frozenset(modules)


def home(path: Path) -> Path:
    """Return the folder from which Python imports a module or package."""
    return path.parent.parent if path.name == _INIT else path.parent


def use(module: str, sources: Sequence[SourceFile]) -> None:
    """Let imports use these files as they were read, and drop what was imported from others.

    On the driver and in tasks. A task has the files even where the folder does not exist.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # installed modules go first, and files that were read before those on the disk
        at = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
        sys.meta_path.insert(at, _FINDER)
    files = {file.module: file for file in sources}
    if any(_is_outdated(name, files.get(name)) for name in {module, *files}):
        # a module keeps what it has imported from another one
        for name, file in files.items():
            if name in sys.modules and _is_replaceable(sys.modules[name], file):
                del sys.modules[name]
        if module not in files:
            sys.modules.pop(module, None)
    replaced = {name.partition(".")[0] for name in {module, *files}}
    kept = {n: file for n, file in _FINDER.files.items() if n.partition(".")[0] not in replaced}
    _FINDER.files = kept | files


def _is_outdated(name: str, file: SourceFile | None) -> bool:
    imported = sys.modules.get(name)
    loader = getattr(imported, "__loader__", None)
    if isinstance(loader, _Loader):
        return loader.file != file and (file is None or loader.file.path == file.path)
    return file is not None and _is_replaceable(imported, file)


def _is_replaceable(imported: Any, file: SourceFile) -> bool:
    """Whether the module is from this file, and not the running program's own."""
    is_of_package = "." in file.module or Path(file.path).name == _INIT
    is_ours = isinstance(getattr(imported, "__loader__", None), _Loader)
    return (is_ours or not is_of_package) and _is_from(imported, file)


def _is_from(imported: Any, file: SourceFile) -> bool:
    path = getattr(imported, "__file__", None) or ""
    return path != "" and Path(path).resolve() == Path(file.path).resolve()


class _Loader(ExecutionLoader):
    """Imports a file as it was read; `__file__` stays its path, beside which its data may be."""

    def __init__(self, file: SourceFile) -> None:
        self.file = file

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002 - Python's signature
        return self.file.path

    def get_source(self, fullname: str) -> str:  # noqa: ARG002 - Python's signature
        return importlib.util.decode_source(self.file.content)


class _Finder(MetaPathFinder):
    """Finds the files that were read."""

    def __init__(self) -> None:
        self.files: dict[str, SourceFile] = {}

    def find_spec(
        self,
        fullname: str,
        _path: Sequence[str] | None,
        _target: Any = None,
    ) -> ModuleSpec | None:
        file = self.files.get(fullname)
        if file is None:
            return None
        path = Path(file.path)
        return importlib.util.spec_from_file_location(
            fullname,
            path,
            loader=_Loader(file),
            submodule_search_locations=[str(path.parent)] if path.name == _INIT else None,
        )


_FINDER = _Finder()
