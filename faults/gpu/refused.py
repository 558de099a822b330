"""A disturbance that a node will not have: something it takes is missing, or it would go too far."""

from __future__ import annotations


class Refused(RuntimeError):
    """The reason names what is missing and how to get it."""
