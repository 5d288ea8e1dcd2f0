"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No test depends on the clock: a fresh clone builds Hypothesis's character tables in its first draw, and a
# loaded machine is slow.
settings.register_profile(
    "rubin-tune", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rubin-tune")
