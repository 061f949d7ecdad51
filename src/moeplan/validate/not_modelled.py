"""Why a published row is not scored."""

from __future__ import annotations


class NotModelledError(Exception):
    """The row measures something that no operator here stands for; the message says what."""
