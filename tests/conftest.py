"""What holds for all tests."""

from __future__ import annotations

# Before pytester can: it forgets modules that a test loaded, and numpy refuses to load twice.
import scipy.stats  # noqa: F401
from hypothesis import HealthCheck, settings

# Examples are not timed: the machine may be busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
