"""``python -m tests.bench``: every budget of the design in turn, about seven minutes on a quiet machine."""

from __future__ import annotations

import subprocess
import sys

STEPS = (
    ("pages", ["tests.bench.parse"]),
    ("one card's cycle", ["tests.bench.nvml_cycle"]),
    ("whole node, common set", ["tests.bench.node", "--seconds", "30"]),
    ("whole node, engines every 5 s", ["tests.bench.node", "--seconds", "20", "--interval", "5s"]),
    ("whole node, full set", ["tests.bench.node", "--seconds", "20", "--series", "full"]),
    ("whole node, two busy processes a core", ["tests.bench.node", "--seconds", "20", "--stress"]),
    ("bursts and a driver that hangs", ["tests.bench.burst"]),
    ("a storm of XIDs", ["tests.bench.xid_storm"]),
    ("hostile pages", ["tests.bench.hostile", "--seconds", "15"]),
    ("soak", ["tests.bench.soak", "--polls", "50000"]),
    ("a quiet day", ["tests.bench.soak_day"]),
)

for title, arguments in STEPS:
    print(f"\n== {title}: python -m {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", *arguments], check=False)
