"""The daemon's own process: ``process_*`` as prometheus_client reads them, and thrift with memory."""

from __future__ import annotations

import ctypes
import functools
import gc
from typing import Any


@functools.cache
def _collector() -> Any:
    # Loaded at the first use: it brings an HTTP server that is not wanted, and would delay the first page.
    from prometheus_client import ProcessCollector  # noqa: PLC0415
    from prometheus_client.registry import CollectorRegistry  # noqa: PLC0415

    return ProcessCollector(registry=CollectorRegistry(auto_describe=False))


def exposition() -> dict[bool, str]:
    """Give the families as text 0.0.4 under False and as OpenMetrics under True."""
    text: dict[bool, list[str]] = {False: [], True: []}
    for family in _collector().collect():
        for openmetrics, lines in text.items():
            title = family.name + ("_total" if family.type == "counter" and not openmetrics else "")
            lines.append(f"# HELP {title} {family.documentation}\n# TYPE {title} {family.type}\n")
            lines += [f"{sample.name} {sample.value!r}\n" for sample in family.samples]
    return {openmetrics: "".join(lines) for openmetrics, lines in text.items()}


_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # of glibc's mallopt


def be_thrifty() -> None:
    """Keep the process small and its pauses short; to be called once, before threads start.

    glibc gives every thread an arena of its own that is never handed back: with a thread per engine that was 4 MiB
    of 48.  Blocks from 256 KiB on are given back when they are freed, which glibc stops doing after the first one.
    What was imported lives for ever, so the garbage collector need not look at it again and again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent with other C libraries
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)
        mallopt(_M_MMAP_THRESHOLD, 256 * 1024)
    gc.freeze()
    gc.enable()  # the command line switches it off while the program is loaded, which takes a tenth off the start
