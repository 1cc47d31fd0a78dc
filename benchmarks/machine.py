"""Describes the machine of a benchmark, without its name."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import confluent_kafka
import psutil
import pyspark

from benchmarks.clusters import BROKER_HEAP
from relay_pipelines import java
from relay_pipelines.local_kafka import jars


def describe() -> dict[str, str]:
    """The properties that a reader needs to compare figures."""
    return {
        "CPU": f"{psutil.cpu_count()} cores, {_cpu_model()}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "OS": f"{_distribution()}, kernel {platform.release().split('-')[0]}",
        "JDK": _jdk(),
        "Python": platform.python_version(),
        "Kafka brokers and MirrorMaker 2": jars.KAFKA_VERSION,
        "Spark": pyspark.__version__,
        "confluent-kafka": confluent_kafka.__version__,
        "brokers": "one per cluster, on the same machine over the loopback interface,"
        f" -Xmx{BROKER_HEAP}",
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    return match[1] if match else platform.processor() or platform.machine()


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.platform(terse=True)


def _jdk() -> str:
    said = subprocess.run(
        [java.find().executable, "-version"], capture_output=True, text=True, check=False
    ).stderr
    match = re.search(r'version "([^"]+)"', said)
    return match[1] if match else "unknown"
