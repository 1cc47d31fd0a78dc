"""What Spark needs where the user id has no name, as in OpenShift's containers. On the driver.

Java then takes "?" as the user's name and folder: Ivy refuses such a folder, and Hadoop the user.
"""

from __future__ import annotations

import os
import pwd
import shlex
import tempfile
from collections.abc import Mapping

_OPTIONS = "SPARK_SUBMIT_OPTS"


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which Spark's JVM knows a user without a name; none for others.

    Args:
        environment: that of the JVM, whose own values are kept.
    """
    number = os.getuid()
    try:
        pwd.getpwuid(number)
    except KeyError:
        name = environment.get("SPARK_USER") or environment.get("HADOOP_USER_NAME") or str(number)
        home = environment.get("HOME") or tempfile.gettempdir()
        own = shlex.join([f"-Duser.name={name}", f"-Duser.home={home}"])
        # Java takes the last one
        options = f"{own} {environment.get(_OPTIONS, '')}".strip()
        return {"SPARK_USER": name, _OPTIONS: options}
    return {}
