"""What Spark reports if the Python of its tasks does not fit, as one line. On the driver."""

from __future__ import annotations

import re
import sys
from typing import Any

from relay_pipelines.errors import ConfigError

_FIRST_ON_PATH = "python3"
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_VERSION = re.compile(r"Python in worker has different version: (\S+) than")
_NO_PACKAGE = re.compile(
    r"ModuleNotFoundError: No module named '([^']+)'|: No module named (\S+)"
    r"|\[PACKAGE_NOT_INSTALLED\] (\S+)"
)
_OURS = "{}.{}".format(*sys.version_info)


def use_ours(context: Any) -> None:
    """Let the tasks of a program's own Spark run `spark.pyspark.python`, or this process's Python.

    PySpark reads no setting, and takes the first `python3` on PATH if PYSPARK_PYTHON was not set
    when it started; that is not the program's own if nobody has activated its environment.
    """
    if chosen := context.getConf().get("spark.pyspark.python"):
        context.pythonExec = chosen
    elif context.pythonExec == _FIRST_ON_PATH:
        context.pythonExec = sys.executable


def problem(error: Exception, *, remote: bool) -> ConfigError | None:
    """Return the error that names the cause, or None if the job failed for another reason.

    The driver tells executors which Python to start, by its path. That of a Spark Connect server
    is PYSPARK_PYTHON as set where it was started, and else the first `python3` there.

    Args:
        remote: whether the tasks are those of a Spark Connect server.
    """
    text = str(error)
    if match := _NO_PROGRAM.search(text):
        what = f"Spark's tasks have no Python: there is no {match[1]} where they run"
    elif match := _OTHER_VERSION.search(text):
        what = f"Spark's tasks run Python {match[1]}, and relay runs Python {_OURS}"
    elif match := _NO_PACKAGE.search(text):
        package = next(filter(None, match.groups())).partition(".")[0]
        what = f"the Python of Spark's tasks has no package {package}"
    else:
        return None
    python = f"a Python {_OURS} that has the packages of requirements.lock"
    remedy = (
        f"start the Spark Connect server with PYSPARK_PYTHON set to {python}"
        if remote
        else f"set spark.pyspark.python, in spark.conf, to the path on the executors of {python}"
    )
    return ConfigError(what, remedy=remedy)
