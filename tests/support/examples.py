"""How many examples hypothesis tries: few while a developer waits, all of them in CI.

``HYPOTHESIS_PROFILE=ci pytest …`` tries as many as CI does.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

DEV_SHARE = 5  # CI tries this many times as many
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") == "true" else "dev")


def register() -> None:
    """Register both profiles and load the one that is asked for; deadlines are for quiet machines."""
    settings.register_profile("ci", deadline=None, max_examples=100)
    settings.register_profile("dev", deadline=None, max_examples=100 // DEV_SHARE)
    settings.load_profile(PROFILE)


def scaled(number: int) -> int:
    """Return ``number`` in CI and a fifth of it elsewhere."""
    return number if PROFILE == "ci" else max(1, number // DEV_SHARE)


def examples(number: int, **more: Any) -> settings:
    """Return settings that try ``number`` examples in CI and a fifth of them elsewhere."""
    return settings(max_examples=scaled(number), deadline=None, **more)
