"""One command on a machine with NVIDIA cards: what they answer, what that costs, and whether the page is right.

    python -m tests.bench.real_card --output DIR [--seconds 60] [--load]

Reads all cards with the daemon's own code and times each call of the driver, then runs the daemon and compares its
page with nvidia-smi (and dcgmi, if need be).  Into DIR go report.md, calls.json and the pages, without anything that
names you, your host, your cards or your processes: fit for a bug report.  Nothing on the machine is changed; --load
puts work on all cards, through torch or cupy.

Exit code 0: all agrees; 1: something differs, see report.md; 2: there is no driver to ask, or no card.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys

try:
    import prometheus_client as _  # noqa: F401
except ImportError:
    sys.exit("prometheus_client is missing; in a checkout: make test, or pip install -e '.[test]'")

from exporter.driver.nvml.errors import DriverUnavailable
from tests.bench.real_card.run import Run

WHAT_TO_DO = {
    "library": "Is NVIDIA's driver installed?  In a container: the NVIDIA runtime with the capability utility.",
    "driver": "The library is there, but its kernel module is not loaded: see dmesg, or try nvidia-smi.",
    "mismatch": "Library and kernel module are of two versions: restart the machine, or the container.",
    "no_permission": "May this user open /dev/nvidiactl and /dev/nvidia0?",
}


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.real_card",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output", required=True, type=pathlib.Path, help="folder for what is written; made if need be"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long the daemon runs; reading takes as long again"
    )
    parser.add_argument("--load", action="store_true", help="put work on all cards, if torch or cupy can be imported")
    asked = parser.parse_args()
    try:
        return Run(asked.output, asked.seconds, load=asked.load, give_up=give_up).all()
    except DriverUnavailable as error:
        print(f"no driver: {error}\n{WHAT_TO_DO.get(error.reason, 'Does nvidia-smi work?')}", file=sys.stderr)
        return 2


def give_up(call: str, seconds: float) -> None:
    """End here and now: a call that does not return cannot be stopped."""
    print(
        f"the driver hangs: {call} has not returned for {seconds:.0f} s; see dmesg for XIDs",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
