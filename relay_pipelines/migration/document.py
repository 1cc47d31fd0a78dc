"""The security settings of Kafka's Java clients as those of relay.yaml.

Java's properties files (java.util.Properties.load).

What a conversion builds: a relay.yaml, and notes on what is not translated and why.
"""

from __future__ import annotations

import copy
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from relay_pipelines import settings
from relay_pipelines.errors import ConfigError, page

# quoted in one of two ways, as java.io.StreamTokenizer reads it, or not at all
_JAAS_OPTION = re.compile(
    r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))"""
)
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_NOT_PEM = "it is not PEM; export it with keytool and openssl, and set security.{ours}"
_MSK = (
    f"write msk_tokens.py as {page('Secure connections')} shows, and install"
    " aws-msk-iam-sasl-signer-python;"
    " set the region"
)

Take = Callable[[str], Any]


def security(keys: Keys, cluster: str, document: Document, folder: Path) -> dict[str, Any]:
    """Return the security settings of a cluster; empty for PLAINTEXT.

    Its own keys win over those that all clusters share.
    """

    def take(key: str) -> Any:
        own, shared = keys.take(f"{cluster}.{key}"), keys.take(key)
        return own if own is not None else shared

    def note(key: str, why: str) -> None:
        keys.note(f"{cluster}.{key}" if f"{cluster}.{key}" in keys.given else key, why)

    protocol = take("security.protocol") or "PLAINTEXT"
    section: dict[str, Any] = {}
    if protocol.startswith("SASL_"):
        section |= _sasl(take, note, cluster, document)
    if protocol.endswith("SSL"):
        section |= _tls(take, note, cluster, document, folder)
    return {"protocol": protocol, **section} if protocol != "PLAINTEXT" else {}


def _sasl(
    take: Take, note: Callable[[str, str], None], cluster: str, document: Document
) -> dict[str, Any]:
    mechanism = take("sasl.mechanism") or "GSSAPI"
    jaas = {
        name: "".join(value)  # one of them is there
        for name, *value in _JAAS_OPTION.findall(take("sasl.jaas.config") or "")
    }
    take("sasl.client.callback.handler.class")
    take("sasl.login.callback.handler.class")
    if mechanism in _PASSWORD_MECHANISMS:
        username = jaas.get("username", "")
        if not username or "${" in username:  # from a provider of configuration, in Java
            username = document.secret(cluster, "user name")
        return {
            "mechanism": mechanism,
            "username": username,
            "password": document.secret(cluster, "password"),
        }
    if mechanism == "GSSAPI":
        return _kerberos(take, note, jaas)
    if mechanism == "AWS_MSK_IAM":
        note("sasl.mechanism", _MSK)
        return {
            "mechanism": "OAUTHBEARER",
            "token_provider": "msk_tokens:signed",
            "token_provider_config": {"region": "eu-west-1"},
        }
    if mechanism == "OAUTHBEARER":
        return _oauth(take, note, jaas, cluster, document)
    note("sasl.mechanism", f"relay has no {mechanism}; this placeholder has to be replaced")
    return {
        "mechanism": "SCRAM-SHA-512",
        "username": "relay",
        "password": document.secret(cluster, "password"),
    }


def _kerberos(take: Take, note: Callable[[str, str], None], jaas: dict[str, str]) -> dict[str, Any]:
    """Return the options of Krb5LoginModule; the keytab has to be where tasks run, too."""
    section = {"mechanism": "GSSAPI"}
    service = take("sasl.kerberos.service.name") or jaas.get("serviceName")
    if service and service != "kafka":
        section["service_name"] = service
    if "principal" in jaas:
        section["principal"] = jaas["principal"]
    for theirs, ours, asked in (
        ("keyTab", "keytab", "useKeyTab"),
        ("ticketCache", "ticket_cache", "useTicketCache"),
    ):
        file = jaas.get(theirs)
        if not file or jaas.get(asked, "false").lower() != "true":
            continue
        if ours == "keytab" and "principal" not in section:
            # Java would ask for a name, and no other process may choose one
            why = f"it names no principal for {file}; set security.principal and security.keytab"
            note("sasl.jaas.config", why)
            return section
        if Path(file).is_file():
            section[ours] = file
        else:
            note("sasl.jaas.config", f"{file} is not here; set security.{ours}")
    if "keytab" in section:
        section.pop("ticket_cache", None)
    return section


def _oauth(
    take: Take,
    note: Callable[[str, str], None],
    jaas: dict[str, str],
    cluster: str,
    document: Document,
) -> dict[str, Any]:
    extensions = {
        name.removeprefix("extension_"): value
        for name, value in jaas.items()
        if name.startswith("extension_")
    }
    section: dict[str, Any] = {"mechanism": "OAUTHBEARER"}
    if endpoint := take("sasl.oauthbearer.token.endpoint.url"):
        section["token_endpoint"] = endpoint
        section["client_id"] = jaas.get("clientId", "relay")
        section["client_secret"] = document.secret(cluster, "client secret")
        if "scope" in jaas:
            section["scope"] = jaas["scope"]
    else:
        note(
            "sasl.mechanism",
            f"write a token provider in Python; {page('Secure connections')} shows one",
        )
        section["token_provider"] = "tokens:token"  # noqa: S105 - a function's name
    return section | ({"sasl_extensions": extensions} if extensions else {})


def _tls(
    take: Take,
    note: Callable[[str, str], None],
    cluster: str,
    document: Document,
    folder: Path,
) -> dict[str, Any]:
    section: dict[str, Any] = {}
    for store, ours in (("truststore", "ca_location"), ("keystore", "certificate_location")):
        location, kind = take(f"ssl.{store}.location"), take(f"ssl.{store}.type") or "JKS"
        take(f"ssl.{store}.password")  # of the store, which PEM does not have
        if not location:
            continue
        if kind.upper() == "PEM":
            section[ours] = str((folder / location).absolute())
        else:
            note(f"ssl.{store}.location", _NOT_PEM.format(ours=ours))
    if take("ssl.key.password") and "certificate_location" in section:
        section["key_password"] = document.secret(cluster, "key password")
    if take("ssl.endpoint.identification.algorithm") == "":
        section["verify_hostname"] = False
    return section


_ENTRY = re.compile(r"((?:\\.|[^\\\s=:])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(text: str) -> dict[str, str]:
    """Return the keys and values; the last one of a repeated key counts, as in Java."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _ENTRY.fullmatch(line)
        if match and match[1]:
            properties[_unescaped(match[1])] = _unescaped(match[2])
    return properties


def _logical_lines(text: str) -> list[str]:
    """Join lines that end with an odd number of backslashes with the next one."""
    lines: list[str] = []
    open_line = ""
    for physical in text.splitlines():
        stripped = physical.lstrip()
        if not open_line and (not stripped or stripped[0] in "#!"):
            continue
        line = open_line + stripped
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            open_line = line[:-1]
        else:
            lines.append(line)
            open_line = ""
    return [*lines, open_line] if open_line else lines


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _LETTERS.get(code, code)

    return _ESCAPE.sub(character, text).rstrip()


_FILES = ("ca_location", "certificate_location", "key_location")
_WIDTH = 100


class Keys:
    """The keys of MirrorMaker's configuration; each is taken, or noted with the reason why not.

    Args:
        given: values by dotted key.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.notes: dict[str, str] = {}
        self._taken: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """Return a value that is translated."""
        if key in self.given:
            self._taken.add(key)
        return self.given.get(key, default)

    def note(self, key: str, why: str) -> None:
        """Say why a key is not translated, or what to do about it; nothing if it is not there."""
        if key in self.given:
            self.notes[key] = why

    def rest(self) -> Iterator[str]:
        """Yield the keys that nobody took or noted."""
        return (key for key in self.given if key not in self._taken and key not in self.notes)


@dataclass(slots=True)
class Document:
    """A relay.yaml under construction.

    Args:
        tree: its keys.
        variables: environment variables that it refers to, with what belongs into them.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def secret(self, owner: str, what: str) -> str:
        """Return a reference to an environment variable: secrets do not belong into relay.yaml."""
        name = re.sub(r"\W+", "_", f"{owner}_{what}").upper().strip("_")
        name = name if name[0].isalpha() else f"_{name}"
        content = f"the {what} for {owner}"
        while self.variables.get(name, content) != content:  # of another owner: `a-b`, `a_b`
            name += "_"
        self.variables[name] = content
        return f"${{{name}}}"

    def render(self, origin: str, notes: dict[str, str]) -> str:
        """Return the file's text, with the notes as comments.

        Raises:
            ConfigError: relay's own loader refuses it.
        """
        missing = self._validate()
        lines = [f"Converted from {origin}. Read the notes, then run relay check and relay plan."]
        if self.variables:
            lines += ["", "Set these environment variables:"]
            lines += [f"  {name}: {what}" for name, what in self.variables.items()]
        if missing:
            lines += ["", "These files do not exist here:", *(f"  {name}" for name in missing)]
        if notes:
            lines += ["", "Not translated, or only in part:"]
            for key, why in notes.items():
                lines += textwrap.wrap(
                    f"  {key}: {why}",
                    _WIDTH - 2,
                    subsequent_indent="    ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
        head = "\n".join(f"# {line}".rstrip() for line in lines)
        body = yaml.safe_dump(self.tree, sort_keys=False, allow_unicode=True, width=_WIDTH)
        return f"{head}\n{body}"

    def _validate(self) -> list[str]:
        """Load it, with stand-ins for files that are not on this machine; return their names."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "relay.yaml"
            tree = copy.deepcopy(self.tree)
            missing = sorted(set(_replace_missing(tree, str(path))))
            path.write_text(yaml.safe_dump(tree), encoding="utf-8")
            try:
                settings.load(path, dict.fromkeys(self.variables, "x"))
            except ConfigError as error:
                what = str(error).replace(f"{path}:", "").strip()
                raise ConfigError(
                    f"the converted configuration is not valid: {what}",
                    remedy="correct the configuration that is converted",
                ) from None
        return missing


def _replace_missing(tree: Any, stand_in: str) -> Iterator[str]:
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            yield from _replace_missing(value, stand_in)
        elif key in _FILES and not Path(value).is_file():
            yield value
            tree[key] = stand_in


def mirror_name(text: str) -> str:
    """Return a valid name for a mirror."""
    name = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-") or "mirror"
    return name if name != "once" else "mirror-once"
