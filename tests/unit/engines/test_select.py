"""Pages with more than fits: who is shown of several models and of too many ranks, and that labels do not flicker."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from exporter.engines.compile import MAX_OTHER_MODELS
from exporter.engines.interpreter import EngineInterpreter
from exporter.engines.parse.text import PageReader
from exporter.engines.select import MAX_RANKS, MODEL_STILL, RANK_STILL, SeriesSelector, candidates
from exporter.engines.tables.vllm import VLLM
from exporter.model import Quantity, Window
from exporter.render.exposition import ExpositionRenderer
from tests.support.builders import Clock, snapshot
from tests.support.engine_pages import interpret, make_poller, page, polled

RUNNING, TOKENS = Quantity.REQUESTS_RUNNING, Quantity.GENERATION_TOKENS


def ray(*replicas: tuple[str, str, float]) -> bytes:
    """Rows of (model, replica, tokens) on a Ray node's page."""
    rows = ""
    for model, name, tokens in replicas:
        labels = f'{{model_name="{model}",ReplicaId="{name}",engine="0"}}'
        rows += f"ray_vllm_num_requests_running{labels} 1\nray_vllm_generation_tokens_total{labels} {tokens}\n"
    return rows.encode()


class Watcher:
    """One interpreter over pages, and what it shows."""

    def __init__(self):
        self.interpreter = EngineInterpreter(VLLM)
        self.reader = PageReader(self.interpreter.wanted)
        self.at = 0.0

    def read(self, body, after=10.0):
        self.at += after
        return self.interpreter.read(self.reader.read(body), self.at)


# ── Models ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_keeps_its_name_on_the_page_while_another_has_more_series():
    def both(step):
        more = [("b", f"b{n}", step) for n in range(1 + 2 * (step // 3 % 2))]
        return ray(("a", "a0", 100 * step), ("a", "a1", 100 * step), *more)

    clock = Clock()
    poller = make_poller([both(step) for step in range(1, 13)], clock)
    states = [polled(poller, clock) for _ in range(12)]
    assert {state.labels[2] for state in states} == {"a"}
    assert states[-1].windows["1m"].seconds == 60.0


def test_a_model_that_has_left_the_page_gives_way_at_once():
    watch = Watcher()
    both = ray(("a", "a0", 1), ("a", "a1", 1), ("b", "b0", 1))
    shown = [watch.read(body).model for body in (both, ray(("b", "b0", 2)), both)]
    assert shown == ["a", "b", "b"]


def test_what_a_deleted_model_left_on_the_page_gives_way_to_the_one_that_works():
    watch = Watcher()
    shown = {}
    for step in range(120):
        reading = watch.read(ray(("dead", "d0", 70), ("dead", "d1", 70), ("live", "l0", 100 + step)))
        shown.setdefault(reading.model, watch.at)
    assert shown == {"dead": 10.0, "live": 10.0 + MODEL_STILL}
    assert reading.ranks["l0/0"][TOKENS] == 219


def test_two_models_that_rest_together_keep_the_name():
    watch = Watcher()
    assert {watch.read(ray(("a", "a0", 1), ("b", "b0", 1))).model for _ in range(200)} == {"a"}


# ── Ranks ───────────────────────────────────────────────────────────────────────────────────────────────────────


def crowd(step, dead=MAX_RANKS, live=1):
    return ray(*[("m", f"r{n:03}", 100) for n in range(dead)], *[("m", f"x{n}", 1e6 + step) for n in range(live)])


def test_the_replica_that_works_is_shown_among_a_hundred_dead_ones():
    clock = Clock()
    poller = make_poller([crowd(step) for step in range(10)], clock, windows=(Window("1m", 60.0),))
    assert "x0/0" not in polled(poller, clock).reading.ranks
    state = polled(poller, clock)
    assert state.reading.ranks["x0/0"][TOKENS] == 1e6 + 1
    assert len(state.reading.ranks) == MAX_RANKS
    assert state.reading.parse_warnings == {"too_many_label_sets": 2}
    state = polled(poller, clock, 5)
    assert state.windows["1m"].rank_token_rates["x0/0"] == pytest.approx(5 / 60), "its life before is no increase"


def test_ranks_that_all_work_do_not_take_turns():
    watch, bodies = Watcher(), [crowd(step, dead=0, live=150) for step in range(30)]
    chosen, plans = set(), []
    for body in bodies:
        chosen.add(frozenset(watch.read(body).ranks))
        plans.append(watch.interpreter._compiled)
    assert len(chosen) == 1
    assert all(plan is plans[-1] for plan in plans[2:]), "nor is the page's layout studied anew each time"


def test_ranks_that_are_shown_stay_when_others_that_stand_before_them_begin_to_move():
    watch = Watcher()

    def body(step, others, *more):
        rows = [("m", f"r{n:03}", others) for n in range(MAX_RANKS)]
        return ray(*rows, *[("m", f"x{n}", step) for n in range(60)], *more)

    for step in range(5):
        shown = watch.read(body(step, 1)).ranks
    working = {f"x{n}/0" for n in range(60)}
    assert working <= shown.keys()
    for step in range(5, 10):
        watch.read(body(step, step))
    assert working <= watch.read(body(10, 10, ("m", "new", 1))).ranks.keys()


def test_a_rank_that_rests_gives_way_only_after_a_while():
    watch = Watcher()

    def body(step, resting, late):
        rows = [("m", f"r{n:03}", 100 + step) for n in range(MAX_RANKS - 1)]
        return ray(*rows, ("m", "rests", resting), ("m", "late", late))

    for step in range(3):
        shown = watch.read(body(step, resting=step, late=0)).ranks
    assert "rests/0" in shown
    by_time = [(watch.at, "late/0" in watch.read(body(step, resting=2, late=step)).ranks) for step in range(3, 30)]
    first = next(at for at, is_shown in by_time if is_shown)
    assert first == pytest.approx(20.0 + RANK_STILL, abs=10.0)


def test_ranks_with_many_outcomes_each_are_all_counted():
    """As 32 data-parallel ranks of a server that tells five reasons apart."""
    rows = "".join(
        f'vllm:request_success_total{{engine="{rank}",finished_reason="{reason}",model_name="m"}} 1\n'
        for rank in range(32)
        for reason in ("stop", "length", "abort", "error", "repetition")
    )
    reading = interpret(rows.encode())
    assert len(reading.finished) == 32
    assert all(outcomes == {"success": 3, "error": 1, "cancelled": 1} for outcomes in reading.finished.values())
    assert all(len(reasons) == 5 for reasons in reading.finish_reasons.values())
    assert reading.parse_warnings == {}


def test_outcomes_without_end_are_bounded():
    rows = "".join(f'vllm:request_success_total{{engine="0",finished_reason="x{n}"}} 1\n' for n in range(300))
    reading = interpret(rows.encode())
    assert len(reading.finish_reasons["0"]) == 100
    assert reading.finished["0"] == {"success": 300.0}
    assert reading.parse_warnings == {"too_many_label_sets": 200}


def test_answers_that_belong_to_no_rank_stay_among_too_many_ranks():
    rows = b"".join(b'vllm:num_requests_running{engine="%d",model_name="m"} 1\n' % n for n in range(300))
    reading = interpret(rows + b'http_requests_total{handler="/v1/completions",status="2xx"} 7\n')
    assert reading.responses == {"2xx": 7.0}
    assert len(reading.ranks) == MAX_RANKS - 1


def test_figures_that_are_no_numbers_are_no_movement():
    choice, watched = SeriesSelector(), candidates({"a": [0], "b": [1]}, {})
    choice.model(Counter(a=2, b=1))
    pages = [[1.0, float("nan")] for _ in range(200)]  # each its own object
    assert not any(choice.should_reselect(watched, numbers, 10.0 * step) for step, numbers in enumerate(pages))


def test_a_model_that_is_not_shown_is_said_to_be_missing_and_once_in_the_log(caplog):
    clock = Clock()
    poller = make_poller(
        [ray(("a", "a0", step), ("b", "b0", step), ("a", "a1", step)) for step in range(1, 5)], clock
    )
    state = polled(poller, clock, 4)
    assert state.labels[2] == "a"
    assert state.reading.missing["model:b"] == "one_model_per_page"
    assert [line for line in caplog.text.splitlines() if "event=other_models" in line and "models=b" in line][
        1:
    ] == []
    assert "event=other_models" in caplog.text


def test_models_without_end_are_not_all_said_to_be_missing():
    watch = Watcher()
    reading = watch.read(ray(*[(f"m{n:03}", f"r{n}", 1) for n in range(90)]))
    missing_models = [signal for signal in reading.missing if signal.startswith("model:")]
    assert missing_models == [f"model:m{n:03}" for n in range(1, MAX_OTHER_MODELS + 1)]


# ── Sums over the ranks ─────────────────────────────────────────────────────────────────────────────────────────


def test_no_sum_of_a_ray_page_falls_when_a_replica_is_missing_for_a_page():
    whole = page("ray-2.60.0-vllm-0.33.0-reexport-lab")
    less = b"\n".join(line for line in whole.split(b"\n") if b"0onl0ugf" not in line)
    clock, renderer = Clock(), ExpositionRenderer(openmetrics=False)
    poller = make_poller([whole, less, whole], clock)
    pages = [renderer.render(snapshot(replicas=(polled(poller, clock),))).body.decode() for _ in range(3)]
    sums = r"^llm_(?:generation_tokens|requests|time_to_first_token_seconds)_(?:total|bucket|count|sum)\{.*"
    sums_by_page = [re.findall(sums, body, re.MULTILINE) for body in pages]
    assert sums_by_page[0] == sums_by_page[1] == sums_by_page[2]
    assert any(line.endswith(" 23906.0") for line in sums_by_page[0])
    assert sum(line.startswith("llm_requests_total") for line in sums_by_page[0]) == 1
