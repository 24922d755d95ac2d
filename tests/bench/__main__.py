"""``python -m tests.bench``: every budget in turn, about twenty minutes on a quiet machine."""

from __future__ import annotations

import subprocess
import sys

STEPS = (
    ("pages", ["tests.bench.parse"]),
    ("one card's cycle", ["tests.bench.nvml_cycle"]),
    ("whole node, W8", ["tests.bench.node", "--load", "W8", "--seconds", "30"]),
    ("whole node, D8: the defaults", ["tests.bench.node", "--load", "D8", "--seconds", "45"]),
    ("whole node, W8, full set", ["tests.bench.node", "--seconds", "20", "--series", "full"]),
    ("whole node, W8, two busy processes a core", ["tests.bench.node", "--seconds", "20", "--stress"]),
    ("TLS and a user against neither", ["tests.bench.web_config"]),
    ("beside other exporters", ["tests.bench.peers"]),
    ("diagnosis and verdicts", ["tests.bench.diagnosis"]),
    ("probes of verdicts", ["tests.bench.verdicts"]),
    ("the node web page", ["tests.bench.web_page"]),
    ("pushing beside scraping", ["tests.bench.push"]),
    ("bursts and a driver that hangs", ["tests.bench.burst"]),
    ("a storm of XIDs", ["tests.bench.xid_storm"]),
    ("hostile pages", ["tests.bench.malicious", "--seconds", "15"]),
    ("soak", ["tests.bench.soak", "--hours", "2"]),
    ("straggler accuracy", ["tests.bench.straggler_matrix", "--cycles", "100"]),
    ("a quiet day", ["tests.bench.soak_day"]),
)

for title, arguments in STEPS:
    print(f"\n== {title}: python -m {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", *arguments], check=False)
