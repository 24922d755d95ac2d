"""From a replica's figures to the traces of its requests."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from dashboards.__main__ import files, main
from dashboards.trace_links import JAEGER_URL, with_jaeger_url
from exporter.model.text import Language
from tests.support import stack_files
from tests.support.dashboard_queries import LANGUAGES, UIDS, dashboard, panels


def links(data):
    for panel in panels(data):
        for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", ()):
            if link["url"].startswith(JAEGER_URL):
                yield panel, link


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_users_feel_of_a_replica_leads_to_its_traces(language):
    trace_links = list(links(dashboard("shardwatch-replica", language)))
    assert len(trace_links) == 3
    for panel, link in trace_links:
        parts = urlsplit(link["url"])
        asked = parse_qs(parts.query)
        assert parts.path == "/search"
        assert asked["service"] == ["${__field.labels.replica:percentencode}"]
        assert (asked["start"], asked["end"]) == (["${__from}000"], ["${__to}000"])  # microseconds
        assert all("replica" in target["legendFormat"] for target in panel["targets"])


def test_other_dashboards_have_no_such_links():
    for uid in set(UIDS) - {"shardwatch-replica"}:
        assert not list(links(dashboard(uid)))


def test_the_links_lead_where_the_stack_has_jaeger():
    assert f":{urlsplit(JAEGER_URL).port}:" in stack_files.compose()["services"]["jaeger"]["ports"][0]


def test_they_can_be_led_elsewhere():
    made = json.loads(files(Language.ENGLISH, "https://traces.example/jaeger/")["shardwatch-replica.json"])
    assert not list(links(made))
    assert json.dumps(made).count("https://traces.example/jaeger/search?service=") == 3


def test_without_jaeger_there_are_none_and_the_links_to_dashboards_stay():
    before = dashboard("shardwatch-replica")
    after = with_jaeger_url(before, "")
    assert "/search?service=" not in json.dumps(after)
    assert json.dumps(after).count("/d/shardwatch-gpu-health?") == json.dumps(before).count(
        "/d/shardwatch-gpu-health?"
    )
    assert with_jaeger_url(before, JAEGER_URL) == before


def test_the_command_line_leads_them(tmp_path):
    arguments = ["--output", str(tmp_path), "--language", "en", "--traces", "https://traces.example"]
    assert main(arguments) == 0
    assert "https://traces.example/search?" in (tmp_path / "en/shardwatch-replica.json").read_text()
    assert main([*arguments, "--check"]) == 0
    assert main([*arguments[:-2], "--check"]) == 1
