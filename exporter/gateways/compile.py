"""Compile a gateway's table and one page's layout into positions in the page's numbers.

Backends are bounded.  A pool with more of them shows the first and says which pool was cut, because shares of a part
would be wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple
from weakref import ReferenceType, ref

from msgspec import Struct, field

from exporter.engines.engine import clean
from exporter.engines.parse.layout import Layout
from exporter.engines.parse.line import Series
from exporter.gateways.gateway import Gateway, GatewayField, Measure
from exporter.model import Backend
from exporter.model.outcome import RequestOutcome

MAX_BACKENDS = 128  # of one gateway
MAX_POOLS = 64

_CREDENTIALS = re.compile(r"(?<=://)[^/@]*:[^/@]*@(?![0-9]+\Z)")  # but not the rank in http://host:8000@0


def backend_name(text: str) -> str:
    """Return a backend's name without credentials and query, bounded in length."""
    if "://" in text:
        text = _CREDENTIALS.sub("", text.partition("?")[0])
    return clean(text)


class LoadKey(NamedTuple):
    """A number of a backend; of the whole pool where ``backend`` is None."""

    measure: Measure
    pool: str
    backend: str | None


class CompiledGateway(Struct):
    """Positions in a page's numbers, compiled once per layout."""

    layout: ReferenceType[Layout]  # its texts are the reader's to keep
    positions: dict[LoadKey, list[int]] = {}
    less: dict[LoadKey, float] = {}
    up: frozenset[float] = frozenset((1.0,))  # numbers of a backend that takes requests
    backends: dict[Backend, None] = {}
    pools: dict[str, None] = {}
    truncated_pools: set[str] = set()
    idle: frozenset[Backend] = frozenset()  # have had no request yet
    started: int | None = None
    uptime: int | None = None
    parse_warnings: Counter[str] = field(default_factory=Counter)


def compile_layout(gateway: Gateway, layout: Layout) -> CompiledGateway:
    """Find every field of the table on the page."""
    compiled = CompiledGateway(ref(layout))
    by_name: dict[str, list[tuple[int, Series]]] = {}
    for position, series in enumerate(layout.series()):
        by_name.setdefault(series.name, []).append((position, series))
    for row in gateway.fields:
        name = next((n for n in row.names if n in by_name), None)
        if name is not None:
            _compile_field(row, by_name[name], compiled)
    if gateway.counts_from_first:
        compiled.idle = _idle(compiled)
    compiled.started = next((by_name[name][0][0] for name in gateway.started if name in by_name), None)
    compiled.uptime = by_name[gateway.uptime][0][0] if gateway.uptime in by_name else None
    return compiled


def _idle(compiled: CompiledGateway) -> frozenset[Backend]:
    counted = {
        Backend(key.pool, key.backend)
        for key in compiled.positions
        if key.measure is Measure.REQUESTS and key.backend is not None
    }
    return frozenset(compiled.backends.keys() - counted) if counted else frozenset()


def _compile_field(row: GatewayField, series_of_name: list[tuple[int, Series]], compiled: CompiledGateway) -> None:
    seen: set[frozenset[tuple[str, str]]] = set()
    for position, series in series_of_name:
        if (row.where is not None and not row.where(series.labels)) or not _is_error(row, series.labels):
            continue
        identity = frozenset(series.labels.items())  # labels in another order are the same series
        if identity in seen:
            compiled.parse_warnings["duplicate"] += 1
            continue
        seen.add(identity)
        pool = clean(_first(row.pool, series.labels))
        name = backend_name(_first(row.backend, series.labels)) if row.backend else None
        if name == "" or not _admitted(compiled, pool, name):
            continue
        key = LoadKey(row.target, pool, name)
        compiled.positions.setdefault(key, []).append(position)
        if row.target is Measure.UP:
            compiled.up = frozenset(row.up)
        if row.less:
            compiled.less[key] = row.less


def _is_error(row: GatewayField, labels: Mapping[str, str]) -> bool:
    """Return whether a series counts errors, if that is what the field asks for."""
    return row.outcomes is None or row.outcomes.classify(_first(row.labels, labels)) is RequestOutcome.ERROR


def _first(labels: tuple[str, ...], values: Mapping[str, str]) -> str:
    return next((values[label] for label in labels if values.get(label)), "")


def _admitted(compiled: CompiledGateway, pool: str, name: str | None) -> bool:
    """Admit a pool or a backend while there is room; count what is left out."""
    if name is None:
        if pool not in compiled.pools and len(compiled.pools) >= MAX_POOLS:
            compiled.parse_warnings["too_many_pools"] += 1
            return False
        compiled.pools[pool] = None
        return True
    if Backend(pool, name) not in compiled.backends and len(compiled.backends) >= MAX_BACKENDS:
        compiled.parse_warnings["too_many_backends"] += 1
        compiled.truncated_pools.add(pool)
        return False
    compiled.backends[Backend(pool, name)] = None
    return True
