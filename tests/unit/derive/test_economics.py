"""What tokens and idle cards cost: prices of the field, energy over the windows of the tokens, idle time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.config.settings import CostSettings, ModelPrice, parse
from exporter.derive import economics
from exporter.model import Economics, EngineReading, GpuAssignment, Quantity, TokenCount, Window, WindowFigures
from exporter.model.node import ReplicaWindow
from exporter.runtime.app import App
from exporter.runtime.costs import CostTracker
from exporter.simulate.products import H100, LLAMA_8B
from exporter.simulate.records import ReplicaSpec, Scenario, Traffic
from tests.support.builders import card, replica
from tests.support.records import replace
from tests.support.virtual_node import WINDOWS, VirtualNode

DOLLARS = CostSettings(currency="USD", gpu_hour={"card": 2.5})
FREE = CostSettings()


def own(name, *indexes, rank=""):
    return [GpuAssignment(uuid=f"GPU-{index:04d}", replica=name, rank=rank) for index in indexes]


def serving(name="a", *, rate=None, running=1.0, generated=None, **ranks):
    """A replica that generates ``rate`` tokens a second, with so many requests running on its rank."""
    windows = {} if rate is None else {"1m": WindowFigures(seconds=60.0, generation_token_rate=rate)}
    numbers = {rank: {Quantity.REQUESTS_RUNNING: number} for rank, number in (ranks or {"0": running}).items()}
    reading = EngineReading(at=1000.0, engine="vllm", model="m", ranks=numbers)
    return replica(name, reading=reading, windows=windows, generated_tokens=generated and TokenCount(*generated))


class Books:
    """A cost_tracker, fed by hand: cards with energy and tokens of one replica."""

    def __init__(self, *assignments, costs=FREE):
        self.cost_tracker, self.assignments, self.costs = CostTracker(), tuple(assignments), costs

    def book(self, cards, *replicas):
        return self.cost_tracker.update(cards, replicas, self.assignments, windows=WINDOWS, costs=self.costs)

    def run(self, seconds, *, watts=(100.0,), rate=50.0, late=0.4, start=1000.0, energy=5e8, life=0.0):
        """Read cards each second and tokens every five, ``late`` after the cards; give the last figures."""
        economy = None
        for second in range(seconds + 1):
            at = start + second
            tokens_at = start + second - second % 5 + late - 5.0 * (second % 5 == 0)
            cards = [card(i, at=at, energy=energy + power * (at - 1000.0)) for i, power in enumerate(watts)]
            generated = (tokens_at, life + rate * (tokens_at - 1000.0))
            economy = self.book(cards, serving(generated=generated if second >= 5 else None))
        return economy


# ── Prices ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cards", "hour", "rate", "published"), [(1, 2.50, 156.0, 4.45), (8, 20.00 / 8, 890.0, 6.24)]
)
def test_a_million_tokens_cost_what_the_field_published(cards, hour, rate, published):
    books = Books(*own("a", *range(cards)), costs=CostSettings(currency="USD", gpu_hour={"card": hour}))
    economy = books.book([card(index) for index in range(cards)], serving(rate=rate))
    assert economy.cost_per_million == {("a", "1m"): pytest.approx(published, abs=0.005)}
    assert economy.currency == "USD"


def test_one_price_is_offered_over_the_answers_the_prompts_and_both():
    books = Books(*own("a", 0), costs=DOLLARS)
    replica = serving(rate=100.0)
    window = replace(replica.windows["1m"], prompt_token_rate=300.0)
    result = books.book([card(0)], replace(replica, windows={"1m": window}))
    whole = result.cost_per_million["a", "1m"]
    assert result.cost_per_million_prompt["a", "1m"] == pytest.approx(whole / 3)
    assert result.cost_per_million_processed["a", "1m"] == pytest.approx(whole / 4)
    alone = books.book([card(0)], serving(rate=100.0))
    assert (alone.cost_per_million_prompt, alone.cost_per_million_processed) == ({}, {})


def test_without_tokens_they_have_no_price():
    books = Books(*own("a", 0), costs=DOLLARS)
    assert books.book([card(0)], serving(rate=0.0)).cost_per_million == {}
    assert books.book([card(0)], serving()).cost_per_million == {}


def test_a_replica_with_a_gpu_of_no_price_has_no_cost_and_says_which_gpus_have_one():
    books = Books(*own("a", 0, 1), costs=DOLLARS)
    other = replace(card(1), facts=replace(card(1).facts, name="another"))
    economy = books.book([card(0), other], serving(rate=100.0))
    assert economy.cost_per_million == {}
    assert economy.prices == {"GPU-0000": 2.5}


def test_nothing_is_priced_without_a_configuration():
    economy = Books(*own("a", 0)).book([card(0, utilization=0.0)], serving(rate=100.0))
    assert (economy.currency, economy.prices, economy.cost_per_million, economy.idle_cost) == ("", {}, {}, {})


def test_a_lost_gpu_is_paid_for_all_the_same():
    books = Books(*own("a", 0, 1), costs=DOLLARS)
    economy = books.book([card(0), card(1, up=False)], serving(rate=100.0))
    assert economy.cost_per_million == {("a", "1m"): pytest.approx(5.0 / 3600 / 100 * 1e6)}


def test_a_shared_gpu_is_split_evenly_and_its_cost_counts_once():
    assignments = own("a", 0, 1, rank="0") + own("a", 0, rank="1") + own("b", 1)
    assert economics.gpu_shares(assignments) == {"a": {"GPU-0000": 1.0, "GPU-0001": 0.5}, "b": {"GPU-0001": 0.5}}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.sampled_from(("", "0", "1")))))
def test_the_portions_of_every_owned_gpu_add_up_to_the_gpu(triples):
    economy = economics.gpu_shares([own(name, index, rank=rank)[0] for name, index, rank in triples])
    sums = {}
    for portion in economy.values():
        for uuid_, share in portion.items():
            sums[uuid_] = sums.get(uuid_, 0.0) + share
    assert sums == {f"GPU-{index:04d}": pytest.approx(1.0) for _, index, _ in triples}


# ── Energy ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_joules_per_token_are_energy_over_tokens_of_the_same_time():
    economy = Books(*own("a", 0, 1)).run(40, watts=(100.0, 300.0), rate=50.0)
    assert economy.joules_per_token == {("a", "1m"): pytest.approx(8.0), ("a", "5m"): pytest.approx(8.0)}
    assert economy.tokens_per_joule["a", "1m"] == pytest.approx(1 / 8.0)


def test_energy_is_taken_at_the_instants_of_the_tokens_and_not_at_those_of_the_gpus():
    """Power and rate rise together: whoever takes energy a second later than tokens gets another quotient."""
    books = Books(*own("a", 0))
    for second in range(31):
        at = 1000.0 + second
        read = card(0, at=at, energy=10.0 * second**2)
        counted = 1000.0 + (second - 1) // 5 * 5 + 0.5  # exactly between two readings
        tokens = (counted - 1000.0) ** 2 + 0.25  # as the straight line between the squares says it
        economy = books.book([read], serving(generated=(counted, tokens) if second > 0 else None))
    assert economy.joules_per_token["a", "1m"] == pytest.approx(10.0, rel=1e-9)


def test_tokens_without_work_have_energy_but_no_joules_per_token():
    economy = Books(*own("a", 0)).run(30, rate=0.0)
    assert economy.joules_per_token == {}
    assert economy.tokens_per_joule["a", "1m"] == 0.0


def test_the_window_forgets_what_is_older():
    books = Books(*own("a", 0))
    books.run(100, watts=(100.0,), rate=50.0)
    economy = books.run(120, watts=(300.0,), rate=50.0, start=1101.0, energy=5e8 - 200.0 * 101, life=0.0)
    assert economy.joules_per_token["a", "1m"] == pytest.approx(6.0, rel=0.05)
    assert 2.5 < economy.joules_per_token["a", "5m"] < 5.5


def test_a_driver_that_restarts_its_counter_costs_no_window():
    books = Books(*own("a", 0))
    books.run(30)
    economy = books.run(30, start=1031.0, energy=-100.0 * 31)  # the counter begins at 0 again
    assert economy.joules_per_token["a", "1m"] == pytest.approx(2.0, rel=0.05)


def test_a_counter_that_jumps_begins_the_account_anew():
    books = Books(*own("a", 0))
    books.run(30)
    economy = books.run(8, start=1031.0, energy=9e15)
    assert economy.joules_per_token == {}
    economy = books.run(30, start=1040.0, energy=9e15)
    assert economy.joules_per_token["a", "5m"] == pytest.approx(2.0, rel=1e-6)


def test_a_gpu_whose_energy_is_not_read_now_takes_its_replicas_figures_along():
    books = Books(*own("a", 0, 1))
    assert books.run(30, watts=(100.0, 100.0)).joules_per_token
    serves = serving(generated=(1030.4, 1520.0))
    assert books.book([card(0, at=1031.0, energy=5e8 + 3100.0), card(1, up=False)], serves).joules_per_token == {}
    assert books.book([card(0, at=1032.0, energy=5e8 + 3200.0), card(1, at=1032.0)], serves).joules_per_token == {}
    later = serving(generated=(1032.5, 1625.0))
    both = [card(i, at=1033.0, energy=5e8 + 3300.0) for i in range(2)]
    assert books.book(both, later).joules_per_token["a", "1m"] == pytest.approx(4.0, rel=1e-6)


def test_a_replica_that_does_not_answer_shows_no_old_figures():
    books = Books(*own("a", 0))
    books.run(30)
    economy = books.book([card(0, at=1031.0, energy=5e8 + 3100.0)], replica("a", up=False))
    assert (economy.joules_per_token, economy.tokens_per_joule) == ({}, {})


def test_other_gpus_begin_a_new_account():
    books = Books(*own("a", 0))
    books.run(30, watts=(100.0, 900.0))
    books.assignments = tuple(own("a", 1))
    assert books.run(4, watts=(100.0, 900.0), start=1031.0).joules_per_token == {}
    assert books.run(30, watts=(100.0, 900.0), start=1036.0).joules_per_token["a", "5m"] == pytest.approx(18.0)


def test_a_count_of_tokens_that_falls_begins_a_new_account():
    books = Books(*own("a", 0))
    books.run(30, rate=50.0, life=1e6)
    economy = books.run(30, rate=25.0, start=1031.0, life=0.0)
    assert economy.joules_per_token["a", "5m"] == pytest.approx(4.0, rel=1e-6)


def test_a_count_that_waited_is_booked_although_the_next_one_comes_with_its_energy():
    """Cards and tokens are read once a second, the tokens just after the cards: each waits for the next second."""
    books = Books(*own("a", 0))
    for second in range(10):
        at = 1000.9 + second
        serves = serving(generated=(at + 0.05, 50.0 * second))
        economy = books.book([card(0, at=at, energy=5e8 + 100.0 * second)], serves)
    assert economy.joules_per_token["a", "1m"] == pytest.approx(2.0, rel=1e-6)


def test_new_windows_begin_with_what_the_old_accounts_kept():
    books = Books(*own("a", 0))
    before = books.run(30)
    serves = serving(generated=(1030.4, 1520.0))
    cards = [card(0, at=1031.0, energy=5e8 + 3100.0)]
    economy = books.cost_tracker.update(
        cards, [serves], books.assignments, windows=(Window("2m", 120.0),), costs=FREE
    )
    assert before.joules_per_token["a", "1m"] == pytest.approx(economy.joules_per_token["a", "2m"], rel=0.01)


def test_a_gpu_that_is_gone_for_good_is_removed():
    books = Books(*own("a", 0))
    books.book([card(0, energy=1.0, utilization=0.0)], serving(generated=(1000.0, 1.0)))
    books.book([], serving(generated=(1001.0, 1.0)))
    cost_tracker = books.cost_tracker
    assert (cost_tracker._meters, cost_tracker._idle, cost_tracker._usages) == ({}, {}, {})


def test_new_windows_leave_idle_time_alone():
    books = Books(costs=DOLLARS)
    books.book([card(0, at=1000.0, utilization=0.0)])
    cards = [card(0, at=1010.0, utilization=0.0)]
    economy = books.cost_tracker.update(cards, [], (), windows=(Window("2m", 120.0),), costs=DOLLARS)
    assert economy.idle_seconds == {"GPU-0000": 10.0}


@given(st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 700)), min_size=1, max_size=20), st.integers(0, 19))
def test_a_meter_adds_up_what_was_drawn_whatever_restarts(steps, restart):
    at, raw, drawn = 0.0, 1e9, 0.0
    meter = economics.update_meter(None, at, raw)
    for number, (seconds, watts) in enumerate(steps):
        at, drawn = at + seconds, drawn + watts * seconds
        raw = watts * seconds if number == restart else raw + watts * seconds
        meter = economics.update_meter(meter, at, raw)
    assert meter.begun == 0.0
    assert meter.now[1] == pytest.approx(drawn, rel=1e-6, abs=1e-3)
    assert economics.joules_at(meter, at + 1.0) is None
    middle = (meter.before[0] + meter.now[0]) / 2
    assert economics.joules_at(meter, middle) == pytest.approx((meter.before[1] + meter.now[1]) / 2)


# ── Idle cards ──────────────────────────────────────────────────────────────────────────────────────────────────


def idle_after(seconds, books, before, after, **signals):
    books.book([card(0, at=1000.0, **signals)], *before)
    return books.book([card(0, at=1000.0 + seconds, **signals)], *after)


def test_a_gpu_is_idle_while_nothing_runs_on_its_replica_whatever_its_utilisation():
    books = Books(*own("a", 0), costs=DOLLARS)
    economy = idle_after(36.0, books, [serving(running=3.0)], [serving(running=0.0)], utilization=1.0)
    assert economy.idle_seconds == {"GPU-0000": 36.0}
    assert economy.idle_cost == {"GPU-0000": pytest.approx(0.025)}


def test_a_gpu_is_not_idle_while_requests_run_though_no_kernel_does():
    economy = idle_after(36.0, Books(*own("a", 0)), [serving(running=0.0)], [serving(running=1.0)], utilization=0.0)
    assert economy.idle_seconds == {"GPU-0000": 0.0}


def test_the_rank_of_a_gpu_decides_where_it_is_known():
    ranks = {"0": 5.0, "1": 0.0}
    for rank, idle in (("0", 0.0), ("1", 10.0), ("", 0.0), ("7", 0.0)):
        economy = idle_after(10.0, Books(*own("a", 0, rank=rank)), [], [serving(**ranks)], utilization=0.0)
        assert economy.idle_seconds == {"GPU-0000": idle}, rank


def test_an_unassigned_gpu_is_idle_while_its_utilisation_is_zero():
    assert idle_after(10.0, Books(), [], [], utilization=0.0).idle_seconds == {"GPU-0000": 10.0}
    assert idle_after(10.0, Books(), [], [], utilization=0.01).idle_seconds == {"GPU-0000": 0.0}
    assert idle_after(10.0, Books(), [], []).idle_seconds == {}


def test_a_replica_that_does_not_answer_leaves_the_judgement_to_the_utilisation():
    silent = [replica("a", up=False)]
    assert idle_after(10.0, Books(*own("a", 0)), silent, silent, utilization=0.0).idle_seconds == {"GPU-0000": 10.0}
    assert idle_after(10.0, Books(*own("a", 0)), silent, silent, utilization=0.5).idle_seconds == {"GPU-0000": 0.0}


def test_a_shared_gpu_whose_other_user_is_silent_is_judged_by_its_utilisation():
    for utilization, idle in ((0.5, 0.0), (0.0, 10.0)):
        books = Books(*own("a", 0), *own("b", 0))
        users = [serving("a", running=0.0), replica("b", up=False)]
        assert idle_after(10.0, books, users, users, utilization=utilization).idle_seconds == {"GPU-0000": idle}


def test_a_shared_gpu_is_idle_when_all_who_use_it_are():
    books = Books(*own("a", 0), *own("b", 0))
    economy = idle_after(10.0, books, [], [serving("a", running=0.0), serving("b", running=2.0)], utilization=0.0)
    assert economy.idle_seconds == {"GPU-0000": 0.0}
    books = Books(*own("a", 0), *own("b", 0))
    economy = idle_after(10.0, books, [], [serving("a", running=0.0), serving("b", running=0.0)], utilization=0.9)
    assert economy.idle_seconds == {"GPU-0000": 10.0}


def test_time_in_which_a_gpu_was_not_seen_is_not_idle():
    books = Books()
    books.book([card(0, at=1000.0, utilization=0.0)])
    assert books.book([card(0, up=False)]).idle_seconds == {}
    assert books.book([card(0, at=1600.0, utilization=0.0)]).idle_seconds == {"GPU-0000": 0.0}
    assert books.book([card(0, at=1601.0, utilization=0.0)]).idle_seconds == {"GPU-0000": 1.0}


def test_a_reading_that_is_shown_twice_counts_once():
    books = Books()
    for at in (1000.0, 1002.0, 1002.0, 1002.0):
        economy = books.book([card(0, at=at, utilization=0.0)])
    assert economy.idle_seconds == {"GPU-0000": 2.0}


def test_another_price_changes_the_cost_from_now_on_and_another_currency_begins_anew():
    books = Books(costs=DOLLARS)
    books.book([card(0, at=1000.0, utilization=0.0)])
    books.book([card(0, at=1036.0, utilization=0.0)])
    books.costs = CostSettings(currency="USD", gpu_hour={"card": 5.0})
    assert books.book([card(0, at=1072.0, utilization=0.0)]).idle_cost["GPU-0000"] == pytest.approx(0.075)
    books.costs = CostSettings(currency="EUR", gpu_hour={"card": 5.0})
    assert books.book([card(0, at=1108.0, utilization=0.0)]).idle_cost["GPU-0000"] == pytest.approx(0.05)


# ── What tokens are sold for ────────────────────────────────────────────────────────────────────────────────────


def selling(prompts=300.0, generated=100.0, **price):
    """Return the figures of a replica on a GPU of 2.50 an hour whose tokens have this price a million."""
    models = {"m": ModelPrice(**price)}
    books = Books(*own("a", 0), costs=CostSettings(currency="USD", gpu_hour={"card": 2.5}, models=models))
    window = WindowFigures(seconds=60.0, prompt_token_rate=prompts, generation_token_rate=generated)
    return books.book([card(0)], replace(serving(), windows={"1m": window}))


def test_revenue_is_the_price_of_both_kinds_of_tokens_and_stands_beside_the_price_of_the_gpus():
    figures = selling(input=0.5, output=2.0)
    earned = (300.0 * 0.5 + 100.0 * 2.0) * 3600 / 1e6  # 1.26 an hour
    assert figures.revenue_per_hour == {("a", "1m"): pytest.approx(earned)}
    assert figures.revenue_to_cost == {("a", "1m"): pytest.approx(earned / 2.5)}
    assert figures.cost_per_million_prompt["a", "1m"] == pytest.approx(2.5 / 3600 / 300 * 1e6)


def test_tokens_that_are_not_counted_have_no_revenue_unless_they_are_free():
    assert selling(prompts=None, input=0.5, output=2.0).revenue_per_hour == {}
    assert selling(prompts=None, output=2.0).revenue_per_hour == {("a", "1m"): pytest.approx(0.72)}
    assert selling(generated=None, input=0.5).revenue_per_hour == {("a", "1m"): pytest.approx(0.54)}
    assert selling(prompts=0.0, generated=0.0, output=2.0).revenue_to_cost == {("a", "1m"): 0.0}


def test_a_model_without_a_price_and_gpus_without_one_have_no_ratio():
    prices = {"other": ModelPrice(output=2.0)}
    costs = CostSettings(currency="USD", models=prices)
    assert Books(*own("a", 0), costs=costs).book([card(0)], serving(rate=100.0)).revenue_per_hour == {}
    costs = CostSettings(currency="USD", models={"m": ModelPrice(output=2.0)})
    figures = Books(*own("a", 0), costs=costs).book([card(0)], serving(rate=100.0))
    assert (len(figures.revenue_per_hour), figures.revenue_to_cost) == (1, {})


# ── A simulated node ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_simulated_node_spends_what_its_gpus_drew_on_the_tokens_that_its_engine_made():
    costs = CostSettings(currency="USD", gpu_hour={H100.name: 2.5})
    node = VirtualNode("mixed", seed=1, costs=costs)
    node.live_until(65.0)
    (rank,) = node.world.replica("chat").ranks
    tokens = rank.metrics.generation_tokens
    joules = sum(card.energy for card in node.world.gpus[:4])
    snapshot = node.live_until(125.0)
    tokens = rank.metrics.generation_tokens - tokens
    drawn = sum(card.energy for card in node.world.gpus[:4]) - joules
    figures = snapshot.economics
    assert figures.joules_per_token["chat", "1m"] == pytest.approx(drawn / tokens, rel=0.02)
    rate = snapshot.replicas[0].windows["1m"].generation_token_rate
    assert figures.cost_per_million["chat", "1m"] == pytest.approx(4 * 2.5 / 3600 / rate * 1e6)
    assert figures.idle_seconds[node.gpus.uuids[6]] == pytest.approx(node.clock.now, abs=2.0)
    assert figures.idle_cost[node.gpus.uuids[7]] == pytest.approx(
        figures.idle_seconds[node.gpus.uuids[7]] * 2.5 / 3600
    )
    assert figures.idle_seconds[node.gpus.uuids[0]] < 10.0


def test_a_replica_without_clients_idles_all_the_time():
    quiet = ReplicaSpec(name="chat", model=LLAMA_8B, traffic=Traffic(rate=1e-6), ranks=((0,),))
    node = VirtualNode(Scenario(name="quiet", summary="", product=H100, replicas=(quiet,)))
    snapshot = node.live_until(30.0)
    assert snapshot.economics.idle_seconds[node.gpus.uuids[0]] > 25.0
    assert snapshot.economics.joules_per_token == {}


def test_the_daemon_prices_gpus_by_its_configuration_and_keeps_accounts_over_its_windows():
    text = "gpu: {enabled: false}\nwindows: [2m]\ncosts: {currency: EUR, gpu_hour: {card: 3.5}}"
    economy, assignments = App(parse(text, "test", {})).publisher._economy, tuple(own("a", 0))
    for second in range(0, 20, 5):
        at = 1000.0 + second
        serves = serving(generated=(at, 50.0 * second))
        result = economy([card(0, at=at, energy=5e8 + 100.0 * second)], [serves], assignments)
    assert (result.currency, result.prices) == ("EUR", {"GPU-0000": 3.5})
    assert result.joules_per_token == {("a", "2m"): pytest.approx(2.0)}


def test_the_daemon_hands_its_accounts_to_every_snapshot():
    publisher = App(parse("gpu: {enabled: false}\ncosts: {currency: EUR}", "test", {})).publisher
    assert publisher.compose().economics.currency == "EUR"


def test_a_replica_with_gpus_on_other_nodes_has_no_energy_and_cost_of_a_token():
    here, spanning = ReplicaWindow("a", "1m"), ReplicaWindow("b", "1m")
    both = Economics(
        currency="USD",
        joules_per_token={here: 4.0, spanning: 2.0},
        cost_per_million={here: 3.0, spanning: 1.5},
        revenue_per_hour={here: 5.0, spanning: 6.0},
    )
    kept = economics.without_replicas(both, {"b"})
    assert (kept.joules_per_token, kept.cost_per_million) == ({here: 4.0}, {here: 3.0})
    assert kept.revenue_per_hour == both.revenue_per_hour
    assert economics.without_replicas(both, set()) is both
