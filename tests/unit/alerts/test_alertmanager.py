"""Who is told what: the generated Alertmanager configuration, judged by amtool, and what is refused."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from alerts import alertmanager
from alerts.alertmanager import reader
from alerts.alertmanager.plan import DEFAULT_TIMINGS, NOTIFIED
from exporter.errors import SettingsError
from exporter.model.text import Language
from tests.support.alertmanager_texts import FULL, MINIMAL, ROBOTS, amtool, made, version, write
from tests.support.records import replace

# ------------------------------------------------------------------ what loads where


@pytest.mark.parametrize("text", [None, MINIMAL, FULL], ids=["default", "minimal", "full"])
def test_what_needs_no_newer_one_loads_in_the_oldest_alertmanager(text, tmp_path):
    configuration = write(tmp_path, text)
    assert "Needs Alertmanager 0.25 or newer." in configuration.read_text()
    assert "SUCCESS" in amtool("check-config", str(configuration))


def test_what_needs_a_newer_one_says_so_and_what_for(tmp_path):
    configuration = write(tmp_path, ROBOTS)
    header = configuration.read_text().split("templates:")[0]
    assert "Needs Alertmanager 0.32 or newer" in header
    for feature in ("0.26 for url_file", "0.31 for api_secret_file of WeCom", "0.32 for payload"):
        assert feature in header
    if version() >= (0, 32):
        assert "SUCCESS" in amtool("check-config", str(configuration))


def test_the_same_input_gives_the_same_bytes_and_both_languages_the_same_routes():
    assert made.__wrapped__(FULL) == made.__wrapped__(FULL)
    english, chinese = made(FULL), made(FULL, Language.CHINESE)
    assert english[0] == chinese[0]
    assert english[1] != chinese[1]


# ------------------------------------------------------------------ who is told


def routed(place, text, **labels):
    configuration = write(place, text)
    pairs = [f"{key}={json.dumps(value)}" for key, value in labels.items()]  # quoted, as amtool reads a matcher
    return amtool("config", "routes", "test", f"--config.file={configuration}", *pairs).strip()


@pytest.mark.parametrize(
    "labels, receiver",
    [
        ({"severity": "critical", "alertname": "GpuLost", "component": "gpu"}, "oncall"),
        ({"severity": "warning", "alertname": "GpuHot", "component": "gpu"}, "tickets"),
        ({"severity": "warning", "alertname": "GpuHot", "component": "gpu", "cluster": "east"}, "hardware"),
        (
            {"severity": "warning", "alertname": "EngineRestarting", "component": "engine", "cluster": "east"},
            "tickets",
        ),
        ({"severity": "critical", "alertname": "EngineDown", "component": "engine", "team": "a+b"}, "hardware"),
        ({"severity": "critical", "alertname": "EngineDown", "component": "engine", "team": 'c"d'}, "hardware"),
        ({"severity": "critical", "alertname": "EngineDown", "component": "engine", "team": "aab"}, "oncall"),
        ({"severity": "info", "alertname": "UtilizationLow", "component": "engine"}, "tickets"),
        ({"severity": "none", "alertname": "Watchdog", "component": "monitoring"}, "watchdog"),
        ({"severity": "page", "alertname": "SomebodyElses"}, "tickets"),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else value,
)
def test_an_alert_reaches_whom_its_severity_and_its_labels_say(labels, receiver, tmp_path):
    assert routed(tmp_path, FULL, **labels) == receiver


def test_amtool_itself_finds_the_receivers_of_every_severity(tmp_path):
    configuration = write(tmp_path)
    for severity, receiver in {"critical": "operators", "warning": "operators", "info": "operators"}.items():
        amtool(
            "config",
            "routes",
            "test",
            f"--config.file={configuration}",
            f"--verify.receivers={receiver}",
            f"severity={severity}",
        )
    amtool(
        "config",
        "routes",
        "test",
        f"--config.file={configuration}",
        "--verify.receivers=watchdog",
        "severity=none",
        "alertname=Watchdog",
    )


def test_without_a_receiver_the_watchdog_is_not_sent(tmp_path):
    assert routed(tmp_path, MINIMAL, severity="none", alertname="Watchdog") == "nobody"


def test_the_watchdog_is_sent_at_least_every_minute_and_never_resolved():
    tree = yaml.safe_load(made(FULL)[0])
    route = tree["route"]["routes"][0]
    # Alertmanager repeats at the first look after ``repeat``: the distance is the smallest such multiple.
    look, repeat = (int(route[key].removesuffix("s")) for key in ("group_interval", "repeat_interval"))
    assert look * -(-repeat // look) <= 60
    assert route["group_wait"] == "0s"
    watchdog = next(receiver for receiver in tree["receivers"] if receiver["name"] == "watchdog")
    assert [item["send_resolved"] for item in watchdog["webhook_configs"]] == [False]
    others = [route for route in tree["route"]["routes"] if route["receiver"] != "watchdog"]
    assert [route["matchers"] for route in others] == [[f'severity="{severity.value}"'] for severity in NOTIFIED]


def test_hours_hold_for_teams_too():
    tree = yaml.safe_load(made(FULL)[0])
    by_severity = {route["matchers"][0]: route for route in tree["route"]["routes"][1:]}
    warning = by_severity['severity="warning"']
    assert warning["mute_time_intervals"] == ["maintenance"] == warning["routes"][0]["mute_time_intervals"]
    assert by_severity['severity="info"']["active_time_intervals"] == ["business-hours"]
    assert "mute_time_intervals" not in by_severity['severity="critical"']
    assert all(
        span["location"] == "Europe/Berlin"
        for interval in tree["time_intervals"]
        for span in interval["time_intervals"]
    )


def test_resolved_notifications_are_sent_unless_a_channel_disables_them():
    tree = yaml.safe_load(made(ROBOTS)[0])
    app = next(receiver for receiver in tree["receivers"] if receiver["name"] == "app")
    assert app["wechat_configs"][0]["send_resolved"] is True
    assert app["webhook_configs"][0]["send_resolved"] is False


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    "change, path, words",
    [
        ({"receivers": {}}, "receivers", "at least one receiver"),
        ({"receivers": {"people": []}}, "receivers.people", "is empty"),
        (
            {"receivers": {"nobody": [{"webhook": {"url": "http://a/"}}]}},
            "receivers.nobody",
            "not watchdog or nobody",
        ),
        ({"receivers": {"people": [{"pigeon": {}}]}}, "receivers.people[0].?", "unknown kind"),
        (
            {"receivers": {"people": [{"slack": {"api_url": "https://hooks/x"}}]}},
            "receivers.people[0].slack.api_url",
            "name the file in url_file",
        ),
        (
            {"receivers": {"people": [{"pagerduty": {"routing_key": "abc"}}]}},
            "receivers.people[0].pagerduty.routing_key",
            "routing_key_file",
        ),
        (
            {"receivers": {"people": [{"email": {"password": "abc"}}]}},
            "receivers.people[0].email.password",
            "password_file",
        ),
        (
            {"receivers": {"people": [{"dingtalk": {"robot_url": "https://oapi/robot?access_token=1"}}]}},
            "receivers.people[0].dingtalk.robot_url",
            "robot_url_file",
        ),
        (
            {"receivers": {"people": [{"webhook": {"url": "https://u:p@a.example/"}}]}},
            "receivers.people[0].webhook.url",
            "carries a secret",
        ),
        (
            {"receivers": {"people": [{"webhook": {"url": "https://a.example/?access_token=s3cret"}}]}},
            "receivers.people[0].webhook.url",
            "carries a secret",
        ),
        (
            {"receivers": {"people": [{"webhook": {"url": "a.example"}}]}},
            "receivers.people[0].webhook.url",
            "an address such as",
        ),
        (
            {"receivers": {"people": [{"webhook": {"url": "http://[::1"}}]}},
            "receivers.people[0].webhook.url",
            "an address such as",
        ),
        (
            {"receivers": {"people": [{"webhook": {"url": "http://a/", "url_file": "/a"}}]}},
            "receivers.people[0].webhook",
            "needs url or url_file",
        ),
        (
            {"receivers": {"people": [{"slack": {"url_file": "slack", "channel": "#a"}}]}},
            "receivers.people[0].slack.url_file",
            "absolute path",
        ),
        (
            {"receivers": {"people": [{"slack": {"url_file": "/a"}}]}},
            "receivers.people[0].slack",
            "needs channel and url_file",
        ),
        (
            {"receivers": {"people": [{"slack": {"url_file": "/a", "channel": "{{ .X }}"}}]}},
            "receivers.people[0].slack.channel",
            "no template",
        ),
        (
            {"receivers": {"people": [{"email": {"to": "nobody", "from": "a@b", "smarthost": "h:25"}}]}},
            "receivers.people[0].email.to",
            "address such as gpu@",
        ),
        (
            {"receivers": {"people": [{"email": {"to": "a@b", "from": "a@b", "smarthost": "h"}}]}},
            "receivers.people[0].email.smarthost",
            "host:port",
        ),
        (
            {"receivers": {"people": [{"webhook": {"url": "http://a/", "resolved": "no"}}]}},
            "receivers.people[0].webhook.resolved",
            "true or false",
        ),
        ({"routes": {"critical": "people"}}, "routes.warning", "is missing"),
        (
            {"routes": {"critical": "me", "warning": "people", "info": "people"}},
            "routes.critical",
            "no receiver has this name",
        ),
        ({"teams": [{"warning": "people"}]}, "teams[0].match", "is missing"),
        (
            {"teams": [{"match": {"component": ["card"]}, "warning": "people"}]},
            "teams[0].match.component",
            "expected one of: gpu",
        ),
        (
            {"teams": [{"match": {"severity": "info"}, "warning": "people"}]},
            "teams[0].match.severity",
            "teams are not selected by it",
        ),
        ({"teams": [{"match": {"team": "a"}}]}, "teams[0]", "notifies nobody"),
        ({"times": {"location": "Berlin; rm"}}, "times.location", "time zone"),
        ({"times": {"only_then": ["info"]}}, "times.only_then", "needs business_hours"),
        (
            {"times": {"business_hours": {"days": ["monday"]}, "only_then": ["critical"]}},
            "times.only_then",
            "cannot wait",
        ),
        ({"times": {"business_hours": {"from": "18:00", "to": "09:00"}}}, "times.business_hours", "after midnight"),
        ({"times": {"business_hours": {"from": "9", "to": "18:00"}}}, "times.business_hours.from", "such as 09:00"),
        ({"times": {"business_hours": {"days": ["friday:monday"]}}}, "times.business_hours.days[0]", "within a week"),
        ({"times": {"maintenance": [{"days": ["sunday"]}]}}, "times", "need each other"),
        ({"timing": {"warning": {"wait": "soon"}}}, "timing.warning.wait", "30s, 5m"),
        ({"timing": {"info": {"interval": "2h", "repeat": "1h"}}}, "timing.info", "shorter than interval"),
        ({"colour": "red"}, "?", "expected one of: receivers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_file_is_refused_with_the_place_and_the_cure(change, path, words):
    with pytest.raises(SettingsError) as refused:
        reader.read(yaml.safe_dump({**yaml.safe_load(MINIMAL), **change}, allow_unicode=True))
    messages = {problem.path: problem.message for problem in refused.value.problems}
    assert words in messages.get(path, ""), messages
    assert "s3cret" not in str(refused.value)


def test_all_problems_are_reported_at_once():
    with pytest.raises(SettingsError) as refused:
        reader.read("receivers: {a: [{slack: {token: x}}]}\nroutes: {critical: b}\ntimes: {location: 7}")
    assert len(refused.value.problems) >= 4


def test_everything_that_the_file_explains_can_be_switched_on():
    with open(alertmanager.DEFAULT, encoding="utf-8") as file:
        lines = file.read().split("\n\n", 1)[1].splitlines()
    keyed = re.compile(r"# ((?:teams|times|timing):|  +\S.*)")
    text = "\n".join(match[1] if (match := keyed.fullmatch(line)) else line for line in lines)
    text = text.replace("warning: hardware", "warning: operators")
    plan = reader.read(text)
    assert (plan.teams, plan.times.maintenance, plan.times.location) != ((), (), "UTC")
    assert plan == replace(plan, timings=dict(DEFAULT_TIMINGS)), "the paces that it shows are those that are used"
