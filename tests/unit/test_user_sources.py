"""What a run reads of the user's files, and what imports then find."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pytest

from relay_pipelines.errors import ConfigError
from relay_pipelines.model import ClassSpec
from relay_pipelines.user_code import find
from relay_pipelines.user_sources import Sources


@pytest.fixture
def name() -> str:
    return f"own_{uuid.uuid4().hex[:8]}"


def value(spec: ClassSpec) -> object:
    return find(spec, "filter")()


def test_what_was_read_is_imported_until_something_else_was(tmp_path: Path, name: str) -> None:
    """With what a module imports from its folder; `__file__` is where its data may be."""
    letters = tmp_path / f"{name}.py"
    letters.write_text("LETTER = 'a'")
    package = tmp_path / f"{name}_package"  # it may be the running program's own
    package.mkdir()
    (package / "__init__.py").write_text("")
    module = tmp_path / f"{name}_module.py"
    module.write_text(
        f"import json, {name}_package, relay_pipelines\ndef value():\n    import {name}\n"
        f"    return {name}.LETTER, __file__"
    )
    (tmp_path / f"{name}_other.py").write_text("this is not imported")
    spec = ClassSpec(f"{name}_module:value", folder=str(tmp_path))
    first = Sources.of([spec])
    before = first.fix_class(spec)
    assert [file.module for file in before.sources] == [name, f"{name}_module"]
    letters.write_text("LETTER = 'b'")
    assert value(before) == ("a", str(module))

    second = Sources.of([spec])
    after = second.fix_class(spec)
    assert value(after) == ("b", str(module))
    assert value(before) == ("a", str(module))
    assert second.changes(first) == [f"{name}.py has changed"]
    assert second.changes(None) == second.changes(second) == []

    module.unlink()
    third = Sources.of([spec])
    assert third.changes(second) == [f"{module.name} has changed"]
    with pytest.raises(ConfigError, match="cannot be imported: ModuleNotFoundError"):
        value(third.fix_class(spec))


def test_a_module_that_was_imported_from_the_disk_is_imported_again(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as by a program in the same folder; what is installed elsewhere goes first."""
    module = tmp_path / f"{name}.py"
    module.write_text("value = lambda: 1")
    spec = ClassSpec(f"{name}:value", folder=str(tmp_path))
    assert value(spec) == 1
    module.write_text("value = lambda: 22")
    assert value(Sources().fix_class(spec)) == 22

    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / f"{name}.py").write_text("value = lambda: 3")
    monkeypatch.syspath_prepend(installed)
    del sys.modules[name]
    fixed = Sources().fix_class(spec)
    assert fixed.sources == ()
    assert value(fixed) == 3
