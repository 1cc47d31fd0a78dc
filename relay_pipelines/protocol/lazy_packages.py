"""Packages whose modules are imported without what the package itself imports.

kafka-python and aiokafka import their clients with each of their modules. We use messages, records
and codecs; importing the clients would take a third of the start of a command and of a worker.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
from types import ModuleType
from typing import Any

_running = threading.RLock()


class _LazyPackage(ModuleType):
    """A package that runs its `__init__` when somebody asks for a name that only that defines."""

    def __getattr__(self, name: str) -> Any:
        with _running:
            if type(self) is _LazyPackage:
                self.__class__ = ModuleType  # type: ignore[assignment]
                assert self.__spec__ is not None
                assert self.__spec__.loader is not None
                self.__spec__.loader.exec_module(self)
            return getattr(self, name)


def defer(name: str) -> None:
    """Let modules of a package be imported without its `__init__`, if that has not run yet."""
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    assert spec is not None
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _LazyPackage
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)
    # a package of a library does so itself: without it, Python prints warnings on stderr
    logging.getLogger(name).addHandler(logging.NullHandler())
