"""What a good configuration still costs whoever uses the shipped alerts and dashboards: said once, never refused.

Alerts and dashboards are made from the daemon's names and not the other way round, so what they read stands here as
text; a test holds it against them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exporter.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Alerts and dashboards, by name."""

    alerts: tuple[str, ...] = ()
    dashboards: tuple[str, ...] = ()


READERS = {
    "1m": Readers(dashboards=("Imbalance",)),
    "5m": Readers(
        alerts=("GatewayUneven", "RequestsFail"), dashboards=("Efficiency", "Fleet", "Imbalance", "Replica")
    ),
}
# Some figures are shown of the longest window only, to keep series few, and those who read them name this one.
LONGEST = "5m"
LONGEST_ONLY = {
    "common": ("energy and cost of a token and the share beyond the last bucket", ("Efficiency", "Fleet", "Replica")),
    "full": ("tokens per joule and the share beyond the last bucket", ("Efficiency", "Replica")),
}


def advice(settings: Settings) -> list[str]:
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
    return said


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
