"""``python -m tests.bench.soak_day``: a whole healthy and a whole mixed day, and what would have fired; minutes."""

from __future__ import annotations

import argparse
import sys

from tests.support import servers, soak_day


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--read", type=int, default=30, help="seconds between readings")
    parser.add_argument("--scrape", type=int, default=60, help="seconds between scrapes and evaluations")
    given = parser.parse_args()
    days = {"n1:9853": ("healthy", {}), "n2:9853": ("mixed", {"seed": 2})}
    with servers.scratch() as folder:
        fired, took = soak_day.replayed(folder, days, hours=given.hours, read=given.read, scrape=given.scrape)
    print(", ".join(f"{what} {seconds:.0f} s" for what, seconds in took.items()))
    for (name, severity), found in sorted(fired.items()):
        for labels, at in found:
            print(f"{name} {severity} after {at / 3600:.1f} h: {labels}")
    return 0 if set(fired) == {("Watchdog", "none")} else 1


if __name__ == "__main__":
    sys.exit(main())
