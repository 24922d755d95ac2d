"""Microseconds a line and a page: reading and understanding engine pages, against the reference parser.

python -m tests.bench.parse [FILE ...]

One line a page, then for each kind of engine the median of its pages.
"""

from __future__ import annotations

import pathlib
import statistics
import sys
import time
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from exporter.engines.detect import recognise
from exporter.engines.interpreter import EngineInterpreter
from exporter.engines.parse.text import PageReader

CAPTURES = pathlib.Path(__file__).parent.parent / "captures"


def microseconds(function: Callable[[], object], budget: float = 0.6) -> float:
    """Return the median CPU time of a call in microseconds."""
    function()
    started = time.process_time()
    function()
    rounds = max(5, min(2_000, int(budget / max(1e-6, time.process_time() - started))))
    spent = []
    for _ in range(5):
        started = time.process_time()
        for _ in range(max(1, rounds // 5)):
            function()
        spent.append((time.process_time() - started) / max(1, rounds // 5))
    return statistics.median(spent) * 1e6


def main(paths: list[str]) -> None:
    chosen = [pathlib.Path(path) for path in paths] or sorted(CAPTURES.glob("*.prom"))
    by_kind: dict[str, list[tuple[float, float]]] = {}
    print(f"{'page':50} {'lines':>6} {'split':>8} {'read':>8} {'+meaning':>9} {'reference':>10}   (µs a line)")
    for path in chosen:
        body = path.read_bytes()
        engine = recognise(body)
        if engine is None:
            continue
        interpreter = EngineInterpreter(engine)
        reader = PageReader(interpreter.wanted)
        lines = body.count(b"\n")
        costs = (
            microseconds(lambda: body.split(b"\n")),
            microseconds(lambda: reader.read(body)),
            microseconds(lambda: interpreter.read(reader.read(body), 0.0)),
            microseconds(lambda: list(text_string_to_metric_families(body.decode()))),
        )
        print(f"{path.stem[:50]:50} {lines:6} " + " ".join(f"{cost / lines:8.3f}" for cost in costs))
        by_kind.setdefault(engine.kind, []).append((costs[2] / lines, costs[2]))
    print(f"\n{'kind':16} {'pages':>6} {'µs a line':>10} {'µs a page':>10}   (read and understood)")
    for kind, timings in sorted(by_kind.items()):
        line, page = (statistics.median(column) for column in zip(*timings, strict=True))
        print(f"{kind:16} {len(timings):6} {line:10.3f} {page:10.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
