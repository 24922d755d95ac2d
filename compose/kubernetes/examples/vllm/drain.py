"""Pre-stop hook of vLLM: wait until no request arrives and none is running, or until the time limit.

Kubernetes removes the pod from the Service at the same moment, and all proxies have to learn it; so the first seconds
always pass.
"""

from __future__ import annotations

import os
import re
import sys
import time
import urllib.error
import urllib.request

URL = os.environ.get("DRAIN_URL", "http://127.0.0.1:8000/metrics")
HEARD_AFTER = float(os.environ.get("DRAIN_HEARD_AFTER", "15"))  # seconds
PATIENCE = float(os.environ.get("DRAIN_PATIENCE", "300"))  # seconds in all; terminationGracePeriodSeconds is longer
PAUSE = float(os.environ.get("DRAIN_PAUSE", "1"))  # seconds between looks
MOST_SILENCE = 5  # looks; under load one page may well come late
MOST = 16_000_000  # bytes of a page
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy is for the world outside the pod
IN_WORK = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^\n]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


def in_work() -> float | None:
    """Return the requests that run or wait; None when the engine does not say."""
    try:
        with DIRECT.open(URL, timeout=5) as answer:
            page = answer.read(MOST).decode("utf-8", "replace")
    except (OSError, urllib.error.URLError):
        return None
    request_counts = [float(value) for value in IN_WORK.findall(page)]
    return sum(request_counts) if request_counts else None


def main() -> int:
    """Wait; always 0, since a stop must not be held up by the one who asks."""
    end = time.monotonic() + PATIENCE
    time.sleep(min(HEARD_AFTER, PATIENCE))
    silent = 0
    while time.monotonic() < end and silent < MOST_SILENCE:
        waiting = in_work()
        if waiting == 0:
            break
        silent = silent + 1 if waiting is None else 0
        time.sleep(PAUSE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
