"""What a gateway is: a table of fields, and the one interpreter that reads every table.

A field says which number of a backend (or of a whole pool) it fills, under which names, newest first: the first name
that the page carries wins, so that a page with old and new names is not counted twice.  Several fields of one number
add up.  Pages that are no Prometheus text are translated into it first, so that they need no second interpreter.

Backends are bounded.  A pool with more of them shows the first and says which pool was cut, because shares of a part
would be wrong.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from exporter.engines.engine import clean
from exporter.engines.parse.text import Layout, PageReader, Series
from exporter.errors import PageError
from exporter.model import Backend, GatewayReading, Load

MAX_BACKENDS = 128  # of one gateway
MAX_POOLS = 64


class Measure(str, Enum):
    """A number of a backend; the value is its name in ``Load``."""

    REQUESTS = "requests"
    ERRORS = "errors"
    ACTIVE = "active"
    QUEUED = "queued"
    RATE = "rate"
    UP = "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of a gateway's table.

    ``backend``, ``pool``: labels that name them, the first one that a series has; without ``backend`` the number is
    the pool's.  ``where`` keeps only some series.  ``less`` is taken off: what this very scrape adds.  A backend is
    up when its number is exactly 1.
    """

    target: Measure
    names: tuple[str, ...]
    backend: tuple[str, ...] = ()
    pool: tuple[str, ...] = ()
    where: Callable[[Mapping[str, str]], bool] | None = None
    less: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A kind of gateway: how to recognise its page and what its names mean."""

    kind: str
    marks: tuple[str, ...]  # beginnings of sample names that only this kind has
    fields: tuple[Field, ...]
    started: tuple[str, ...] = ("process_start_time_seconds",)  # Unix time
    uptime: str = ""
    translate: Callable[[bytes], bytes | None] | None = None  # None from it: not this text
    hint: str = ""  # what to do when the page has no series of this gateway

    def wanted_names(self) -> frozenset[str]:
        """Every sample name whose value is needed."""
        return frozenset({*self.started, self.uptime, *(n for row in self.fields for n in row.names)} - {""})

    def text(self, body: bytes) -> bytes:
        """Give a page as exposition text: translated where it is another text of this kind, else as it is."""
        return (self.translate(body) if self.translate is not None else None) or body

    def marked(self, body: bytes) -> bool:
        """Say whether a sample of this kind stands on the page; comments and label values do not count."""
        names = b"|".join(re.escape(mark.encode()) for mark in self.marks)
        return re.search(rb"^(?:" + names + rb")[a-zA-Z0-9_:]*[{ ]", body, re.MULTILINE) is not None


_OFF = -1.0  # what several routers write for "not measured": missing, and nothing odd
_CREDENTIALS = re.compile(r"(?<=://)[^/@]*:[^/@]*@(?![0-9]+\Z)")  # but not the rank in http://host:8000@0


def backend_name(text: str) -> str:
    """Bound a backend's name, and take out what a URL may carry that is nobody's business."""
    if "://" in text:
        text = _CREDENTIALS.sub("", text.partition("?")[0])
    return clean(text)


_Key = tuple[Measure, str, str | None]  # pool, backend; None: the whole pool


@dataclass(slots=True)
class _Plan:
    """Positions in a page's numbers, compiled once per layout."""

    layout: Layout
    items: dict[_Key, list[int]] = field(default_factory=dict)
    less: dict[_Key, float] = field(default_factory=dict)
    backends: dict[Backend, None] = field(default_factory=dict)
    pools: dict[str, None] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    started: int | None = None
    uptime: int | None = None
    oddities: Counter[str] = field(default_factory=Counter)


class Interpreter:
    """Turns pages of one gateway kind into readings; keeps the plan of the last layout.  One per gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._reader = PageReader(gateway.wanted_names().__contains__)
        self._plan = _Plan(Layout(()))

    def knows(self, body: bytes) -> bool:
        """Say whether a page is still of this kind; a port may change hands."""
        return self.gateway.marked(self.gateway.text(body))

    def read(self, body: bytes, at: float) -> GatewayReading:
        """Interpret one page read at ``at``; raise PageError when nothing on it is of this kind of gateway."""
        body = self.gateway.text(body)
        page = self._reader.read(body)
        if page.layout is not self._plan.layout:
            self._plan = _compile(self.gateway, page.layout)
        plan, numbers = self._plan, page.numbers
        # A router that has sent nothing yet has no series of any backend, and is no error for it.
        if not plan.items and not self.gateway.marked(body):
            message = f"the page has no {self.gateway.marks[0]}* series. {self.gateway.hint}".strip()
            raise PageError("no_gateway_metrics", message)
        odd = Counter(page.oddities) + plan.oddities
        found: dict[tuple[str, str | None], dict[str, float | bool]] = {}
        for key, positions in plan.items.items():
            value = _value(key, [numbers[p] for p in positions], plan.less.get(key, 0.0), odd)
            load = found.setdefault(key[1:], {})
            if value is not None:
                load[key[0].value] = value
        return GatewayReading(
            at=at,
            gateway=self.gateway.kind,
            backends={(pool, name): _load(one) for (pool, name), one in found.items() if name is not None},
            pools={pool: _load(one) for (pool, name), one in found.items() if name is None},
            cut=frozenset(plan.cut),
            started=_sound(plan.started, numbers),
            uptime=_sound(plan.uptime, numbers),
            complete=page.complete,
            oddities=dict(odd),
        )


def _load(values: Mapping[str, float | bool]) -> Load:
    up = values.get("up")
    return Load(
        requests=values.get("requests"),
        errors=values.get("errors"),
        active=values.get("active"),
        queued=values.get("queued"),
        rate=values.get("rate"),
        up=None if up is None else bool(up),
    )


def _sound(position: int | None, numbers: list[float]) -> float | None:
    return numbers[position] if position is not None and 0.0 < numbers[position] < math.inf else None


def _value(key: _Key, values: list[float], less: float, odd: Counter[str]) -> float | bool | None:
    total = max(values) if key[0] is Measure.UP else sum(values)
    if not 0.0 <= total < math.inf:
        if total != _OFF:
            odd["bad_number"] += 1
        return None
    return total == 1.0 if key[0] is Measure.UP else max(0.0, total - less)


# ---------------------------------------------------------------------------------------- compiling a layout


def _compile(gateway: Gateway, layout: Layout) -> _Plan:
    plan = _Plan(layout)
    by_name: dict[str, list[tuple[int, Series]]] = {}
    for position, series in enumerate(layout.series()):
        by_name.setdefault(series.name, []).append((position, series))
    for row in gateway.fields:
        name = next((n for n in row.names if n in by_name), None)
        if name is not None:
            _compile_field(row, by_name[name], plan)
    plan.started = next((by_name[name][0][0] for name in gateway.started if name in by_name), None)
    plan.uptime = by_name[gateway.uptime][0][0] if gateway.uptime in by_name else None
    return plan


def _compile_field(row: Field, series_of_name: list[tuple[int, Series]], plan: _Plan) -> None:
    seen: set[frozenset[tuple[str, str]]] = set()
    for position, series in series_of_name:
        if row.where is not None and not row.where(series.labels):
            continue
        identity = frozenset(series.labels.items())  # labels in another order are the same series
        if identity in seen:
            plan.oddities["duplicate"] += 1
            continue
        seen.add(identity)
        pool = clean(_first(row.pool, series.labels))
        name = backend_name(_first(row.backend, series.labels)) if row.backend else None
        if name == "" or not _admitted(plan, pool, name):
            continue
        key = (row.target, pool, name)
        plan.items.setdefault(key, []).append(position)
        if row.less:
            plan.less[key] = row.less


def _first(labels: tuple[str, ...], found: Mapping[str, str]) -> str:
    return next((found[label] for label in labels if found.get(label)), "")


def _admitted(plan: _Plan, pool: str, name: str | None) -> bool:
    """Take a pool or a backend in while there is room; note what is left out."""
    if name is None:
        if pool not in plan.pools and len(plan.pools) >= MAX_POOLS:
            plan.oddities["too_many_pools"] += 1
            return False
        plan.pools[pool] = None
        return True
    if (pool, name) not in plan.backends and len(plan.backends) >= MAX_BACKENDS:
        plan.oddities["too_many_backends"] += 1
        plan.cut.add(pool)
        return False
    plan.backends[pool, name] = None
    return True
