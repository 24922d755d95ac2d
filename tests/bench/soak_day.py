"""``python -m tests.bench.soak_day``: a whole healthy and a whole mixed day, and what would have fired; minutes."""

from __future__ import annotations

import argparse
import sys

from tests.support import servers
from tests.support.soak_day import NodeDay, replayed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--read", type=int, default=30, help="seconds between readings")
    parser.add_argument("--scrape", type=int, default=60, help="seconds between scrapes and evaluations")
    given = parser.parse_args()
    node_days = [
        NodeDay(scenario="healthy", hours=given.hours, read=given.read),
        NodeDay(scenario="mixed", hours=given.hours, read=given.read, instance="n2:9853", seed=2),
    ]
    with servers.scratch() as folder:
        fired, took = replayed(folder, node_days, scrape=given.scrape)
    print(", ".join(f"{what} {seconds:.0f} s" for what, seconds in took.items()))
    for (name, severity), firings in sorted(fired.by_alert.items()):
        for labels, at in firings:
            print(f"{name} {severity} after {at / 3600:.1f} h: {labels}")
    return 0 if set(fired.by_alert) == {("Watchdog", "none")} else 1


if __name__ == "__main__":
    sys.exit(main())
