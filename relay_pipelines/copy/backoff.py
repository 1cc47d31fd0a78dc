"""The wait between attempts: doubled from the least to the most, with jitter."""

from __future__ import annotations

from tenacity import wait_exponential, wait_random
from tenacity.wait import wait_base

from relay_pipelines.model import CopyOptions


def backoff(options: CopyOptions) -> wait_base:
    """Return the wait, for tenacity."""
    least, most = options.backoff_min_ms / 1000, options.backoff_max_ms / 1000
    return wait_exponential(multiplier=least, max=most) + wait_random(0, least)
