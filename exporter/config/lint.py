"""What a good configuration still costs: figures that never come, alerts that never fire; said once, never refused.

Alerts and dashboards are made from the daemon's names and not the other way round, so what they read stands here as
text; a test holds it against them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exporter.config.parsers import format_duration
from exporter.config.settings import Settings, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Alerts and dashboards, by name."""

    alerts: tuple[str, ...] = ()
    dashboards: tuple[str, ...] = ()


READERS = {
    "1m": Readers(dashboards=("Imbalance",)),
    "5m": Readers(
        alerts=("GatewayUneven", "HighErrorRatio"), dashboards=("Efficiency", "Fleet", "Imbalance", "Replica")
    ),
}
# Some figures are shown of the longest window only, to keep series few, and those who read them name this one.
LONGEST = "5m"
LONGEST_ONLY = {
    "common": ("energy and cost of a token and the share beyond the last bucket", ("Efficiency", "Fleet", "Replica")),
    "full": ("tokens per joule", ("Efficiency",)),
}


def config_lint(settings: Settings) -> list[str]:
    """Give a sentence for each thing worth a thought, beginning with the key that it is about."""
    labels = [window.label for window in settings.windows]
    said = [_missing(label, readers) for label, readers in READERS.items() if label not in labels]
    if LONGEST in labels and labels[-1] != LONGEST:
        what, dashboards = LONGEST_ONLY[settings.series]
        said.append(
            f"windows: with {labels[-1]} the {settings.series} set of series shows {what} over {labels[-1]} only, "
            f"and panels of the shipped {_boards(dashboards)} that read {LONGEST} stay empty; take out what is "
            f"longer than {LONGEST} if you use them"
        )
    return said + [_sparse(window, slow) for window in settings.windows if (slow := _slow(settings, window))]


def _slow(settings: Settings, window: Window) -> list[str]:
    """Name who is polled so seldom that the window may not hold two polls: every figure needs two."""
    engines = [("engine", one.name, one.interval) for one in settings.engines]
    gateways = [("gateway", one.name, one.interval) for one in settings.gateways]
    return [
        f"{kind} {name} is polled every {format_duration(interval)}"
        for kind, name, interval in engines + gateways
        if window.seconds < 2 * interval
    ]


def _sparse(window: Window, slow: Sequence[str]) -> str:
    first, more = slow[0], f", as are {len(slow) - 1} more" if len(slow) > 1 else ""
    return (
        f"windows: {window.label} is shorter than two intervals: {first}{more}, and figures over it are missing or "
        f"come and go; lengthen the window, or poll more often"
    )


def _missing(label: str, readers: Readers) -> str:
    silent = []
    if readers.alerts:
        silent.append(f"the shipped alerts {_listed(readers.alerts)} cannot fire")
    if readers.dashboards:
        silent.append(f"panels of the shipped {_boards(readers.dashboards)} stay empty")
    return f"windows: without {label} {' and '.join(silent)}; add {label} if you use them"


def _boards(names: Sequence[str]) -> str:
    return f"dashboard{'s' if len(names) > 1 else ''} {_listed(names)}"


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
