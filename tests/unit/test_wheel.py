"""What the wheel holds: everything that people need who have no checkout."""

import sys
from pathlib import Path

import pytest

from relay_pipelines.settings import load
from tests.support import wheel
from tests.support.commands import ran
from tests.support.config_files import EXAMPLE

ROOT = EXAMPLE.parent
CALL = "import sys; from relay_pipelines.cli import main; sys.exit(main(sys.argv[1:]))"


def python(site: Path, folder: Path, *arguments: str, **more: str) -> str:
    """Run Python in a folder without a checkout, and return the output."""
    done = ran(sys.executable, *arguments, cwd=folder, env=wheel.environment(site) | more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_init_writes_the_files_of_a_project_and_overwrites_none(site, tmp_path):
    """A folder that cannot be made is one line."""
    folder = tmp_path / "mirrors"
    folder.mkdir()
    (folder / "dagster.yaml").write_text("mine")
    said = python(site, tmp_path, "-c", CALL, "init", "mirrors").splitlines()
    assert said == [
        "mirrors/relay.yaml: your clusters and topics: every key, with its default",
        "mirrors/workspace.yaml: what `dagster dev` loads",
        "mirrors/dagster.yaml: exists, not changed",
        "next: fill in relay.yaml, then run `relay check`",
    ]
    again = python(site, tmp_path, "-c", CALL, "init", "mirrors").splitlines()
    assert again[-1] == "next: run `relay check`"
    assert (folder / "relay.yaml").read_text() == EXAMPLE.read_text()
    assert (folder / "workspace.yaml").read_text() == (ROOT / "workspace.yaml").read_text()
    assert (folder / "dagster.yaml").read_text() == "mine"
    assert load(folder / "relay.yaml", {}).version == 1
    (tmp_path / "file").touch()
    with pytest.raises(AssertionError, match=r"^error: file/x cannot be opened: Not a directory;"):
        python(site, tmp_path, "-c", CALL, "init", "file/x")


def test_completion_and_imports(site, tmp_path):
    """As `relay --install-completion` installs it; nothing slow is imported before it is used."""

    def completed(words: str) -> list[str]:
        asked = {"_RELAY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "2"}
        return python(site, tmp_path, "-c", CALL, **asked).split()

    assert completed("relay audit --s") == ["--since", "--share", "--seed", "--strict"]
    script = python(site, tmp_path, "-c", CALL, _RELAY_COMPLETE="source_bash")
    assert "complete -o default -F _relay_completion relay" in script
    code = """
        import sys, relay_pipelines as relay
        slow = ("dagster", "pydantic", "pyspark", "pyarrow", "kafka", "yaml")
        assert not [name for name in slow if name in sys.modules]
        assert relay.load and relay.partitions
        assert not [name for name in slow[2:4] if name in sys.modules or "dagster" in sys.modules]
        for name in relay.__all__:
            assert getattr(relay, name).__module__.startswith("relay_pipelines"), name
        import relay_pipelines.definitions
        assert callable(relay.definitions), "the module has the name of the function"
        assert dir(relay) == relay.__all__ == sorted(relay.__all__)
    """
    code = "\n".join(line[8:] for line in code.splitlines())
    python(site, tmp_path, "-W", "ignore", "-c", code)
    with pytest.raises(AssertionError, match="has no attribute 'laod'"):
        python(site, tmp_path, "-c", "import relay_pipelines as relay; relay.laod")
