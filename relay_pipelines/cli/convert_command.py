"""The command `convert`: the properties of MirrorMaker 2 as relay.yaml."""

from __future__ import annotations

import sys
from pathlib import Path

from relay_pipelines.errors import ConfigError
from relay_pipelines.migration import mirrormaker2


def run(file: Path, output: Path | None) -> int:
    """Convert a file; it never overwrites one.

    Raises:
        ConfigError: the file cannot be read or converted, or the output exists.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text", remedy="save it as UTF-8") from None
    try:
        converted = mirrormaker2.convert(text, file.absolute().parent)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error.what}", remedy=error.remedy) from None
    if output is None:
        sys.stdout.write(converted)
        return 0
    try:
        with output.open("x", encoding="utf-8") as opened:
            opened.write(converted)
    except FileExistsError:
        raise ConfigError(f"{output} exists", remedy="name another file, or remove it") from None
    return 0
