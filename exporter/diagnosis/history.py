"""What findings need of the past beyond a snapshot's windows: restarts, hit rates, what counters grew by."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from math import inf

from msgspec import Struct, field

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.counters import SAMPLE_SECONDS, Counter, CounterWindow
from exporter.diagnosis.idle_gpus import IdleGpu, IdleGpus
from exporter.diagnosis.view import accepted_length, accepted_ratio, longest_window, requests
from exporter.model import EMPTY, Detail, Quantity, ReplicaState, Snapshot, Stage
from exporter.model.median import median
from exporter.model.nic import NicPort, NicPortKey, NicState
from exporter.model.store import StoreQuantity, StoreState

PAST_SAMPLE_SECONDS = 60.0
PAST_FROM, PAST_TO = 3600.0, 1800.0  # seconds ago: long enough not to follow a slow decline
MIN_SAMPLES = 10  # of the past
THERMAL, BRAKE = ("sw_thermal_slowdown", "hw_thermal_slowdown"), ("hw_power_brake_slowdown",)
POWER_CAP = "sw_power_cap"
_REASONS = (*THERMAL, *BRAKE, POWER_CAP)
QUEUE_SAMPLE_SECONDS = 30.0


class Mean(Struct, frozen=True):
    """The mean of the latencies observed during the window, in seconds."""

    seconds: float
    observations: float


class ReplicaPast(Struct, frozen=True, kw_only=True):
    """What is known of one replica's past.  Rates are per second over the window; None: not known yet."""

    restarts: int = 0  # in the last RESTART_SECONDS
    hit_ratio: float | None = None  # median of the half hour that ended half an hour ago
    accepted_ratio: float | None = None  # of drafted tokens; as hit_ratio
    accepted_length: float | None = None  # tokens of a draft; as hit_ratio
    generation_rate: float | None = None  # tokens per second
    served_last: bool = False  # requests were running when it was last read
    served_ago: float = inf  # seconds since requests were running
    down_for: float = 0.0  # seconds
    has_generated: bool = False  # since the daemon's start
    running: float | None = None  # requests, the mean over the window
    token_rate: float | None = None  # read and generated
    lookup_rate: float | None = None  # tokens looked up in the prefix cache
    preemption_rate: float | None = None
    transfers_failed: float | None = None  # of KV caches between prefill and decode, during the window
    finished: float | None = None  # requests during the window
    queue: tuple[float, ...] = ()  # mean of the window that ends now, one step ago, two steps ago; empty: not known
    latency: Mapping[Stage, Mean] = EMPTY


class PoolPast(Struct, frozen=True, kw_only=True):
    """What a pool of a gateway answered during the window."""

    requests: float
    errors: float | None  # None: the gateway counts none
    rate: float  # requests per second
    error_rate: float | None = None  # per second
    poll_errors: float | None = None  # of an endpoint picker that reads the metrics of engines


class NicPast(Struct, frozen=True, kw_only=True):
    """What the counters of an adapter's port grew by during the window; None: not known."""

    link_downs: float | None = None
    errors: Mapping[str, float] = EMPTY  # type → count


class Past(Struct, frozen=True, kw_only=True):
    """The past of every subject of a snapshot."""

    replicas: Mapping[str, ReplicaPast] = EMPTY  # by name
    throttled: Mapping[tuple[str, str], float] = EMPTY  # (uuid, reason) → ratio of the window's time
    pools: Mapping[tuple[str, str], PoolPast] = EMPTY  # (gateway, pool)
    nics: Mapping[NicPortKey, NicPast] = EMPTY
    store_errors: Mapping[str, Mapping[str, float]] = EMPTY  # store → operation → count during the window
    idle_gpus: Mapping[str, IdleGpu] = EMPTY  # by UUID

    def of(self, replica: str) -> ReplicaPast:
        """Return the past of a replica, an empty one where nothing is known."""
        return self.replicas.get(replica, _UNKNOWN)


_UNKNOWN = ReplicaPast()


class _Record(Struct):
    counted: int  # restarts when it was seen last
    restarted_at: deque[float]
    samples: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)  # figure → (at, value)
    served_last: bool = False
    served_at: float = -inf
    read_at: float | None = None
    queue: deque[tuple[float, float]] = field(default_factory=deque)  # (at, requests waiting)


class DiagnosisHistory:
    """Follows every subject of successive snapshots.  Bounded by those of the newest."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._counters = CounterWindow()
        self._idle_gpus = IdleGpus()
        self._active: dict[Counter, float] = {}  # seconds, where the driver does not measure them
        self._running: dict[Counter, float] = {}  # request seconds
        self._sampled_at: float | None = None
        self._throttled: Mapping[tuple[str, str], float] = EMPTY
        self._pools: Mapping[tuple[str, str], PoolPast] = EMPTY
        self._nics: Mapping[NicPortKey, NicPast] = EMPTY
        self._stores: Mapping[str, Mapping[str, float]] = EMPTY

    def update(self, snapshot: Snapshot) -> Past:
        """Return the past of each subject; to be called once for each snapshot, in its order."""
        if self._counters.is_due(snapshot.at):
            self._counters.update(snapshot.at, dict(self._read(snapshot)))
            self._sampled_at = snapshot.at
            self._throttled = {
                # A reading and its snapshot are of different moments, so the quotient may exceed 1.
                (card.facts.uuid, reason): min(1.0, share)
                for card in snapshot.cards
                for reason in _REASONS
                if (share := self._counters.rate(("gpu", card.facts.uuid, reason))) is not None
            }
            self._pools = dict(self._pool_pasts(snapshot))
            self._nics = {nic.port.key: self._nic_past(nic) for nic in snapshot.nics}
            self._stores = {store.name: self._store_errors(store) for store in snapshot.stores}
        records = {
            replica.name: self._records.get(replica.name) or _Record(replica.restarts, deque(maxlen=16))
            for replica in snapshot.replicas
        }
        self._records = records
        return Past(
            replicas={
                replica.name: self._past(records[replica.name], replica, snapshot.at) for replica in snapshot.replicas
            },
            throttled=self._throttled,
            pools=self._pools,
            nics=self._nics,
            store_errors=self._stores,
            idle_gpus=self._idle_gpus.update(snapshot.cards),
        )

    def _read(self, snapshot: Snapshot) -> Iterator[tuple[Counter, float]]:
        for replica in snapshot.replicas:
            yield from _of_replica(replica)
        yield from self._of_loads(snapshot)
        yield from self._of_gpus(snapshot)
        for gateway in snapshot.gateways:
            for pool, load in gateway.reading.pools.items() if gateway.reading is not None else ():
                for what, value in (("requests", load.requests), ("errors", load.errors), ("poll", load.poll_errors)):
                    if value is not None:
                        yield ("pool", gateway.name, pool, what), value
        for nic in snapshot.nics:
            yield from _of_nic(nic.port)
        for store in snapshot.stores:
            for operation, count in _errors(store).items():
                yield ("store", store.name, operation), count

    def _of_loads(self, snapshot: Snapshot) -> Iterator[tuple[Counter, float]]:
        """Yield the running requests times seconds: what they grow by is the mean load."""
        seconds = 0.0 if self._sampled_at is None else snapshot.at - self._sampled_at
        self._running = {
            name: self._running.get(name, 0.0) + load * seconds
            for replica in snapshot.replicas
            if (load := requests(replica, Quantity.REQUESTS_RUNNING)) is not None
            for name in [(replica.name, Quantity.REQUESTS_RUNNING)]
        }
        yield from self._running.items()

    def _of_gpus(self, snapshot: Snapshot) -> Iterator[tuple[Counter, float]]:
        active: dict[Counter, float] = {}
        for card in snapshot.cards:
            if card.reading is None:
                continue
            for reason in _REASONS:
                name = ("gpu", card.facts.uuid, reason)
                seconds = card.reading.clock_event_seconds.get(reason)
                if seconds is None and reason in card.reading.clock_events:
                    # The driver does not measure the time: a sample stands for its interval.
                    sampled = SAMPLE_SECONDS * card.reading.clock_events[reason]
                    seconds = active[name] = self._active.get(name, 0.0) + sampled
                if seconds is not None:
                    yield name, seconds
        self._active = active

    def _pool_pasts(self, snapshot: Snapshot) -> Iterator[tuple[tuple[str, str], PoolPast]]:
        for gateway in snapshot.gateways:
            for pool in gateway.reading.pools if gateway.reading is not None else ():
                name = ("pool", gateway.name, pool)
                served, rate = (of((*name, "requests")) for of in (self._counters.increase, self._counters.rate))
                if served is not None and rate is not None:
                    yield (
                        (gateway.name, pool),
                        PoolPast(
                            requests=served,
                            errors=self._counters.increase((*name, "errors")),
                            rate=rate,
                            error_rate=self._counters.rate((*name, "errors")),
                            poll_errors=self._counters.increase((*name, "poll")),
                        ),
                    )

    def _nic_past(self, nic: NicState) -> NicPast:
        name, increase = ("nic", *nic.port.key), self._counters.increase
        changes = increase((*name, "carrier_changes"))
        # As some drivers of Ethernet count no link_downed: the carrier changes twice each time.
        downs = [count for count in (increase((*name, "link_downs")), changes and changes // 2) if count is not None]
        grown = {kind: increase((*name, "errors", kind)) for kind in nic.port.errors}
        return NicPast(
            link_downs=max(downs, default=None),
            errors={kind: count for kind, count in grown.items() if count is not None},
        )

    def _store_errors(self, store: StoreState) -> Mapping[str, float]:
        grown = {operation: self._counters.increase(("store", store.name, operation)) for operation in _errors(store)}
        return {operation: count for operation, count in grown.items() if count is not None}

    def _past(self, record: _Record, replica: ReplicaState, now: float) -> ReplicaPast:
        if replica.restarts > record.counted:
            record.restarted_at.extend([now] * min(replica.restarts - record.counted, 16))
        record.counted = replica.restarts
        figures = longest_window(replica)
        earlier = {
            name: _earlier(record.samples.setdefault(name, deque()), value, now)
            for name, value in (
                ("hit_ratio", figures.hit_ratio if figures is not None else None),
                ("accepted_ratio", accepted_ratio(replica)),
                ("accepted_length", accepted_length(replica)),
            )
        }
        if replica.reading is not None:
            record.served_last = bool(requests(replica, Quantity.REQUESTS_RUNNING))
            record.read_at = now
            record.served_at = now if record.served_last else record.served_at
        tokens = replica.generated_tokens.tokens if replica.generated_tokens is not None else None
        name, rate = replica.name, self._counters.rate
        token_rate = rate((name, "tokens"))
        return ReplicaPast(
            restarts=sum(now - at <= limit.RESTART_SECONDS for at in record.restarted_at),
            **earlier,
            generation_rate=rate((name, Quantity.GENERATION_TOKENS)),
            served_last=record.served_last,
            served_ago=now - record.served_at,
            down_for=0.0 if record.read_at is None else now - record.read_at,
            has_generated=bool(tokens),
            running=rate((name, Quantity.REQUESTS_RUNNING)),
            token_rate=token_rate,
            lookup_rate=rate((name, Quantity.PREFIX_CACHE_QUERIES)),
            preemption_rate=rate((name, Quantity.PREEMPTIONS)),
            transfers_failed=self._counters.increase((name, Detail.TRANSFER_FAILURES)),
            finished=self._counters.increase((name, "finished")),
            queue=_queue(record.queue, replica, now),
            latency={
                stage: mean
                for stage in (Stage.TIME_TO_FIRST_TOKEN, Stage.INTER_TOKEN)
                if (mean := self._mean(name, stage)) is not None
            },
        )

    def _mean(self, name: str, stage: Stage) -> Mean | None:
        total, count = (self._counters.increase((name, stage, part)) for part in ("sum", "count"))
        return Mean(total / count, count) if total is not None and count else None


def _of_replica(replica: ReplicaState) -> Iterator[tuple[Counter, float]]:
    totals = replica.quantity_totals
    for quantity in (Quantity.PREFIX_CACHE_QUERIES, Quantity.PREEMPTIONS, Quantity.GENERATION_TOKENS):
        if quantity in totals:
            yield (replica.name, quantity), totals[quantity]
    tokens = [totals[name] for name in (Quantity.PROMPT_TOKENS, Quantity.GENERATION_TOKENS) if name in totals]
    if tokens:
        yield (replica.name, "tokens"), sum(tokens)
    by_rank = replica.reading.details.get(Detail.TRANSFER_FAILURES) if replica.reading is not None else None
    if by_rank is not None:
        yield (replica.name, Detail.TRANSFER_FAILURES), sum(sum(kinds.values()) for kinds in by_rank.values())
        yield (replica.name, "finished"), sum(replica.finished_totals.values())
    for stage in (Stage.TIME_TO_FIRST_TOKEN, Stage.INTER_TOKEN):
        histogram = replica.histograms.get(stage)
        if histogram is not None and histogram.sum is not None:
            yield (replica.name, stage, "sum"), histogram.sum
            yield (replica.name, stage, "count"), histogram.counts[-1]


def _errors(store: StoreState) -> Mapping[str, float]:
    return EMPTY if store.reading is None else store.reading.quantities.get(StoreQuantity.ERRORS, EMPTY)


def _of_nic(port: NicPort) -> Iterator[tuple[Counter, float]]:
    if port.link_downs is not None:
        yield ("nic", *port.key, "link_downs"), port.link_downs
    if port.carrier_changes is not None:
        yield ("nic", *port.key, "carrier_changes"), port.carrier_changes
    for kind, count in port.errors.items():
        yield ("nic", *port.key, "errors", kind), count


def _earlier(samples: deque[tuple[float, float]], value: float | None, now: float) -> float | None:
    """Sample a figure when that is due, and return its median in the half hour that ended half an hour ago."""
    if value is not None and (not samples or now - samples[-1][0] >= PAST_SAMPLE_SECONDS):
        samples.append((now, value))
    while samples and now - samples[0][0] > PAST_FROM:
        samples.popleft()
    earlier = [sample for at, sample in samples if now - at >= PAST_TO]
    return median(earlier) if len(earlier) >= MIN_SAMPLES else None


def _queue(samples: deque[tuple[float, float]], replica: ReplicaState, now: float) -> tuple[float, ...]:
    """Sample the queue when that is due, and return its mean in three windows, a step apart."""
    waiting = requests(replica, Quantity.REQUESTS_WAITING)
    if waiting is not None and (not samples or now - samples[-1][0] >= QUEUE_SAMPLE_SECONDS):
        samples.append((now, waiting))
    while samples and now - samples[0][0] > 2 * limit.QUEUE_STEP_SECONDS + limit.WINDOW_SECONDS:
        samples.popleft()
    windows: list[list[float]] = [[], [], []]
    for at, number in samples:
        step, age = divmod(now - at, limit.QUEUE_STEP_SECONDS)
        if age <= limit.WINDOW_SECONDS:
            windows[int(step)].append(number)
    return tuple(sum(found) / len(found) for found in windows) if all(windows) else ()
