"""KV-cache stores: declarations, recorded pages, windows, bad input, and the daemon's own series about them."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil

import pytest

from exporter.config.settings import STORE_KINDS
from exporter.engines.tables import by_kind as engine_of
from exporter.model.store import StoreQuantity
from exporter.stores import tables
from exporter.stores.reference import reference
from exporter.stores.store import Store
from exporter.stores.tables import STORES, recognise
from tests.support.store_probe import CAPTURES, RECORDINGS, capture, played, rendered

ROOT = pathlib.Path(__file__).parents[3]


def pages(stem):
    return [capture(name) for name in RECORDINGS[stem]]


def mooncake(queries, hits, **more):
    numbers = {"master_key_count": 1, "total_get_nums_": queries, "valid_get_nums_": hits, **more}
    return "".join(f"{name} {value}\n" for name, value in numbers.items()).encode()


def test_every_file_in_tables_declares_stores_that_are_in_the_list():
    declared = {
        value.kind
        for module in pkgutil.iter_modules(tables.__path__)
        for value in vars(importlib.import_module(f"{tables.__name__}.{module.name}")).values()
        if isinstance(value, Store)
    }
    assert declared == {store.kind for store in STORES} == set(STORE_KINDS)
    assert not any(engine_of(kind) for kind in declared), "a store is no replica"


def test_the_documentation_is_what_the_declarations_make():
    assert (ROOT / "docs/stores.md").read_text() == reference(), "run make generate"


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.kind)
def test_every_store_has_a_capture_on_which_each_quantity_is_read(store):
    recorded = [stem for stem in RECORDINGS if recognise(pages(stem)[-1]) is store]
    assert recorded, f"put a page of {store.title} into tests/captures/stores/ and its name into RECORDINGS"
    state = played(*pages(recorded[0])).state
    assert set(state.reading.quantities) == {row.quantity for row in store.fields}
    assert state.reading.parse_warnings == {}


@pytest.mark.parametrize("stem", RECORDINGS)
def test_a_recorded_store_gives_the_same_page_as_ever(stem, golden):
    golden(f"stores/{stem}.prom", rendered(played(*pages(stem)).state))


def test_every_golden_store_page_and_every_capture_belongs_to_a_test():
    assert {path.stem for path in (ROOT / "tests/golden/stores").iterdir()} == set(RECORDINGS)
    assert {path.name for path in CAPTURES.iterdir()} == {name for names in RECORDINGS.values() for name in names}


def test_a_miss_is_no_error_and_the_ratio_is_that_of_the_window():
    state = played(*pages("mooncake-0.3.13")[1:]).state
    assert set(state.reading.quantities[StoreQuantity.ERRORS].values()) == {0.0}
    # 769 more lookups between the two pages, 295 of them with a result.
    assert state.hit_ratio["1m"] == pytest.approx(295 / 769)
    assert state.usage == {"memory": pytest.approx(59768832 / 67108864)}


def test_a_restart_starts_from_its_counters_and_an_idle_store_has_no_ratio():
    assert played(mooncake(100, 90), mooncake(100, 90)).state.hit_ratio == {}
    state = played(mooncake(100, 90), mooncake(110, 95), mooncake(10, 0)).state
    assert state.hit_ratio["5m"] == pytest.approx(5 / 20)


def test_old_versions_of_lmcache_count_retrievals():
    page = (
        b'lmcache:num_requested_tokens_total{worker_id="0"} %d\nlmcache:num_requested_tokens_total{worker_id="1"} %d\n'
        b'lmcache:num_hit_tokens_total{worker_id="0"} %d\nlmcache:num_hit_tokens_total{worker_id="1"} %d\n'
    )
    state = played(page % (0, 0, 0, 0), page % (100, 100, 75, 75)).state
    assert state.hit_ratio["1m"] == pytest.approx(0.75)


def test_lmcache_is_read_from_the_page_of_the_engine_that_it_lives_in():
    engine = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name="m"} 3\n'
    assert played(engine + pages("lmcache-0.5.6")[0]).state.labels.kind == "lmcache"


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (b'vllm:num_requests_running{model_name="m"} 3\n', "unknown_store"),
        (b"# master_key_count 3\nup 1\n", "unknown_store"),
        (b"<html>502</html>", "unknown_store"),
        (b"", "unknown_store"),
    ],
)
def test_a_page_of_no_store_says_so_and_shows_nothing(page, reason):
    state = played(mooncake(1, 1), page).state
    assert (state.status.up, state.status.reason) == (False, reason)
    assert 'kv_store_up{store="pool",kind="mooncake"} 0' in rendered(state)
    assert "kv_store_queries" not in rendered(state)


def test_a_server_that_changes_kind_starts_anew():
    state = played(*pages("mooncake-0.3.13"), *pages("lmcache-0.5.6")).state
    assert state.labels.kind == "lmcache"
    assert state.hit_ratio["5m"] == pytest.approx(32000 / 40000)


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1e400"])
def test_a_number_that_cannot_be_is_absent_and_counted(value):
    poller = played(mooncake(10, 5) + f"master_allocated_bytes {value}\nmaster_total_capacity_bytes 5\n".encode())
    state = poller.state
    assert StoreQuantity.USED not in state.reading.quantities
    assert state.usage == {}
    assert poller.parse_warnings == {"bad_number": 1}


def test_a_truncated_page_moves_no_window():
    whole = mooncake(100, 90)
    state = played(whole, whole[:-4]).state
    assert state.hit_ratio == {}


def test_doubled_and_mixed_pages_count_each_series_once():
    page = pages("mooncake-0.3.13")[2]
    once, twice = played(page).state, played(page + pages("lmcache-0.5.6")[1] + page, kind="mooncake").state
    assert twice.reading.quantities == once.reading.quantities


def test_tiers_that_a_store_names_are_bounded():
    tiers = "".join(f'lmcache_mp_l2_usage_bytes{{l2_name="t{n}\\u001b"}} 1\n' for n in range(500))
    poller = played(b"lmcache_mp_lookup_requested_tokens_total 1\n" + tiers.encode())
    assert len(poller.state.reading.quantities[StoreQuantity.USED]) <= 24
    assert poller.parse_warnings["too_many_label_sets"] > 400


def test_a_store_without_its_series_under_a_fixed_kind_is_told_where_they_are(caplog):
    state = played(b"up 1\n", kind="mooncake").state
    assert state.status.reason == "no_store_metrics"
    assert "9003" in caplog.text
