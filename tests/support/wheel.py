"""The wheel as users install it: built, and unpacked into a folder that is put on PYTHONPATH."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def unpacked(folder: Path) -> Path:
    """Build the wheel, and return the folder into which it was unpacked."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def environment(*path: Path) -> dict[str, str]:
    """Variables with which processes import from these folders, and not from the checkout."""
    unwanted = {"DAGSTER_HOME", "RELAY_CATALOG", "RELAY_CONFIG", "COLUMNS"}
    return {name: value for name, value in os.environ.items() if name not in unwanted} | {
        "PYTHONPATH": os.pathsep.join(map(str, path))
    }
