"""Loads scipy before pytester can: it forgets modules that a test loaded, and numpy refuses to load twice."""

import scipy.stats  # noqa: F401
