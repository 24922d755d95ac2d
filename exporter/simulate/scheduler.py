"""One data-parallel rank: continuous batching over paged KV blocks, in whole engine steps.

A step computes at most ``batch_tokens`` tokens: one for every decoding request, the rest of the budget for prompts
(chunked prefill).  Steps without prompt work are taken several at once up to the next event, which is what makes
the model cheap; nothing observable differs.  A step that has begun is finished even if it ends after the asked
instant, so the clock of a rank may run a fraction of a second ahead.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

from exporter.simulate.rank_metrics import RankMetrics
from exporter.simulate.records import ReplicaSpec
from exporter.simulate.traffic import SimulatedRequest, stream


@dataclass(slots=True)
class Activity:
    """What a rank did during the last call of ``advance``: what its GPUs turn into heat and bytes."""

    busy: float = 0.0  # share of the time
    fill: float = 0.0  # running requests ÷ their maximum
    prefill: float = 0.0  # share of the busy time spent on prompts
    tokens: int = 0


@dataclass(slots=True)
class ReportedGauges:
    """The gauges as the engine last wrote them; it writes after each step, so a frozen engine keeps the old ones."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0


@dataclass(slots=True)
class Prefix:
    """A shared prompt beginning in the cache: how many live requests hold it, and when it was last allocated."""

    blocks: int
    holders: int = 0
    stamp: int = 0  # blocks allocated by then


@dataclass(slots=True)
class Rank:
    """The scheduler, cache and counters of one rank.  Drive it with ``advance`` only."""

    replica: ReplicaSpec
    seed: str
    blocks: int  # KV blocks in all
    clock: float = 0.0
    failing: float = 0.0  # share of newly admitted requests that fail
    metrics: RankMetrics = field(init=False)
    report: ReportedGauges = field(default_factory=ReportedGauges)
    activity: Activity = field(default_factory=Activity)
    waiting: deque[SimulatedRequest] = field(default_factory=deque)
    prefilling: list[SimulatedRequest] = field(default_factory=list)
    decoding: list[SimulatedRequest] = field(default_factory=list)
    _random: random.Random = field(init=False)
    _prefixes: dict[int, Prefix] = field(default_factory=dict)
    _used: int = 0
    _allocated: int = 0
    _prompt_time: float = 0.0
    _step_time: float = 0.0

    def __post_init__(self) -> None:
        """Create empty counters and the random stream."""
        self.metrics = RankMetrics(self.replica.model.max_model_len)
        self._random = stream(self.seed, self.replica.name, "steps")

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self.prefilling) + len(self.decoding)

    def restart(self, now: float) -> None:
        """Reset everything, as a new process would."""
        self.metrics = RankMetrics(self.replica.model.max_model_len)
        self.report, self.activity = ReportedGauges(), Activity()
        for requests in (self.waiting, self.prefilling, self.decoding):
            requests.clear()
        self._prefixes.clear()
        self._used, self.clock, self.failing = 0, now, 0.0

    def stall(self, arrivals: deque[SimulatedRequest], until: float) -> None:
        """Queue arrivals without stepping, as a frozen engine does; the last report stays."""
        while arrivals:
            self._enqueue(arrivals.popleft())
        self._drop_abandoned(until, stuck=True)
        self.clock = until
        self.activity = Activity(busy=1.0, fill=self.activity.fill)  # the kernels of a collective spin

    def advance(self, arrivals: deque[SimulatedRequest], until: float, pace: float) -> None:
        """Run engine steps until ``until``; ``pace`` stretches them (1: all GPUs of the group at full clock)."""
        begin, idle, tokens = self.clock, 0.0, self.metrics.generation_tokens
        self._prompt_time = self._step_time = 0.0
        prompts = self.metrics.step_tokens.sum
        self._drop_abandoned(begin)
        while self.clock < until:
            while arrivals and arrivals[0].arrival <= self.clock:
                self._enqueue(arrivals.popleft())
            if not self.running and not self.waiting:
                wake = min(until, arrivals[0].arrival) if arrivals else until
                idle += wake - self.clock
                self.clock = wake
                continue
            horizon = min(until, arrivals[0].arrival) if arrivals else until
            self._step(horizon, pace)
        while arrivals:  # those that came during a step that ends after ``until``
            self._enqueue(arrivals.popleft())
        span = max(self.clock - begin, 1e-9)
        self.activity = Activity(
            busy=1.0 - idle / span if self.clock > begin else 1.0,
            fill=self.running / self.replica.max_sequences,
            prefill=self._prompt_time / self._step_time if self._step_time else self.activity.prefill,
            tokens=int(self.metrics.step_tokens.sum - prompts) or self.metrics.generation_tokens - tokens,
        )
        self._write_report()

    def _enqueue(self, request: SimulatedRequest) -> None:
        self.metrics.arrived += 1
        request.remaining = request.prompt
        self.waiting.append(request)

    def _write_report(self) -> None:
        usable = self.blocks - 1  # one block is a placeholder
        self.report = ReportedGauges(self.running, len(self.waiting), min(1.0, self._used / usable))

    def _drop_abandoned(self, now: float, *, stuck: bool = False) -> None:
        """Drop the requests whose clients have left; a stuck engine keeps its batch and counts no answer."""
        if any(request.abandon_at <= now for request in self.waiting):
            gone = [request for request in self.waiting if request.abandon_at <= now]
            self.waiting = deque(request for request in self.waiting if request.abandon_at > now)
            self._count_aborts(gone, now, stuck=stuck)
        if stuck:
            return
        for group in (self.prefilling, self.decoding):
            gone = [request for request in group if request.abandon_at <= now]
            for request in gone:
                group.remove(request)
                self._release(request)
            self._count_aborts(gone, now, stuck=False)

    def _count_aborts(self, gone: list[SimulatedRequest], now: float, *, stuck: bool) -> None:
        self.metrics.aborted += len(gone)
        if not stuck:
            for request in gone:
                self.metrics.observe_http(now - request.arrival)

    def _own_blocks(self, request: SimulatedRequest, more: int = 0) -> int:
        return -(-(request.prompt - request.shared + request.produced + more) // self.replica.block)

    def _release(self, request: SimulatedRequest) -> None:
        prefix = self._prefixes[request.prefix]
        prefix.holders -= 1
        prefix.stamp = self._allocated
        self._used -= self._own_blocks(request) + (0 if prefix.holders else prefix.blocks)

    def _admit(self, request: SimulatedRequest) -> bool:
        """Return the request its blocks, or refuse.  An idle prefix stays cached until its blocks are reused."""
        wanted = request.shared // self.replica.block
        prefix = self._prefixes.get(request.prefix)
        free = self.blocks - 1 - self._used
        held = prefix is not None and prefix.holders > 0
        need = self._own_blocks(request) + (0 if held else wanted)
        if need + self.running + 1 > free:  # decoding requests must be able to grow in the same step
            return False
        known = prefix is not None and (held or self._allocated - prefix.stamp <= free)
        if prefix is None:
            prefix = self._prefixes[request.prefix] = Prefix(blocks=wanted)
        prefix.holders += 1
        self._used += need
        self._allocated += need
        cached = request.shared if known else 0
        if request.scheduled is None:
            request.scheduled, request.cached = self.clock, cached
            self.metrics.prefix_queries += request.prompt
            self.metrics.prefix_hits += cached
            if self.failing and self._random.random() < self.failing:
                request.reason, request.output = "error", 1
        request.remaining = request.prompt + request.produced - cached
        self.prefilling.append(request)
        return True

    def _schedule(self) -> int:
        """Return the prompt tokens of the next step; waiting requests enter in order, none overtakes."""
        budget = self.replica.batch_tokens - len(self.decoding)
        full = budget
        for request in self.prefilling:
            chunk = min(budget, request.remaining)
            request.remaining -= chunk
            budget -= chunk
        while self.waiting and budget > 0 and self.running < self.replica.max_sequences:
            if not self._admit(self.waiting[0]):
                break
            request = self.waiting.popleft()
            chunk = min(budget, request.remaining)
            request.remaining -= chunk
            budget -= chunk
        return full - budget

    def _step(self, horizon: float, pace: float) -> None:
        """Run one step with prompt work, or as many equal decode steps as fit before ``horizon``."""
        model = self.replica.model
        self._preempt()
        prompt = self._schedule()
        jitter = self._random.uniform(0.96, 1.06)
        scale = pace * self.replica.step_scale * jitter
        decode_time = scale * (model.step_base + model.step_sequence * self.running)
        length = decode_time + scale * model.step_prefill * prompt
        times = 1
        if not prompt:
            left = min(request.output - request.produced for request in self.decoding)
            times = max(1, min(left, math.ceil((horizon - self.clock) / length)))
            spare = self.blocks - 1 - self._used - len(self.decoding)
            times = min(times, max(1, spare * self.replica.block // len(self.decoding)))
        self.clock += length * times
        self._step_time += length * times
        self._prompt_time += length - decode_time if prompt else 0.0
        completed = [request for request in self.prefilling if request.remaining <= 0]
        emitted = len(self.decoding) * times + len(completed)
        self.metrics.generation_tokens += emitted
        self.metrics.step_tokens.observe(prompt + len(self.decoding), times)
        self.metrics.inter_token.observe(length, len(self.decoding) * times)
        self._grow(times)
        for request in completed:
            self._complete_prefill(request)

    def _preempt(self) -> None:
        """Preempt the youngest until every decoding request can get the block it may need for its next token."""
        block = self.replica.block
        while self.decoding:
            need = sum(
                1 for request in self.decoding if (request.prompt - request.shared + request.produced) % block == 0
            )
            if need <= self.blocks - 1 - self._used or self.running == 1:
                return
            victim = (self.prefilling or self.decoding).pop()
            self._release(victim)
            victim.preemptions += 1
            victim.last_token = self.clock
            self.metrics.preemptions += 1
            self.waiting.appendleft(victim)

    def _grow(self, times: int) -> None:
        """Return every decoding request ``times`` more tokens; those that have all of theirs finish."""
        block, fresh, ended = self.replica.block, 0, False
        for request in self.decoding:
            last = request.prompt - request.shared + request.produced - 1
            fresh += (last + times) // block - last // block
            request.produced += times
            ended = ended or request.produced >= request.output
        self._used += fresh
        self._allocated += fresh
        if ended:
            done = [request for request in self.decoding if request.produced >= request.output]
            self.decoding = [request for request in self.decoding if request.produced < request.output]
            for request in done:
                self._finish(request)

    def _complete_prefill(self, request: SimulatedRequest) -> None:
        """Record the token that a complete prefill yields: the first one, or the next one after a preemption."""
        self.prefilling.remove(request)
        before = self._own_blocks(request)
        if request.produced == 0:
            request.first_token = self.clock
            self.metrics.time_to_first_token.observe(self.clock - request.arrival)
            self.metrics.prompt_tokens += request.prompt
            self.metrics.cached_tokens += request.cached
        else:
            self.metrics.inter_token.observe(self.clock - request.last_token)
        request.produced += 1
        self._used += self._own_blocks(request) - before
        self._allocated += self._own_blocks(request) - before
        if request.produced >= request.output:
            self._finish(request)
        else:
            self.decoding.append(request)

    def _finish(self, request: SimulatedRequest) -> None:
        self._release(request)
        metrics, now = self.metrics, self.clock
        scheduled = request.scheduled if request.scheduled is not None else now
        decode = now - request.first_token
        metrics.finished[request.reason] += 1
        metrics.observe_http(now - request.arrival, failed=request.reason == "error")
        metrics.prompt_length.observe(request.prompt)
        metrics.generation_length.observe(request.produced)
        metrics.longest_generation.observe(request.produced)
        metrics.max_tokens.observe(request.max_tokens)
        metrics.computed_length.observe(request.prompt - request.cached)
        metrics.choices.observe(1)
        metrics.request_preemptions.observe(request.preemptions)
        metrics.request.observe(now - request.arrival)
        metrics.queue.observe(scheduled - request.arrival)
        metrics.prefill.observe(request.first_token - scheduled)
        metrics.decode.observe(decode)
        metrics.inference.observe(now - scheduled)
        metrics.time_per_token.observe(decode / (request.produced - 1) if request.produced > 1 else 0.0)
