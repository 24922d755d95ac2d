"""Hints at what the shipped alerts and dashboards would lack: what they say, that it is true, and where it is said."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

import pytest

from alerts.registry import groups
from alerts.tuning import Tuning
from exporter.catalog.spec import SeriesSet
from exporter.cli.main import main
from exporter.config.lint import LONGEST, LONGEST_ONLY, WINDOW_USERS, access_hints, config_lint
from exporter.config.settings import Settings, parse
from exporter.derive.windows import History
from exporter.model import Economics, LatencySummary, Stage, WindowFigures
from exporter.render.exposition import ExpositionRenderer
from exporter.runtime.app import App
from tests.support.builders import replica, snapshot

GENERATED = pathlib.Path(__file__).parents[3] / "dashboards" / "generated" / "en"
READ = re.compile(r'(\w+)\{[^}]*?\bwindow="(\w+)"')
WATCHER = "WindowMissing"  # the alert that reads the windows to say that one is missing


@dataclasses.dataclass(frozen=True)
class Sums:
    at: float


def of_the_longest_window_only(series):
    """The rows that show a replica's longer window and not its shorter one, though both have figures."""
    latency = LatencySummary(quantiles={0.99: 1.0}, observations=9.0, overflow_ratio=0.5)
    both = {label: WindowFigures(seconds=60.0, latency=dict.fromkeys(Stage, latency)) for label in ("1m", "5m")}
    numbers = {("a", "1m"): 1.0, ("a", "5m"): 2.0}
    economics = Economics(
        currency="USD", joules_per_token=numbers, tokens_per_joule=numbers, cost_per_million=numbers
    )
    node = snapshot(replicas=(replica("a", windows=both),), economics=economics)
    text = ExpositionRenderer(openmetrics=False, series=SeriesSet(series)).render(node).body.decode()
    shown = {label: {metric for metric, window in READ.findall(text) if window == label} for label in ("1m", "5m")}
    return shown["5m"] - shown["1m"]


def warnings(text, *, series="common"):
    return config_lint(parse(f"{text}\nlisten: 127.0.0.1:9853\nseries: {series}\n", "test.yaml", {}))


def panels(of):
    for panel in of:
        yield panel
        yield from panels(panel.get("panels", []))


def read_by_dashboards():
    """(metric, window, dashboard) of every panel that names a window."""
    for path in GENERATED.glob("*.json"):
        board = json.loads(path.read_text())
        title = board["title"].split(" / ")[1]
        for panel in panels(board["panels"]):
            for target in panel.get("targets", []):
                for metric, window in READ.findall(target.get("expr", "")):
                    yield metric, window, title


def read_by_alerts():
    """(metric, window, alert) of every alert that names a window, the one left out that tells of missing ones."""
    for group in groups(Tuning()):
        for alert in group.alerts():
            if alert.name != WATCHER:
                for metric, window in READ.findall(str(alert.expr)):
                    yield metric, window, alert.name


def test_the_readers_of_each_window_are_those_that_read_it():
    alerts, dashboards = list(read_by_alerts()), list(read_by_dashboards())
    assert {window for _, window, _ in alerts + dashboards} == set(WINDOW_USERS)
    for label, users in WINDOW_USERS.items():
        assert {name for _, window, name in alerts if window == label} == set(users.alerts), label
        assert {name for _, window, name in dashboards if window == label} == set(users.dashboards), label


@pytest.mark.parametrize("series", LONGEST_ONLY)
def test_the_readers_of_the_longest_window_only_are_dashboards_and_name_the_same_window(series):
    rows = of_the_longest_window_only(series)
    assert rows and not [name for metric, _, name in read_by_alerts() if metric in rows]
    readers = {(window, name) for metric, window, name in read_by_dashboards() if metric in rows}
    assert readers == {(LONGEST, name) for name in LONGEST_ONLY[series][1]}


def test_the_default_windows_need_no_advice():
    assert [] == warnings("windows: [5m, 30s, 1m]") == warnings("")


def test_listening_on_all_addresses_without_access_control_is_hinted_at(tmp_path):
    (hint,) = config_lint(Settings())
    assert hint.startswith("listen: ") and "web_config_file" in hint


@pytest.mark.parametrize(
    ("listen", "protections", "hint"),
    [
        ("0.0.0.0:9853", (), "listen: everybody who reaches this host"),
        ("127.0.0.1:9853", (), None),
        ("0.0.0.0:9853", ("basic_auth_users",), "web_config_file: passwords pass in clear text"),
        ("10.0.0.7:9853", ("basic_auth_users",), "web_config_file: passwords pass in clear text"),
        ("127.0.0.1:9853", ("basic_auth_users",), None),
        ("0.0.0.0:9853", ("tls_server_config",), "web_config_file: TLS alone keeps nobody out"),
        ("127.0.0.1:9853", ("tls_server_config",), None),
        ("0.0.0.0:9853", ("tls_server_config", "client_auth_type"), None),
        ("0.0.0.0:9853", ("tls_server_config", "basic_auth_users"), None),
    ],
)
def test_what_a_web_configuration_leaves_open_is_hinted_at(listen, protections, hint, tmp_path):
    web = tmp_path / "web.yml"
    web.touch()
    settings = parse(f"listen: {listen}\nweb_config_file: {web}\n", "test.yaml", {})
    hints = access_hints(settings, protections)
    assert len(hints) == (hint is not None) and all(found.startswith(str(hint)) for found in hints)


@pytest.mark.parametrize("content", ["", "# nothing yet\n", "basic_auth_users: {}\n"])
def test_check_config_hints_at_a_web_configuration_that_protects_nothing(content, tmp_path, capsys):
    (tmp_path / "web.yml").write_text(content)
    path = tmp_path / "c.yaml"
    path.write_text("listen: 0.0.0.0:9853\nweb_config_file: web.yml\n")
    assert main(["check-config", str(path)]) == 0
    assert "hint: listen: everybody who reaches this host can read the endpoint" in capsys.readouterr().out


def test_who_does_not_listen_is_not_told_who_can_read_it():
    assert not config_lint(Settings(), listens=False)


def test_a_window_that_is_missing_is_named_with_what_it_silences():
    (only,) = warnings("windows: [1m]")
    assert only.startswith("windows: without 5m ") and "GatewayUneven and HighErrorRatio" in only
    assert [hint.split()[2] for hint in warnings("windows: [10s]")] == ["1m", "5m"]
    assert "alert" not in warnings("windows: [5m]")[0]


@pytest.mark.parametrize(("series", "what"), [("common", "cost of a token"), ("full", "tokens per joule")])
def test_a_window_longer_than_what_the_dashboards_read_is_named(series, what):
    (hint,) = warnings("windows: [1m, 5m, 1h]", series=series)
    assert hint.startswith("windows: with 1h ") and what in hint


SLOW_ENGINE = "engines: [{name: a, url: 'http://x/', interval: 30s}, {name: b, url: 'http://y/', interval: 5s}]\n"


@pytest.mark.parametrize(
    ("windows", "names"),
    [
        ("[1m, 5m]", []),
        ("[59s, 1m, 5m]", ["59s"]),
        ("[10s, 1m, 5m]", ["10s"]),
        ("[20s, 50s, 1m, 5m]", ["20s", "50s"]),
    ],
)
def test_a_window_in_which_an_engine_is_hardly_polled_is_named_with_the_engine(windows, names):
    hints = warnings(f"{SLOW_ENGINE}windows: {windows}")
    assert [hint.split()[1] for hint in hints] == names
    assert all("engine a " in hint and "30s" in hint and "engine b" not in hint for hint in hints)


def test_many_slow_sources_are_one_hint_for_each_window_and_gateways_are_among_them():
    engines = ", ".join(f"{{name: e{n}, url: 'http://x:{n + 1}/', interval: 10m}}" for n in range(20))
    gateways = "gateways: [{name: edge, url: 'http://z/', interval: 31s}]"
    first, second = warnings(f"engines: [{engines}]\n{gateways}\nwindows: [1m, 5m]")
    assert "engine e0 " in first and "20 more" in first and len(first) < 400
    assert "engine e0 " in second and "19 more" in second
    (hint,) = warnings(gateways)
    assert hint.startswith("windows: 1m ") and "gateway edge " in hint


def test_figures_over_a_window_shorter_than_an_interval_never_come_and_two_intervals_always_give_them():
    """What the hint claims, said by the history that the figures are made from."""
    for interval, length, known in ((30.0, 10.0, False), (30.0, 29.9, False), (30.0, 60.0, True)):
        history = History((("w", length),))
        for number in range(20):
            history.add(Sums(at=1000.0 + number * interval))
            base = history.base("w")
        assert (base is not history.latest) is known


def test_check_config_says_it_and_the_configuration_stays_good(tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text("listen: 127.0.0.1:9853\nwindows: [1m, 15m]\n")
    assert main(["check-config", str(path)]) == 0
    good, hint = capsys.readouterr().out.splitlines()
    assert good.startswith(f"{path}: valid;") and hint.startswith(f"{path}: hint: windows: without 5m ")


def test_the_daemon_says_it_at_its_start_and_a_reload_says_only_what_is_new(caplog):
    alone = (
        "listen: 127.0.0.1:0\ngpu: {enabled: false}\ndiscovery: {processes: false}\nkernel_log: {enabled: false}\n"
    )
    texts = ["windows: [1m]", "windows: [1m]\nquantiles: [0.5]", "windows: [10s]", "windows: nonsense", ""]
    later = iter(texts[1:])
    app = App(parse(alone + texts[0], "test", {}), reread=lambda: parse(alone + next(later), "test", {}))

    def hints():
        hints = [record.message for record in caplog.records if record.message.startswith("event=hint ")]
        caplog.clear()
        return [" ".join(text.split()[:4]) for text in hints]

    app.start()
    try:
        assert hints() == ['event=hint msg="windows: without 5m']
        assert app.reload().ok and hints() == []
        assert app.reload().ok and hints() == ['event=hint msg="windows: without 1m']
        assert not app.reload().ok and hints() == []
        assert app.reload().ok and hints() == []
    finally:
        app.stop()
    assert app.assignments._thread is not None
    app.assignments._thread.join(5.0)


@pytest.mark.parametrize(
    "url, hinted",
    [("http://10.0.0.7:8000/metrics", True), ("https://10.0.0.7:8000/metrics", False),
     ("http://127.0.0.1:8000/metrics", False), ("http://localhost:8000/metrics", False)],
)  # fmt: skip
def test_credentials_over_http_to_another_host_are_hinted_at(url, hinted, tmp_path):
    (tmp_path / "token").write_text("t")
    text = f"engines: [{{name: chat, url: '{url}', bearer_token_file: {tmp_path}/token}}]\n"
    hints = [hint for hint in config_lint(parse(text, "test", {})) if "over http" in hint]
    message = "engines: chat gets its credentials over http, where the network can read them; use https"
    assert hints == ([message] if hinted else [])


def test_credentials_of_discovery_over_http_are_hinted_at(tmp_path):
    (tmp_path / "token").write_text("t")
    token = f"bearer_token_file: {tmp_path}/token"
    text = (
        f"discovery:\n  http_sd: [{{url: 'http://inventory/list', {token}}}, {{url: 'https://other/list', {token}}}]\n"
        f"  ray_url: http://head:8265\n  ray_{token}\n"
        f"  kubernetes: {{enabled: true, url: 'http://127.0.0.1:8001', {token}}}\n"
    )
    hints = [hint for hint in config_lint(parse(text, "test", {})) if "over http" in hint]
    assert [hint.partition(" gets")[0] for hint in hints] == [
        "discovery.http_sd: inventory:80",
        "discovery.ray_url: the dashboard",
    ]
