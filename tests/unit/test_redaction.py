"""Secrets are kept out of messages, and out of the command lines of Spark."""

import pickle
from pathlib import Path

import pytest

from relay_pipelines import redaction
from relay_pipelines.errors import RelayError, SourceError
from relay_pipelines.migration.document import parse
from relay_pipelines.output import messages
from relay_pipelines.redaction import hide, hide_named, hide_parameters, redacted
from relay_pipelines.settings import load
from relay_pipelines.spark import settings_file
from tests.support.config_files import MINIMAL


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_values", set())
    monkeypatch.setattr(redaction, "_pattern", None)


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("correct-horse", "got correct-horse!", "got ***!"),
        ("correct-horse", "Xcorrect-horseX", "X***X"),
        ("kafka", "user kafka at kafka-a:9092", "user *** at kafka-a:9092"),
        ("relay", "/x/relay.yaml: user relay.", "/x/relay.yaml: user ***."),
        ("abc", "abc", "abc"),
        ("a b;c=d#1", "at a%20b%3Bc%3Dd%231 now", "at *** now"),
        ("", "https://me:pw@host/x", "https://***@host/x"),
        ("", "sc://h:1/;use_ssl=true;token=abc;x=1", "sc://h:1/;use_ssl=true;token=***;x=1"),
        ("", "-Djavax.net.ssl.trustStorePassword=abc -Dx=1", None),
    ],
)
def test_text_without_secrets(secret: str, text: str, shown: str | None) -> None:
    """Known secrets go wherever they stand, short ones as words; so does what addresses carry."""
    hide(secret)
    expected = "-Djavax.net.ssl.trustStorePassword=*** -Dx=1" if shown is None else shown
    assert redacted(text) == expected


def test_names_say_what_is_secret() -> None:
    """Also below a name, and in the parameters of an address."""
    named = {"region": "eu-west-1", "secrets": ["second"]}
    hide_named(named | {"spark.hadoop.fs.s3a.secret.key": "first-one"})
    hide_parameters("sc://h:1/;user_id=somebody;token=third%2Fone")
    text = "first-one second third/one third%2Fone"
    assert redacted(f"{text} eu-west-1 somebody") == "*** *** *** *** eu-west-1 somebody"


def test_every_way_out_is_covered(capsys: pytest.CaptureFixture[str]) -> None:
    """Errors, also sent from a task, tracebacks with their causes, lines and JSON."""
    hide("correct-horse")
    try:
        raise ValueError("correct-horse")  # noqa: TRY301
    except ValueError as cause:
        error = SourceError("refused correct-horse", remedy="not correct-horse")
        error.__cause__ = cause
    messages.trace(error)
    for write in (messages.error, messages.warning, messages.note, messages.line):
        write("correct-horse")
    messages.document({"error": "correct-horse"})
    said = capsys.readouterr()
    sent = pickle.loads(pickle.dumps(RelayError("correct-horse")))
    assert "correct-horse" not in said.out + said.err + repr(error) + repr(sent)
    assert str(error) == "refused ***; not ***"


def test_what_the_file_names_is_hidden(tmp_path: Path) -> None:
    """Loading relay.yaml is what tells a process its secrets."""
    path = tmp_path / "relay.yaml"
    spark = "spark: {remote: 'sc://h:1/;token=the-token', conf: {spark.x.password: of-spark}}"
    path.write_text(spark + MINIMAL)
    settings = load(path, {})
    assert redacted("the-token of-spark") == "*** ***"
    assert "the-token" not in repr(settings)


@pytest.mark.parametrize(
    "value", ["plain", " a\\b: c=d #e!", "ä€\U0001f600", "two\nlines\t", "", "local[*,4]"]
)
def test_a_properties_file_keeps_any_value(tmp_path: Path, value: str) -> None:
    """As java.util.Properties reads it; only its user may, even if another file was there."""
    path = tmp_path / "spark.conf"
    path.write_text("old")
    settings_file.write(path, {"spark.a b": value}, "spark.c=1")
    assert path.stat().st_mode & 0o777 == 0o600
    found = parse(path.read_text())
    assert found["spark.c"] == "1"
    read = found["spark.a b"].encode("utf-16", "surrogatepass").decode("utf-16")
    assert read == value.rstrip() or read == value


def test_arguments_of_the_user_stay_in_force(tmp_path: Path) -> None:
    """Of several properties files Spark reads the last alone, so ours contains the user's."""
    own = tmp_path / "own.conf"
    own.write_text("spark.a=1\nspark.b=1\n")
    words = ["--properties-file", str(own), "--packages", "x:y:1", "pyspark-shell"]
    ours = tmp_path / "spark.conf"
    arguments = settings_file.write_beside(ours, {"spark.b": "2"}, words)
    assert arguments == [
        *("--properties-file", str(ours), "--load-spark-defaults"),
        *("--packages", "x:y:1", "pyspark-shell"),
    ]
    assert parse(ours.read_text()) == {"spark.a": "1", "spark.b": "2"}
