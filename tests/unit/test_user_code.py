"""What a run reads of the user's files, and token providers: where found, how called."""

import importlib
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from relay_pipelines.errors import ConfigError, PermissionDeniedError, SourceError, UnsupportedError
from relay_pipelines.model import ClassSpec
from relay_pipelines.protocol import tokens
from relay_pipelines.protocol.tokens import from_function
from relay_pipelines.user_code import find
from relay_pipelines.user_sources import Sources
from tests.support import token_providers
from tests.support.wordings import Wordings


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
def test_a_package_is_imported_as_read(tmp_path: Path, name: str, *, is_regular: bool) -> None:
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


MODULE = """
def signed(region):
    return f"signed.for.{region}"

def repeats(region, api_key):
    raise ValueError(f"{region} refuses {api_key!r}")

def leaves():
    raise SystemExit("bye\\nsecond line")

not_callable = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with relay.yaml's neighbour msk_tokens.py, and an installed package."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "msk_tokens", raising=False)
    (tmp_path / "msk_tokens.py").write_text(MODULE)
    installed = tmp_path / "installed" / "signer-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Name: signer\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(
        "[relay_pipelines.token_providers]\nmsk = msk_tokens:signed\n"
    )
    return tmp_path


def ask(spec: ClassSpec, seconds: float = 5.0) -> tuple[str, float]:
    return from_function(spec, "kafka-a broker a:9092", SourceError, seconds)


def test_a_module_of_another_relay_yaml_is_not_taken_for_this_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wordings: Wordings
) -> None:
    """Two relay.yaml in one process: the tokens of one must not go to the clusters of the other."""
    eu = ClassSpec("msk_tokens:signed", '{"region": "eu"}', str(folder))
    assert ask(eu) == ("signed.for.eu", 0.0)
    other = folder / "other"
    other.mkdir()
    (other / "msk_tokens.py").write_text("def signed(region):\n    return 'of.the.other'\n")
    spec = ClassSpec("msk_tokens:signed", '{"region": "us"}', str(other))
    for _ in range(2):
        with pytest.raises(ConfigError) as refused:
            ask(spec)
        said = str(refused.value).replace(str(folder), "FOLDER")
        wordings.check("tokens: a module of another relay.yaml", said)
    assert ask(eu)
    # one configuration names no folder, and the process runs in that of the other
    monkeypatch.chdir(folder)
    assert ask(replace(eu, folder="")) == ("signed.for.eu", 0.0)


def test_an_entry_point(folder: Path) -> None:
    """A package offers it in the group relay_pipelines.token_providers."""
    sys.path += [str(folder), str(folder / "installed")]
    assert ask(ClassSpec("msk", '{"region": "eu"}')) == ("signed.for.eu", 0.0)


def provided(name: str) -> ClassSpec:
    return ClassSpec(f"tests.support.token_providers:{name}", '{"name": "refused"}')


WITH_KEY = '{"region": "eu", "api_key": "hunter2"}'
REFUSED = {
    "no entry point": (ConfigError, ClassSpec("msx")),
    "no function": (ConfigError, ClassSpec("msk_tokens:not_callable")),
    "it leaves": (SourceError, ClassSpec("msk_tokens:leaves")),
    "it repeats a secret": (SourceError, ClassSpec("msk_tokens:repeats", WITH_KEY)),
    "it refuses": (PermissionDeniedError, provided("denied")),
    "it returns nothing": (UnsupportedError, provided("nothing")),
    "it expires in milliseconds": (UnsupportedError, provided("milliseconds")),
    "it has expired": (SourceError, provided("expired")),
    "other arguments": (ConfigError, replace(provided("issued"), config='{"region": "eu"}')),
}


@pytest.mark.parametrize("title", REFUSED)
def test_a_provider_that_is_refused(folder: Path, wordings: Wordings, title: str) -> None:
    """SystemExit, too, is one line, at once, without what the provider was given as a secret."""
    sys.path.append(str(folder / "installed"))
    kind, spec = REFUSED[title]
    with pytest.raises(kind) as raised:
        ask(replace(spec, folder=str(folder) if "msk" in spec.name else ""))
    assert "hunter2" not in str(raised.value)
    wordings.check(f"tokens: {title}", str(raised.value))


def test_a_call_that_hangs_is_not_last(topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another call, a process that runs for years would never get a token again."""
    token_providers.go_on.clear()
    spec = ClassSpec("tests.support.token_providers:hanging", f'{{"name": "{topic_name}"}}')
    hung = tokens._HUNG_SECONDS
    for calls, hung_seconds in ((1, hung), (1, hung), (2, 0.0)):
        monkeypatch.setattr(tokens, "_HUNG_SECONDS", hung_seconds)
        with pytest.raises(SourceError):
            ask(spec, 0.2)
        assert token_providers.calls[topic_name] == calls
    token_providers.go_on.set()


def test_one_call_serves_all_who_wait(topic_name: str) -> None:
    """Connections share a call, also one that returns only after all of them gave up."""
    token_providers.go_on.clear()
    spec = ClassSpec("tests.support.token_providers:hanging", f'{{"name": "{topic_name}"}}')

    def give_up() -> str:
        with pytest.raises(SourceError) as raised:
            ask(spec, 0.05)
        return str(raised.value)

    with ThreadPoolExecutor(4) as pool:
        lines = {answer.result() for answer in [pool.submit(give_up) for _ in range(4)]}
    (line,) = lines
    assert line.endswith("' has not returned within 0.05 s; see what it waits for")
    token_providers.go_on.set()
    token, seconds = ask(spec)
    assert token.count(".") == 2
    assert 3590 < seconds <= 3600
    assert token_providers.calls[topic_name] == 1
    ask(spec)
    assert token_providers.calls[topic_name] == 2
