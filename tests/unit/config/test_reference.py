"""What is generated from the configuration's records: the JSON Schema, the example, and the reference."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping

import jsonschema
import pytest

from exporter.config import reference, settings
from exporter.config.document import read_document
from exporter.config.reader import ListOf
from exporter.config.section import UNSET, Section
from exporter.config.settings import SECTION, Settings
from exporter.errors import SettingsError
from tests.support.settings_texts import BAD, GOOD, GOOD_BASE, engine

ROOT = pathlib.Path(__file__).parents[3]
SCHEMA = ROOT / "exporter" / "config" / "schema.json"
KEY = re.compile(r"^( *)#(?! )", re.MULTILINE)


def plain(node):
    """A node as JSON has it; YAML's own words for truth are text, as for editors."""
    if isinstance(node.value, Mapping):
        return {name: plain(child) for name, child in node.value.items()}
    return [plain(child) for child in node.value] if isinstance(node.value, tuple) else node.value


def fits(text):
    root, problems = read_document(text)
    return not problems and jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).is_valid(plain(root))


def documented(section=SECTION, path=()):
    for name, key in section.keys.items():
        if key.hidden:
            continue
        yield (*path, name), key
        inner = key.reader.item if isinstance(key.reader, ListOf) else key.reader
        if isinstance(inner, Section):
            yield from documented(inner, (*path, name))


def test_the_committed_schema_and_reference_are_current():
    assert SCHEMA.read_text() == reference.json_schema(), "run make generate"
    assert (ROOT / "docs" / "configuration.md").read_text() == reference.reference(), "run make generate"
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_every_good_configuration_fits_the_schema(path):
    assert fits(path.read_text())


STRUCTURE = {
    "unknown key": "gpuu: {}",
    "unknown key in a list": engine("tiemout: 1s"),
    "missing key": "engines: [{name: a}]",
    "missing password file": engine("basic_auth: {username: a}"),
    "mapping for a list": "engines: {url: http://a}",
    "list for a mapping": "gpu: []",
    "text for a list": "windows: 1m",
    "text for a truth": "reload_endpoint: yes",
    "number for a duration": "gpu: {interval: 5}",
    "duration without a unit": "gpu: {interval: '5'}",
    "unknown word": "log: {level: loud}",
    "no url": engine(url="127.0.0.1:8000"),
    "no address": "listen: 9853",
    "no card": engine("gpus: [cuda:0]"),
    "no cards": engine("gpus: []"),
    "quantile of one": "quantiles: [1]",
    "too many windows": "windows: [1m, 2m, 3m, 4m, 5m]",
    "small letters": "costs: {currency: usd}",
    "price as text": "costs: {currency: USD, gpu_hour: {L4: free}}",
    "number for a file": "web_config_file: 1",
    "a scalar without a value": "series:",
}


@pytest.mark.parametrize("text", STRUCTURE.values(), ids=STRUCTURE)
def test_what_is_wrong_in_structure_does_not_fit_the_schema(text):
    assert not fits(text)
    with pytest.raises(SettingsError):
        settings.parse(text, "c.yaml", {})


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.name)
def test_no_bad_configuration_fits_the_schema(path):
    assert not fits(path.read_text(encoding="latin-1"))


def test_the_example_is_valid_and_sets_nothing():
    assert settings.parse(reference.example(), "example.yaml", {}) == Settings()
    assert fits(reference.example())


def test_every_line_of_the_example_can_be_switched_on():
    text = (
        KEY.sub(r"\1", reference.example()).replace("/etc/shardwatch/", "files/").replace("http://127", "https://127")
    )
    for method, other in (("basic_auth", "bearer_token_file"), ("bearer_token_file", "basic_auth")):
        lines = re.sub(rf"^( *){other}:.*\n(\1  .*\n)*", "", text, flags=re.MULTILINE)
        parsed = settings.parse(lines, "example.yaml", {}, base=GOOD_BASE)
        assert fits(lines)
        assert [
            getattr(endpoint, method)
            for endpoint in (*parsed.engines, *parsed.gateways, *parsed.stores, *parsed.gpu.pages)
        ] != [None] * 4
    for path, _ in documented():
        assert re.search(rf"^ *(- )?{path[-1]}:", text, re.MULTILINE), path


def test_the_example_shows_the_true_defaults():
    lines = reference.example()
    for path, key in documented():
        if (
            key.default is not UNSET
            and not key.example
            and not key.default_text
            and not isinstance(key.reader, Section)
        ):
            if not isinstance(key.reader, ListOf) or not isinstance(key.reader.item, Section):
                shown = re.findall(rf"^ *#(?:- )?{path[-1]}: (.*)$", lines, re.MULTILINE)
                assert key.default_words in shown, path


def test_every_key_is_explained_and_every_optional_scalar_has_a_default_or_an_example():
    for path, key in documented():
        assert key.doc.endswith("."), path
        if not isinstance(key.reader, Section):
            assert key.required or key.example or key.default_words not in ("", "none") or path in [
                ("engines",), ("gateways",), ("stores",), ("gpu", "pages"), ("discovery", "http_sd"),
            ], path  # fmt: skip


def test_the_reference_has_a_row_for_every_key_and_links_that_lead_somewhere():
    text = reference.reference()
    for path, key in documented():
        assert f"| `{path[-1]}` | " in text and f"| {key.doc} |" in text, path
    headings = {re.sub(r"[^\w-]", "", line.lower()) for line in re.findall(r"^## (.*)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= headings
