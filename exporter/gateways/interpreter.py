"""Interpret pages of any gateway by its table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from weakref import ref

from exporter.engines.parse.layout import Layout
from exporter.engines.parse.text import PageReader
from exporter.errors import PageError
from exporter.gateways.compile import CompiledGateway, LoadKey, compile_layout
from exporter.gateways.gateway import Gateway, Measure
from exporter.model import Backend, BackendLoad, GatewayReading

_OFF = -1.0  # what several routers write for "not measured": missing, without a warning


class GatewayInterpreter:
    """Turns pages of one gateway into readings; keeps what was compiled for the last layout."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._reader = PageReader(gateway.wanted_names().__contains__)
        self._compiled = CompiledGateway(ref(Layout(())))

    def still_matches(self, body: bytes) -> bool:
        """Return whether a page is still of this kind; a port may change hands."""
        return self.gateway.matches(self.gateway.to_exposition(body))

    def read(self, body: bytes, at: float) -> GatewayReading:
        """Interpret one page read at ``at``; raise PageError when nothing on it is of this kind of gateway."""
        body = self.gateway.to_exposition(body)
        page = self._reader.read(body)
        if page.layout is not self._compiled.layout():
            self._compiled = compile_layout(self.gateway, page.layout)
        compiled, numbers = self._compiled, page.numbers
        # A router that has sent nothing yet has no series of any backend, and is no error for it.
        if not compiled.positions and not self.gateway.matches(body):
            message = f"the page has no {self.gateway.marks[0]}* series. {self.gateway.hint}".strip()
            raise PageError("no_gateway_metrics", message)
        warnings = Counter(page.parse_warnings) + compiled.parse_warnings
        backends: dict[Backend, dict[str, float | bool]] = {}
        pools: dict[str, dict[str, float | bool]] = {}
        for key, positions in compiled.positions.items():
            value = _value(key, [numbers[p] for p in positions], compiled, warnings)
            if key.backend is None:
                load = pools.setdefault(key.pool, {})
            else:
                load = backends.setdefault(Backend(key.pool, key.backend), {})
            if value is not None:
                load[key.measure.value] = value
        for backend in compiled.idle:
            backends[backend][Measure.REQUESTS.value] = 0.0
        return GatewayReading(
            at=at,
            gateway=self.gateway.kind,
            backends={backend: _load(values) for backend, values in backends.items()},
            pools={pool: _load(values) for pool, values in pools.items()},
            truncated_pools=frozenset(compiled.truncated_pools),
            started=_sound(compiled.started, numbers),
            uptime=_sound(compiled.uptime, numbers),
            complete=page.complete,
            parse_warnings=dict(warnings),
        )


def _load(values: Mapping[str, float | bool]) -> BackendLoad:
    up = values.get("up")
    return BackendLoad(
        requests=values.get("requests"),
        errors=values.get("errors"),
        active=values.get("active"),
        queued=values.get("queued"),
        rate=values.get("rate"),
        up=None if up is None else bool(up),
        stale_endpoints=values.get("stale_endpoints"),
        poll_errors=values.get("poll_errors"),
        decode_only=values.get("decode_only"),
        disaggregated=values.get("disaggregated"),
    )


def _sound(position: int | None, numbers: list[float]) -> float | None:
    return numbers[position] if position is not None and 0.0 < numbers[position] < math.inf else None


def _value(
    key: LoadKey, values: list[float], compiled: CompiledGateway, warnings: Counter[str]
) -> float | bool | None:
    total = max(values) if key.measure is Measure.UP else sum(values)
    if not 0.0 <= total < math.inf:
        if total != _OFF:
            warnings["bad_number"] += 1
        return None
    if key.measure is Measure.UP:
        return not compiled.up.isdisjoint(values)
    return max(0.0, total - compiled.less.get(key, 0.0))
