"""Hypothesis profiles: `quick` by default; `--hypothesis-profile=exhaustive` before a release."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# other processes share the machine: a deadline per example would measure them
settings.register_profile(
    "quick", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "exhaustive", max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quick")
