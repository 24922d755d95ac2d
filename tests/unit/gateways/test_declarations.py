"""One file declares a gateway: nothing that a gateway needs elsewhere can be forgotten."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil

import pytest

from exporter.config.settings import GATEWAY_KINDS
from exporter.gateways import tables
from exporter.gateways.detect import recognise
from exporter.gateways.gateway import Gateway
from exporter.gateways.reference import outcomes, reference
from exporter.gateways.tables import GATEWAYS
from tests.support.gateway_probe import RECORDINGS, capture

ROOT = pathlib.Path(__file__).parents[3]
every_gateway = pytest.mark.parametrize("gateway", GATEWAYS, ids=lambda gateway: gateway.kind)


def test_every_file_in_tables_declares_gateways_that_are_in_the_list():
    declared = {
        value.kind
        for module in pkgutil.iter_modules(tables.__path__)
        for value in vars(importlib.import_module(f"{tables.__name__}.{module.name}")).values()
        if isinstance(value, Gateway)
    }
    assert declared == {gateway.kind for gateway in GATEWAYS} == set(GATEWAY_KINDS)


def test_the_documentation_is_what_the_declarations_make():
    assert (ROOT / "docs/gateways.md").read_text() == reference(), "run make generate"
    assert (ROOT / "docs/outcomes.md").read_text() == outcomes(), "run make generate"


@every_gateway
def test_every_gateway_has_a_capture_and_that_capture_its_golden_page(gateway):
    recorded = [stem for stem, names in RECORDINGS.items() if recognise(capture(names[0])) is gateway]
    assert recorded, f"put a page of {gateway.title} into tests/captures/gateways/ and its name into RECORDINGS"
    for stem in recorded:
        golden = (ROOT / f"tests/golden/gateways/{stem}.prom").read_text()
        assert f'kind="{gateway.kind}"' in golden


@every_gateway
def test_every_gateway_says_where_its_metrics_are(gateway):
    assert gateway.hint
    assert gateway.title


@every_gateway
def test_marks_are_of_names_that_are_read_or_of_pages_that_hold_nothing_yet(gateway):
    names = {name for field in gateway.fields for name in field.names}
    assert any(name.startswith(gateway.marks) for name in names)
