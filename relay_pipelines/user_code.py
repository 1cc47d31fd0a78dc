"""The user's classes and functions: finding them, and describing what they raise."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from relay_pipelines.errors import ConfigError
from relay_pipelines.model import ClassSpec
from relay_pipelines.user_sources import home, use

RAISED_BY_USERS = (Exception, SystemExit)
"""What code of the user's may raise; `sys.exit()` in it must not end the process for all topics."""
_folders: set[str] = set()
"""The folders of all configurations of this process that name code of the user's."""


def find(spec: ClassSpec, kind: str, form: str = "module:Class") -> Any:
    """Return what `module:name`, or the entry point, stands for.

    Args:
        kind: such as "filter"; the entry point group is `relay_pipelines.<kind>s`, with underscores
            for spaces.
        form: how it is written, for people.

    Raises:
        ConfigError: it does not exist, or cannot be imported.
    """
    module, colon, name = spec.name.partition(":")
    if not colon:
        return _entry_point(spec.name, kind, form)
    if spec.folder:
        _folders.add(spec.folder)
        if spec.folder not in sys.path:
            sys.path.append(spec.folder)  # last, so that no module there can replace a library
    try:
        use(module, spec.sources)
        loaded = importlib.import_module(module)
        _refuse_namesake(module, spec.folder)
        return getattr(loaded, name)
    except ConfigError:
        raise
    except AttributeError:
        raise ConfigError(
            f"module {module!r} has no {kind} {name!r}", remedy=f"write {form}"
        ) from None
    except RAISED_BY_USERS as error:
        raise ConfigError(
            f"{kind} {spec.name!r} cannot be imported: {describe(error)}",
            remedy=f"put {module}.py next to the configuration, or install it; executors on other"
            " machines need what it imports, too, such as by spark.submit.pyFiles",
        ) from error


def _refuse_namesake(module: str, folder: str) -> None:
    """Refuse a module of another configuration: Python has one module of a name per process."""
    name = module.partition(".")[0]
    module_path = Path(folder, name)
    files = (module_path.with_suffix(".py"), module_path / "__init__.py")
    beside = next((file for file in files if file.is_file()), None)
    used = Path(getattr(sys.modules[name], "__file__", None) or "")
    if beside and beside.resolve() != used.resolve() and str(home(used)) in _folders - {folder}:
        raise ConfigError(
            f"module {name!r} is already {used}, so {beside} cannot be imported",
            remedy="rename one of them: two configurations in one process share their modules",
        )


def _entry_point(name: str, kind: str, form: str) -> Any:
    group = f"relay_pipelines.{kind.replace(' ', '_')}s"
    entry_points = importlib.metadata.entry_points(group=group)
    if name not in entry_points.names:
        known = ", ".join(sorted(entry_points.names)) or "none is installed"
        raise ConfigError(
            f"no {kind} is called {name!r}",
            remedy=f"write {form}, or an entry point: {known}",
        )
    return entry_points[name].load()


def describe(error: BaseException) -> str:
    """Return the class of an exception and the first line of its message."""
    # it may quote bytes that are not UTF-8, such as the name of a header
    text = (str(error).splitlines() or [""])[0].encode(errors="backslashreplace").decode()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
