"""``python -m tests.bench.soak_week``: a week of normal operation on a virtual clock, and what would have fired.

Traffic by day and night, two rollouts, a canary, a model that is scaled to zero each evening, batches at night, and a
restart of a daemon, on two nodes.  Exits with 0 if nothing fired but the watchdog.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from tests.support import servers
from tests.support.soak_day import NodeDay, replayed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--day-hours", type=float, default=24.0, help="length of a day; a short one for a quick look")
    parser.add_argument("--scrape", type=int, default=60, help="seconds between readings, scrapes and evaluations")
    parser.add_argument("--keep", type=pathlib.Path, help="folder that keeps the samples")
    given = parser.parse_args()
    hours = given.days * given.day_hours
    node_days = [
        NodeDay(scenario="healthy", hours=hours, read=given.scrape, plan="first"),
        NodeDay(scenario="week", hours=hours, read=given.scrape, instance="n2:9853", seed=2, plan="second"),
    ]
    with servers.scratch() as folder:
        where = given.keep or folder
        lookback = f"{given.scrape * 3 // 2}s"
        fired, took = replayed(where, node_days, day=given.day_hours, scrape=given.scrape, lookback=lookback)
    print(", ".join(f"{what} {seconds:.0f} s" for what, seconds in took.items()))
    for (name, severity), firings in sorted(fired.by_alert.items()):
        for labels, at in firings:
            print(f"{name} {severity} after {at / 3600:.1f} h: {labels}")
    return 0 if set(fired.by_alert) == {("Watchdog", "none")} else 1


if __name__ == "__main__":
    sys.exit(main())
