"""relay.example.yaml, where users start."""

import re
from types import UnionType
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from relay_pipelines import model
from relay_pipelines.settings import Mirror, Settings, load
from relay_pipelines.settings.expectations import Expectation
from relay_pipelines.settings.topics import Override
from tests.support.config_files import EXAMPLE


def sections(annotation: Any) -> dict[type[BaseModel], dict[str, Any]]:
    """Return all models below the annotation, with their keys and the annotations of these."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        found = [sections(argument) for argument in get_args(annotation)]
        return {key: value for each in found for key, value in each.items()}
    keys = {
        field.alias or name: field.annotation for name, field in annotation.model_fields.items()
    }
    return {annotation: keys} | {
        key: value for child in keys.values() for key, value in sections(child).items()
    }


def written_keys(tree: Any, annotation: Any) -> set[tuple[type[BaseModel], str]]:
    """Return the keys of every model that a parsed file sets."""
    if isinstance(annotation, UnionType):  # UserClass | None
        annotation = get_args(annotation)[0]
    if annotation is Expectation:  # an entry is the expectation itself, and options beside it
        options = {key for key in tree if key in Expectation.model_fields}
        return {(Expectation, key) for key in {"kind", "value", *options}}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        keys = {
            field.alias or name: field.annotation for name, field in annotation.model_fields.items()
        }
        below = [written_keys(value, keys[key]) for key, value in (tree or {}).items()]
        return {(annotation, key) for key in tree or {}}.union(*below)
    arguments = get_args(annotation)
    if isinstance(tree, list) and arguments:
        return set().union(*(written_keys(value, arguments[0]) for value in tree))
    if isinstance(tree, dict) and arguments:
        return set().union(*(written_keys(value, arguments[1]) for value in tree.values()))
    return set()


def uncommented() -> str:
    """Return the example with every key in use: `#key:` is a key, `# text` a comment."""
    return re.sub(r"^(\s*)#(?=(?:- )?[a-z_.]+:)", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE)


def test_the_example_documents_every_key():
    """It loads and shows the defaults of copy; each key has a description."""
    assert load(EXAMPLE, {}).mirror("orders").copy_options == model.CopyOptions()
    every = {(section, key) for section, keys in sections(Settings).items() for key in keys}
    assert len(every) > 30
    written = written_keys(yaml.safe_load(uncommented()), Settings)
    # an override shares keys with the mirror, where the example shows them
    shared = {(Override, key) for section, key in written if section is Mirror}
    assert every - written - shared == set()
    fields = [field for section in sections(Settings) for field in section.model_fields.items()]
    assert [name for name, field in fields if not field.description] == []


def test_the_example_loads_with_every_key_in_use(tmp_path):
    """The commented keys must be valid, too: people copy them."""
    for name in ("ca.pem", "client.pem", "client.key"):
        (tmp_path / name).touch()
    (tmp_path / "client.key.password").write_text("k\n")
    path = tmp_path / "relay.yaml"
    alternatives = (
        *("master:", "start: earliest", "offsets:", "group:", "token_provider:"),
        *("token_provider_config:", "principal:", "keytab:", "ticket_cache:", "service_name:"),
        "token: ",
    )
    lines = uncommented().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not any(key in line for key in alternatives)))
    secrets = ("ORDERS_PASSWORD", "RELAY_CLIENT_SECRET", "REGISTRY_PASSWORD")
    settings = load(path, dict.fromkeys(secrets, "p"))
    assert settings.mirror("orders").upstreams[0].security.key_password == "k"
