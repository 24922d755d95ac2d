"""The simulated nodes as targets: a name each, whatever address serves them."""

from __future__ import annotations

from typing import Any

JOB = "shardwatch"  # rules that notice a missing daemon name it
# What the daemon never reaches, as in every other configuration of this directory.
LIMITS = {
    "sample_limit": 12_000,
    "body_size_limit": "64MB",
    "label_limit": 64,
    "label_name_length_limit": 128,
    "label_value_length_limit": 2_048,
}


def scrape(address: str, count: int, *, interval: str) -> dict[str, Any]:
    """Return a scrape configuration for nodes 0 to ``count`` − 1, all served at ``address`` (host:port)."""
    nodes = [
        {"targets": [address], "labels": {"instance": f"node-{n:05}:9853", "__metrics_path__": f"/node/{n}/metrics"}}
        for n in range(count)
    ]
    return {"job_name": JOB, "scrape_interval": interval, **LIMITS, "static_configs": nodes}
