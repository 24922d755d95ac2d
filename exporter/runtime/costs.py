"""Tracks what the economics need: energy and tokens over the windows, and idle time, by GPU.

Owned by the thread that publishes, and fed once per snapshot; not locked.  A replica's energy is taken at the very
instants at which its tokens were counted, interpolated between the two readings of each GPU around it, so that both
cover the same time.  That instant is a little in the past: the newest one that has a reading on either side.

The arithmetic is in ``derive.economics``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from exporter.derive import economics
from exporter.derive.economics import HOUR, Consumed, Costs, EnergyMeter
from exporter.derive.windows import History
from exporter.model import (
    CardState,
    Economics,
    EngineReading,
    GpuAssignment,
    ReplicaState,
    ReplicaWindow,
    Signal,
    TokenCount,
    Window,
    WindowFigures,
)


class _GpuShare(NamedTuple):
    """The share of a GPU's energy that is a replica's; ``counted_since`` is when its energy began to be counted."""

    uuid: str
    share: float
    counted_since: float


class _WindowUsage(NamedTuple):
    """What a replica consumed over one window."""

    window: str
    joules: float
    tokens: float


class _Idle(Struct):
    """Idle seconds of one GPU, and their cost in ``currency``."""

    at: float
    seconds: float = 0.0
    cost: float = 0.0
    currency: str = ""


class _ReplicaUsage:
    """One replica: its GPUs, what it consumed, and the newest count of tokens that waits for its energy."""

    def __init__(self, shares: tuple[_GpuShare, ...], windows: Sequence[Window]) -> None:
        self.shares = shares
        self.history: History[Consumed] = History(windows)
        self._waiting: TokenCount | None = None

    def add(self, generated: TokenCount, meters: Mapping[str, EnergyMeter]) -> None:
        """Record the tokens that wait as soon as the energy up to their instant is known."""
        self._record(meters)
        latest = self.history.latest
        if latest is None or generated.at > latest.at:
            self._waiting = generated
            self._record(meters)

    def _record(self, meters: Mapping[str, EnergyMeter]) -> None:
        if self._waiting is None:
            return
        at, tokens = self._waiting
        joules = 0.0
        for gpu in self.shares:
            known = economics.joules_at(meters[gpu.uuid], at)
            if known is None:
                return
            joules += gpu.share * known
        self.history.add(Consumed(at=at, joules=joules, tokens=tokens))
        self._waiting = None


class CostTracker:
    """Computes the economics of each snapshot, and keeps what the next one needs."""

    def __init__(self) -> None:
        self._windows: Sequence[Window] = ()
        self._meters: dict[str, EnergyMeter] = {}
        self._usages: dict[str, _ReplicaUsage] = {}
        self._idle: dict[str, _Idle] = {}
        self._assignments: Sequence[GpuAssignment] = ()
        self._shares: dict[str, dict[str, float]] = {}
        self._users: dict[str, list[tuple[str, str]]] = {}  # uuid → (replica, rank)

    def update(
        self,
        cards: Sequence[CardState],
        replicas: Sequence[ReplicaState],
        assignments: Sequence[GpuAssignment],
        *,
        windows: Sequence[Window],
        costs: Costs,
    ) -> Economics:
        """Record what the sources read since the last call, and return the figures.

        New windows start with what the old ones kept; counters of idle time go on.
        """
        if windows != self._windows:
            self._windows = windows
            for known in self._usages.values():
                known.history = known.history.with_windows(windows)
        if assignments is not self._assignments:
            self._assign(assignments)
        currency = costs.currency or ""
        prices = {
            card.facts.uuid: costs.gpu_hour[card.facts.name]
            for card in cards
            if currency and card.facts.name in costs.gpu_hour
        }
        idle = self._update_idle(cards, replicas, prices, currency)
        revenue = _revenue(replicas, costs) if currency else {}
        per_token, per_joule = self._energy(replicas, self._read_meters(cards))
        return Economics(
            currency=currency,
            prices=prices,
            joules_per_token=per_token,
            tokens_per_joule=per_joule,
            cost_per_million=self._cost(replicas, prices, lambda window: window.generation_token_rate),
            cost_per_million_prompt=self._cost(replicas, prices, lambda window: window.prompt_token_rate),
            cost_per_million_processed=self._cost(replicas, prices, economics.processed_rate),
            revenue_per_hour=revenue,
            revenue_to_cost=self._to_cost(revenue, prices),
            idle_seconds={uuid: known.seconds for uuid, known in idle.items()},
            idle_cost={uuid: known.cost for uuid, known in idle.items() if uuid in prices},
        )

    def _assign(self, assignments: Sequence[GpuAssignment]) -> None:
        self._assignments = assignments
        self._shares = economics.gpu_shares(assignments)
        self._users = {}
        for assignment in assignments:
            self._users.setdefault(assignment.uuid, []).append((assignment.replica, assignment.rank))

    # ------------------------------------------------------------------ energy and tokens

    def _read_meters(self, cards: Sequence[CardState]) -> set[str]:
        """Follow the energy counters; return the GPUs that have one now.  The others keep their meters."""
        shown = set()
        for card in cards:
            raw = None if card.reading is None else card.reading.signals.get(Signal.ENERGY)
            if card.reading is not None and raw is not None:
                uuid = card.facts.uuid
                shown.add(uuid)
                self._meters[uuid] = economics.update_meter(self._meters.get(uuid), card.reading.at, raw)
        present = {card.facts.uuid for card in cards}
        self._meters = {uuid: meter for uuid, meter in self._meters.items() if uuid in present}
        return shown

    def _energy(
        self, replicas: Sequence[ReplicaState], shown: set[str]
    ) -> tuple[dict[ReplicaWindow, float], dict[ReplicaWindow, float]]:
        """Return joules per token and tokens per joule."""
        per_token: dict[ReplicaWindow, float] = {}
        per_joule: dict[ReplicaWindow, float] = {}
        kept: dict[str, _ReplicaUsage] = {}
        for replica in replicas:
            usage = self._usage_of(replica)
            if usage is None:
                continue
            kept[replica.name] = usage
            # Both sides must be read now: otherwise the figures would stand still and be old.
            if replica.generated_tokens is None or not self._shares[replica.name].keys() <= shown:
                continue
            usage.add(replica.generated_tokens, self._meters)
            for window, joules, tokens in _consumed(usage.history):
                if tokens > 0:
                    per_token[ReplicaWindow(replica.name, window)] = joules / tokens
                if joules > 0:
                    per_joule[ReplicaWindow(replica.name, window)] = tokens / joules
        self._usages = kept
        return per_token, per_joule

    def _usage_of(self, replica: ReplicaState) -> _ReplicaUsage | None:
        """Return the replica's usage: a new one with other GPUs or another count, None without energy."""
        by_uuid = self._shares.get(replica.name)
        if not by_uuid or not by_uuid.keys() <= self._meters.keys():
            return None
        shares = tuple(_GpuShare(uuid, share, self._meters[uuid].begun) for uuid, share in by_uuid.items())
        usage = self._usages.get(replica.name)
        if usage is not None and usage.shares == shares:
            latest = usage.history.latest
            if latest is None or replica.generated_tokens is None or replica.generated_tokens.tokens >= latest.tokens:
                return usage
        return _ReplicaUsage(shares, self._windows)

    def _cost(
        self,
        replicas: Sequence[ReplicaState],
        prices: Mapping[str, float],
        rate_of: Callable[[WindowFigures], float | None],
    ) -> dict[ReplicaWindow, float]:
        costs: dict[ReplicaWindow, float] = {}
        for replica in replicas:
            price = economics.price_per_hour(self._shares.get(replica.name, {}), prices)
            if price is None:
                continue
            for label, figures in replica.windows.items():
                rate = rate_of(figures)
                cost = None if rate is None else economics.cost_per_million(price, rate)
                if cost is not None:
                    costs[ReplicaWindow(replica.name, label)] = cost
        return costs

    def _to_cost(
        self, revenue: Mapping[ReplicaWindow, float], prices: Mapping[str, float]
    ) -> dict[ReplicaWindow, float]:
        """Return the revenue over the price of the replica's GPUs, where that is known and not 0."""
        hours = {name: economics.price_per_hour(shares, prices) for name, shares in self._shares.items()}
        return {at: earned / price for at, earned in revenue.items() if (price := hours.get(at.replica))}

    # ------------------------------------------------------------------ idle time

    def _update_idle(
        self, cards: Sequence[CardState], replicas: Sequence[ReplicaState], prices: Mapping[str, float], currency: str
    ) -> Mapping[str, _Idle]:
        """Add the time between two readings of a GPU that was idle at the second; return the GPUs read now."""
        readings = {replica.name: replica.reading for replica in replicas}
        shown: dict[str, _Idle] = {}
        for card in cards:
            uuid, reading = card.facts.uuid, card.reading
            if reading is None:
                continue
            users: list[tuple[EngineReading | None, str]] = [
                (readings.get(name), rank) for name, rank in self._users.get(uuid, ())
            ]
            idle = economics.is_idle(card, users)
            known = self._idle.get(uuid)
            if idle is None:
                continue
            if known is None:
                known = self._idle[uuid] = _Idle(at=reading.at)
            if currency != known.currency:
                known.cost, known.currency = 0.0, currency
            seconds = max(0.0, reading.at - known.at)
            if idle:
                known.seconds += seconds
                known.cost += seconds / HOUR * prices.get(uuid, 0.0)
            known.at = reading.at
            shown[uuid] = known
        self._expire(cards, shown)
        return shown

    def _expire(self, cards: Sequence[CardState], shown: Mapping[str, _Idle]) -> None:
        """Skip the time in which a GPU was not read, and drop the GPUs that are gone for good."""
        present = {card.facts.uuid for card in cards}
        for uuid, known in list(self._idle.items()):
            if uuid not in present:
                del self._idle[uuid]
            elif uuid not in shown:
                known.at = float("inf")


def _revenue(replicas: Sequence[ReplicaState], costs: Costs) -> dict[ReplicaWindow, float]:
    """Return the revenue per hour of each replica whose model has a price."""
    return {
        ReplicaWindow(replica.name, label): revenue
        for replica in replicas
        if (price := costs.models.get(replica.labels.model)) is not None
        for label, figures in replica.windows.items()
        if (revenue := economics.revenue_per_hour(price, figures)) is not None
    }


def _consumed(history: History[Consumed]) -> list[_WindowUsage]:
    """Return the usage over every window that covers some time."""
    latest = history.latest
    usages = []
    for label in history.labels:
        base = history.base(label)
        if latest is not None and base is not None and latest.at > base.at:
            usages.append(_WindowUsage(label, latest.joules - base.joules, latest.tokens - base.tokens))
    return usages
