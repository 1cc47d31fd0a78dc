"""From a file to `Settings`, or to one error that names everything wrong with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from relay_pipelines.errors import ConfigError
from relay_pipelines.settings import yaml_file
from relay_pipelines.settings.interpolation import Interpolation
from relay_pipelines.settings.models import Settings
from relay_pipelines.settings.validation_errors import Problem, describe, dotted


def load(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Read and check a relay.yaml.

    Args:
        path: the file; relative paths in it start at its folder.
        environment: what `${ENV_VAR}` refers to; the process's own when None.

    Raises:
        ConfigError: one line per problem; if there are several, below a line that counts them.
            Never holds a secret.
    """
    written = yaml_file.read(path)
    if written is None:
        raise ConfigError(f"{path} is empty", remedy="start from relay.example.yaml")
    folder = path.absolute().parent
    interpolation = Interpolation(os.environ if environment is None else environment, folder)
    filled = interpolation.fill_in(written)
    problems = list(interpolation.problems)
    try:
        settings = Settings.model_validate(filled, context={"folder": folder})
    except ValidationError as error:
        unresolved = [location for location, _ in problems]
        problems += [
            problem
            for problem in describe(error, Settings, written)
            if not _follows_from(problem, unresolved)
        ]
    if problems:  # raised here and not above: a chained pydantic error would carry the values along
        raise ConfigError(_message(path, problems))
    return settings


def _follows_from(problem: Problem, unresolved: Sequence[tuple[str | int, ...]]) -> bool:
    """Whether the value is wrong only because its reference could not be filled in."""
    return any(problem[0][: len(location)] == location for location in unresolved)


def _message(path: Path, problems: Sequence[Problem]) -> str:
    lines = [f"{dotted(location)}: {text}" if location else text for location, text in problems]
    return (
        f"{path}: {lines[0]}"
        if len(lines) == 1
        else "\n  ".join([f"{path}: {len(lines)} problems", *lines])
    )
