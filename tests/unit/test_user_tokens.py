"""Token providers: where they are found, and how they are called."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relay_pipelines.errors import ConfigError, SourceError
from relay_pipelines.model import ClassSpec
from relay_pipelines.protocol import tokens
from relay_pipelines.protocol.tokens import request
from tests.support import token_providers

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
    return request(spec, "node1 broker a:9092", SourceError, seconds)


def test_a_module_next_to_relay_yaml(folder: Path) -> None:
    spec = ClassSpec("msk_tokens:signed", '{"region": "eu"}', str(folder))
    assert ask(spec) == ("signed.for.eu", 0.0)


def test_a_module_of_another_relay_yaml_is_not_taken_for_this_one(folder: Path) -> None:
    """Two relay.yaml in one process: the tokens of one must not go to the clusters of the other."""
    assert ask(ClassSpec("msk_tokens:signed", '{"region": "eu"}', str(folder)))
    other = folder / "other"
    other.mkdir()
    (other / "msk_tokens.py").write_text("def signed(region):\n    return 'of.the.other'\n")
    spec = ClassSpec("msk_tokens:signed", '{"region": "us"}', str(other))
    for _ in range(2):
        with pytest.raises(ConfigError) as refused:
            ask(spec)
        assert str(refused.value) == (
            f"module 'msk_tokens' is already {folder / 'msk_tokens.py'}, so"
            f" {other / 'msk_tokens.py'} cannot be imported; rename one of them: two"
            " configurations in one process share their modules"
        )
    assert ask(ClassSpec("msk_tokens:signed", '{"region": "eu"}', str(folder)))


def test_the_same_module_without_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One configuration names no folder, and the process runs in that of the other."""
    assert ask(ClassSpec("msk_tokens:signed", '{"region": "eu"}', str(folder)))
    monkeypatch.chdir(folder)
    assert ask(ClassSpec("msk_tokens:signed", '{"region": "eu"}')) == ("signed.for.eu", 0.0)


def test_an_entry_point(folder: Path) -> None:
    """A package offers it in the group relay_pipelines.token_providers."""
    sys.path += [str(folder), str(folder / "installed")]
    assert ask(ClassSpec("msk", '{"region": "eu"}')) == ("signed.for.eu", 0.0)
    with pytest.raises(ConfigError) as refused:
        ask(ClassSpec("msx"))
    assert str(refused.value) == (
        "no token provider is called 'msx'; write module:function, or an entry point: msk"
    )


def test_what_is_not_a_function(folder: Path) -> None:
    with pytest.raises(ConfigError, match="token provider 'msk_tokens:not_callable' is not a func"):
        ask(ClassSpec("msk_tokens:not_callable", folder=str(folder)))


def test_a_provider_that_leaves_ends_nothing(folder: Path) -> None:
    """SystemExit, too, is one line, at once."""
    with pytest.raises(SourceError) as raised:
        ask(ClassSpec("msk_tokens:leaves", folder=str(folder)))
    assert str(raised.value) == (
        "node1 broker a:9092: token provider 'msk_tokens:leaves' raised SystemExit: bye;"
        " see whether it reaches what it needs"
    )


def test_an_error_that_repeats_a_secret(folder: Path) -> None:
    """What the provider was given as a secret is not in the message."""
    given = '{"region": "eu", "api_key": "hunter2"}'
    with pytest.raises(SourceError) as raised:
        ask(ClassSpec("msk_tokens:repeats", given, str(folder)))
    assert "raised ValueError: eu refuses '***'; see" in str(raised.value)


def test_a_call_that_never_returns_is_not_the_last(
    topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another call, a process that runs for years would never get a token again."""
    token_providers.go_on.clear()
    spec = ClassSpec("tests.support.token_providers:hanging", f'{{"name": "{topic_name}"}}')
    for _ in range(2):
        with pytest.raises(SourceError):
            ask(spec, 0.2)
    assert token_providers.calls[topic_name] == 1
    monkeypatch.setattr(tokens, "_HUNG_SECONDS", 0.0)
    with pytest.raises(SourceError):
        ask(spec, 0.2)
    assert token_providers.calls[topic_name] == 2
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
    assert lines == {
        (
            "node1 broker a:9092: token provider 'tests.support.token_providers:hanging'"
            " has not returned within 0.05 s; see what it waits for"
        )
    }
    token_providers.go_on.set()
    token, seconds = ask(spec)
    assert token.count(".") == 2
    assert 3590 < seconds <= 3600
    assert token_providers.calls[topic_name] == 1
    ask(spec)
    assert token_providers.calls[topic_name] == 2
