"""The keys that a reload cannot apply, because they take effect at the next start only.

Every other key is applied at once; a test goes through all of them.
"""

from __future__ import annotations

from operator import attrgetter

from exporter.config.settings import Settings

AT_START = ("listen", "web_config_file", "unauthenticated_health", "agent_check", "gpu.enabled", "web_page")


def waiting(begun: Settings, settings: Settings) -> list[str]:
    """Return the keys whose value differs from the one that the daemon was started with and still uses."""
    return [key for key in AT_START if attrgetter(key)(settings) != attrgetter(key)(begun)]


def outcome(old: Settings, settings: Settings, waits: list[str]) -> str:
    """Return one sentence on what a reload did; ``waits`` names the keys that wait for the next start."""
    if waits:
        verb = "waits" if len(waits) == 1 else "wait"
        return f"the new configuration is in use, except that {' and '.join(waits)} {verb} for a restart"
    return "nothing in the configuration has changed" if settings == old else "the new configuration is in use"
