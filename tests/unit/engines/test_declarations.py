"""One file declares an engine: nothing that an engine needs elsewhere can be forgotten."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil

import pytest

from exporter.config.settings import ENGINE_KINDS, parse
from exporter.engines import tables
from exporter.engines.detect import recognise
from exporter.engines.engine import SIGNALS, Engine
from exporter.engines.reference import reference
from exporter.engines.tables import ENGINES, SERVERS
from exporter.model import Quantity, Stage
from exporter.sources.processes.classifier import ServerClassifier
from tests.support.engine_pages import CAPTURES, interpret

ROOT = pathlib.Path(__file__).parents[3]
JUDGED = (Stage.TIME_TO_FIRST_TOKEN, Stage.INTER_TOKEN, Stage.REQUEST)
CLASSES = ("interactive", "standard", "batch")
every_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.kind)


def test_every_file_in_tables_declares_engines_that_are_in_the_list():
    declared = {
        value.kind
        for module in pkgutil.iter_modules(tables.__path__)
        for value in vars(importlib.import_module(f"{tables.__name__}.{module.name}")).values()
        if isinstance(value, Engine)
    }
    listed = [engine.kind for engine in ENGINES]
    forgotten = ", ".join(sorted(declared - set(listed)))
    assert not forgotten, f"add {forgotten} to ENGINES in exporter/engines/tables/__init__.py"
    assert sorted(listed) == sorted(declared), "ENGINES has an engine twice, or one that no file declares"


def test_wrappers_come_last_because_the_first_of_the_list_wins_on_a_page_with_several():
    wrappers = [engine.wrapper for engine in ENGINES]
    assert wrappers == sorted(wrappers)


@every_engine
def test_every_engine_may_be_named_in_a_configuration(engine):
    assert engine.kind in ENGINE_KINDS
    settings = parse(f"engines: [{{url: 'http://127.0.0.1:1', kind: {engine.kind}}}]", "test", {})
    assert settings.engines[0].kind == engine.kind


@every_engine
def test_every_engine_has_a_capture_and_that_capture_its_golden_page(engine):
    captures = [path for path in CAPTURES.glob("*.prom") if recognise(path.read_bytes()) is engine]
    assert captures, f"put a page of {engine.title} into tests/captures/"
    golden = (CAPTURES.parent / "golden").glob("*.prom")
    assert any(f'engine="{engine.kind}"' in path.read_text() for path in golden), "run pytest --update-golden"


@every_engine
def test_every_engine_is_in_the_documentation(engine):
    documented = f"| {engine.title} | `{engine.kind}` |" in (ROOT / "docs/engines.md").read_text()
    assert documented, "run make generate"
    named = engine.title in (ROOT / "README.md").read_text()  # apart from the assertion, which would print the README
    assert named, f"name {engine.title} in README.md's table of what is understood"


def test_the_documentation_is_what_the_declarations_make():
    is_current = (ROOT / "docs/engines.md").read_text() == reference()
    assert is_current, "run make generate"


@every_engine
def test_every_signal_is_filled_by_a_field_or_said_to_be_missing(engine):
    given = {field.target for field in engine.fields if not field.count}  # a mean alone is said to be missing
    missing = engine.missing()
    for signal in SIGNALS:
        assert (signal in given) != (signal.value in missing)
    assert set(engine.reasons) <= set(missing), "a reason for something that is not missing"


@every_engine
def test_names_of_a_table_are_of_its_engine_and_what_it_calls_live_is_read(engine):
    names = {name for field in engine.fields for name in (*field.names, *field.plus.values())}
    assert {name for name in names if not engine.matches(name)} <= {"http_requests_total"}
    assert engine.wanted_names() >= set(engine.live)
    assert all(engine.matches(name) for name in engine.live)


@every_engine
def test_every_engine_is_judged_by_bounds_of_its_own_or_says_why_it_is_not(engine):
    targets = {name: engine.targets.of(name) for name in CLASSES}
    assert bool(engine.not_judged) != any(targets.values())
    given = {field.target for field in engine.fields}
    for by_stage in targets.values():
        assert all(stage in given and seconds in engine.buckets[stage] for stage, seconds in by_stage.items())
    if not engine.not_judged:
        assert set(targets["standard"]) == given & set(JUDGED), "a latency that it gives is not judged"


@every_engine
def test_the_bounds_of_an_engine_ascend_and_are_of_latencies_that_it_gives(engine):
    given = {field.target for field in engine.fields if isinstance(field.target, Stage)}
    for stage, bounds in engine.buckets.items():
        assert stage in given
        assert list(bounds) == sorted(set(bounds))


@every_engine
def test_the_bounds_of_an_engine_are_those_of_its_captures(engine):
    found: dict[Stage, set[float]] = {}
    for path in CAPTURES.glob("*.prom"):
        body = path.read_bytes()
        if recognise(body) is engine and "handmade" not in path.stem:
            for stage, by_rank in interpret(body).histograms.items():
                found.setdefault(stage, set()).update(*(histogram.bounds for histogram in by_rank.values()))
    for name in CLASSES:
        for stage, seconds in engine.targets.of(name).items():
            assert stage not in found or seconds in found[stage]


@every_engine
def test_a_server_is_found_by_each_of_its_declared_commands(engine):
    classifier = ServerClassifier(SERVERS)
    for server in engine.servers:
        programs = [(name.rstrip("*"), *server.subcommand) for name in server.programs if "." not in name]
        modules = [("python3", "-m", module) for module in server.modules]
        for command in (*programs, *modules, *((title,) for title in server.titles)):
            found = classifier.classify(command)
            assert found is not None and (found.kind, found.server) == (engine.kind, server), command
            title = command[0][:15]
            assert classifier.may_be_server(title)


def test_no_two_quantities_of_one_engine_are_filled_twice():
    for engine in ENGINES:
        quantities = [field.target for field in engine.fields if isinstance(field.target, (Quantity, Stage))]
        assert len(quantities) == len(set(quantities)), engine.kind
