"""What a run reads of the user's files, and what imports then find."""

from __future__ import annotations

import importlib
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
    module = tmp_path / f"{name}_module.py"
    module.write_text(
        f"import json, relay_pipelines\ndef value():\n    import {name}\n"
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


@pytest.mark.parametrize("is_regular", [True, False], ids=["package", "without __init__.py"])
def test_a_package_is_imported_as_it_was_read(
    tmp_path: Path, name: str, *, is_regular: bool
) -> None:
    """With all its modules; its data is where it was."""
    package = tmp_path / name
    (package / "inner").mkdir(parents=True)
    if is_regular:
        (package / "__init__.py").write_text("from .letters import LETTER")
        (package / "inner" / "__init__.py").write_text("")
    (package / "letters.py").write_text("LETTER = 'a'")
    (package / "inner" / "filters.py").write_text(
        "from pathlib import Path\nfrom ..letters import LETTER\n"
        "def value():\n    return LETTER, Path(__file__).parent.parent.name"
    )
    spec = ClassSpec(f"{name}.inner.filters:value", folder=str(tmp_path))
    first = Sources.of([spec])
    before = first.fix_class(spec)
    (package / "letters.py").write_text("LETTER = 'b'")
    assert value(before) == ("a", name)
    second = Sources.of([spec])
    assert value(second.fix_class(spec)) == ("b", name)
    assert value(before) == ("a", name)
    (package / "inner" / "filters.py").unlink()
    with pytest.raises(ConfigError, match="cannot be imported: ModuleNotFoundError"):
        value(Sources().fix_class(spec))
    (package / "inner" / "filters.py").write_text("from ..letters import LETTER as value")
    (package / "new.py").write_text("")
    changed = ("inner/filters.py", "letters.py", "new.py")
    assert Sources.of([spec]).changes(first) == [f"{name}/{file} has changed" for file in changed]


def test_what_the_program_has_imported_of_its_own_package_stays(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Dagster project would otherwise have two versions of its definitions in one process."""
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "filters.py").write_text("def value():\n    return 1")
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module(f"{name}.filters")
    (package / "filters.py").write_text("def value():\n    return 2")
    spec = ClassSpec(f"{name}.filters:value", folder=str(tmp_path))
    fixed = Sources().fix_class(spec)
    assert value(fixed) == 1
    assert sys.modules[f"{name}.filters"] is own
    del sys.modules[f"{name}.filters"], sys.modules[name]
    assert value(fixed) == 2, "as in a task, which has imported nothing of it"
