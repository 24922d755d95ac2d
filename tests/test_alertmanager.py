"""Who is told what: the generated Alertmanager configuration, judged by amtool and by a real Alertmanager."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
import servers
import yaml

from alerts import alertmanager
from alerts.alertmanager import inhibition, reader
from alerts.alertmanager.files import CONFIGURATION, TEMPLATES
from alerts.alertmanager.plan import TOLD
from alerts.registry import groups
from alerts.render import RULES, files
from alerts.rule import RuleError, Severity
from alerts.text import Language
from alerts.tuning import Tuning
from exporter.errors import SettingsError

MINIMAL = """
receivers:
  people: [{webhook: {url: "http://127.0.0.1:5001/x"}}]
routes: {critical: people, warning: people, info: people}
"""
FULL = """
receivers:
  oncall:
    - pagerduty: {routing_key_file: /etc/alertmanager/pagerduty}
    - wecom: {adaptor: "http://127.0.0.1:8060/wecom"}
  tickets:
    - slack: {url_file: /etc/alertmanager/slack, channel: "#gpu"}
    - email: {to: gpu@example.org, from: am@example.org, smarthost: "smtp.example.org:587", username: am, password_file: /etc/alertmanager/smtp}
  hardware:
    - dingtalk: {adaptor: "http://127.0.0.1:8060/dingtalk/ops/send"}
    - feishu: {adaptor: "http://127.0.0.1:8061/"}
  heartbeat:
    - webhook: {url: "https://example.org/beat", bearer_token_file: /etc/alertmanager/beat}
routes: {critical: oncall, warning: tickets, info: tickets, watchdog: heartbeat}
teams:
  - match: {component: [gpu], cluster: east}
    warning: hardware
  - match: {team: ["a+b", 'c"d']}
    critical: hardware
times:
  location: Europe/Berlin
  business_hours: {days: ["monday:friday"], from: "09:00", to: "18:00"}
  only_then: [info]
  maintenance: [{days: [sunday], from: "02:00", to: "04:00"}]
  muted_then: [warning, info]
timing:
  warning: {wait: 1m, repeat: 1d}
"""
ROBOTS = """
receivers:
  robots:
    - wecom: {robot_url_file: /etc/alertmanager/wecom}
    - dingtalk: {robot_url_file: /etc/alertmanager/dingtalk}
    - feishu: {robot_url_file: /etc/alertmanager/feishu}
  app:
    - wecom: {corp_id: ww1, agent_id: "1000002", secret_file: /etc/alertmanager/wecom-app, to_party: "2"}
    - webhook: {url_file: /etc/alertmanager/hook, resolved: false}
routes: {critical: robots, warning: app, info: app}
"""


def made(text=None, language=Language.ENGLISH):
    """Give the configuration and the templates as text."""
    plan = reader.load(alertmanager.DEFAULT) if text is None else reader.read(text)
    found = {path.name: content for path, content in alertmanager.files(groups(Tuning()), plan, [language]).items()}
    return found[CONFIGURATION], found[TEMPLATES]


def write(place, text=None, language=Language.ENGLISH):
    configuration, templates = made(text, language)
    (place / CONFIGURATION).write_text(configuration)
    (place / TEMPLATES).write_text(templates)
    return place / CONFIGURATION


def amtool(*arguments):
    done = subprocess.run([servers.program("amtool"), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def version():
    done = subprocess.run([servers.program("amtool"), "--version"], capture_output=True, text=True, timeout=60)
    found = re.search(r"version (\d+)\.(\d+)", done.stdout + done.stderr)
    return int(found[1]), int(found[2])


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
    assert made(FULL) == made(FULL)
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


def test_without_somebody_for_the_watchdog_it_reaches_nobody(tmp_path):
    assert routed(tmp_path, MINIMAL, severity="none", alertname="Watchdog") == "nobody"


def test_the_watchdog_comes_at_least_every_minute_and_tells_of_no_recovery():
    tree = yaml.safe_load(made(FULL)[0])
    route = tree["route"]["routes"][0]
    # Alertmanager repeats at the first look after ``repeat``: the distance is the smallest such multiple.
    look, repeat = (int(route[key].removesuffix("s")) for key in ("group_interval", "repeat_interval"))
    assert look * -(-repeat // look) <= 60
    assert route["group_wait"] == "0s"
    watchdog = next(one for one in tree["receivers"] if one["name"] == "watchdog")
    assert [one["send_resolved"] for one in watchdog["webhook_configs"]] == [False]
    others = [route for route in tree["route"]["routes"] if route["receiver"] != "watchdog"]
    assert [route["matchers"] for route in others] == [[f'severity="{one.value}"'] for one in TOLD]


def test_hours_hold_for_teams_too_because_alertmanager_hands_them_to_nobody():
    tree = yaml.safe_load(made(FULL)[0])
    by_severity = {route["matchers"][0]: route for route in tree["route"]["routes"][1:]}
    warning = by_severity['severity="warning"']
    assert warning["mute_time_intervals"] == ["maintenance"] == warning["routes"][0]["mute_time_intervals"]
    assert by_severity['severity="info"']["active_time_intervals"] == ["business-hours"]
    assert "mute_time_intervals" not in by_severity['severity="critical"']
    assert all(
        span["location"] == "Europe/Berlin" for one in tree["time_intervals"] for span in one["time_intervals"]
    )


def test_all_clears_come_unless_a_channel_does_not_want_them():
    tree = yaml.safe_load(made(ROBOTS)[0])
    app = next(one for one in tree["receivers"] if one["name"] == "app")
    assert app["wechat_configs"][0]["send_resolved"] is True
    assert app["webhook_configs"][0]["send_resolved"] is False


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    "change, path, words",
    [
        ({"receivers": {}}, "receivers", "names nobody"),
        ({"receivers": {"people": []}}, "receivers.people", "has no channel"),
        (
            {"receivers": {"nobody": [{"webhook": {"url": "http://a/"}}]}},
            "receivers.nobody",
            "not watchdog or nobody",
        ),
        ({"receivers": {"people": [{"pigeon": {}}]}}, "receivers.people[0].pigeon", "unknown kind"),
        (
            {"receivers": {"people": [{"slack": {"api_url": "https://hooks/x"}}]}},
            "receivers.people[0].slack.api_url",
            "its path as url_file",
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
        ({"routes": {"critical": "people"}}, "routes.warning", "nobody would be told"),
        (
            {"routes": {"critical": "me", "warning": "people", "info": "people"}},
            "routes.critical",
            "no receiver has this name",
        ),
        ({"teams": [{"warning": "people"}]}, "teams[0].match", "is missing"),
        (
            {"teams": [{"match": {"component": ["card"]}, "warning": "people"}]},
            "teams[0].match.component",
            "known: gpu",
        ),
        (
            {"teams": [{"match": {"severity": "info"}, "warning": "people"}]},
            "teams[0].match.severity",
            "teams are not chosen by it",
        ),
        ({"teams": [{"match": {"team": "a"}}]}, "teams[0]", "tells nobody"),
        ({"times": {"location": "Berlin; rm"}}, "times.location", "time zone"),
        ({"times": {"only_then": ["info"]}}, "times.only_then", "needs business_hours"),
        (
            {"times": {"business_hours": {"days": ["monday"]}, "only_then": ["critical"]}},
            "times.only_then",
            "does not wait",
        ),
        ({"times": {"business_hours": {"from": "18:00", "to": "09:00"}}}, "times.business_hours", "after midnight"),
        ({"times": {"business_hours": {"from": "9", "to": "18:00"}}}, "times.business_hours.from", "such as 09:00"),
        ({"times": {"business_hours": {"days": ["friday:monday"]}}}, "times.business_hours.days", "within a week"),
        ({"times": {"maintenance": [{"days": ["sunday"]}]}}, "times", "need each other"),
        ({"timing": {"warning": {"wait": "soon"}}}, "timing.warning.wait", "30s, 5m"),
        ({"timing": {"info": {"interval": "2h", "repeat": "1h"}}}, "timing.info", "shorter than interval"),
        ({"colour": "red"}, "colour", "unknown; known: receivers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_file_is_refused_with_the_place_and_the_cure(change, path, words):
    with pytest.raises(SettingsError) as refused:
        reader.read(yaml.safe_dump({**yaml.safe_load(MINIMAL), **change}, allow_unicode=True))
    found = {problem.path: problem.message for problem in refused.value.problems}
    assert words in found.get(path, ""), found
    assert "s3cret" not in str(refused.value)


def test_all_problems_are_told_at_once():
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
    assert plan == replace(plan, paces=dict(reader.PACES)), "the paces that it shows are those that are used"


# ------------------------------------------------------------------ what a message says


def message(status="firing", number=2, alert="GpuLost"):
    """A message as Alertmanager gives it to templates."""

    def one(gpu):
        labels = {
            "alertname": alert, "severity": "critical", "component": "gpu", "job": "shardwatch", "instance": "n1:9853",
            "gpu": str(gpu), "uuid": f"GPU-{gpu}", "replica": "chat-b",
        }  # fmt: skip
        annotations = {
            "summary": f"Card {gpu} of n1:9853 is lost", "description": f"Card {gpu} <b> & more: look.",
            "runbook_url": "https://wiki.example/runbook.md#gpulost",
            "dashboard_url": "https://grafana.example/d/shardwatch-fleet?viewPanel=101&var-instance=n1%3A9853",
        }  # fmt: skip
        return {
            "status": status, "labels": labels, "annotations": annotations, "startsAt": "2026-01-02T03:04:05Z",
            "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://p/", "fingerprint": f"{gpu:016x}",
        }  # fmt: skip

    alerts = [one(gpu) for gpu in range(number)]
    common = {key: value for key, value in alerts[0]["labels"].items() if number == 1 or key not in ("gpu", "uuid")}
    return {
        "receiver": "r", "status": status, "alerts": alerts, "groupLabels": {"alertname": alert},
        "commonLabels": common, "commonAnnotations": {}, "externalURL": "http://am/",
    }  # fmt: skip


def rendered(place, text, data, language=Language.ENGLISH, kind="text"):
    write(place, None, language)
    (place / "data.json").write_text(json.dumps(data))
    return amtool(
        "template", "render", f"--template.glob={place}/*.tmpl", f"--template.text={text}", f"--template.type={kind}",
        f"--template.data={place}/data.json",
    )  # fmt: skip


@pytest.mark.parametrize("what", ["text", "markdown", "slack", "html", "short"])
@pytest.mark.parametrize("language", list(Language))
def test_a_message_names_each_card_its_replica_and_node_and_links_to_help(what, language, tmp_path):
    text = rendered(
        tmp_path,
        f'{{{{ template "shardwatch.{what}" . }}}}',
        message(),
        language,
        "html" if what == "html" else "text",
    )
    card, node, replica, since, book = {
        Language.ENGLISH: ("card", "node", "replica", "since", "runbook"),
        Language.CHINESE: ("卡", "节点", "副本", "开始于", "处理手册"),
    }[language]
    for gpu in (0, 1):
        assert f"{node} n1:9853 {card} {gpu} (GPU-{gpu}) {replica} chat-b {since} 2026-01-02 03:04:05 UTC" in text
    assert text.count("https://wiki.example/runbook.md#gpulost") == 2
    assert text.count("https://grafana.example/d/shardwatch-fleet?viewPanel=101") == 2
    assert book in text
    if what == "html":
        assert "<b> & more" not in text, "what an alert says is not taken for markup"


def test_titles_say_how_bad_how_many_what_and_where(tmp_path):
    title = '{{ template "shardwatch.title" . }}'
    assert rendered(tmp_path, title, message()).strip() == "CRITICAL 2 · GpuLost n1:9853 chat-b"
    one = message(number=1)
    assert rendered(tmp_path, title, one, Language.CHINESE).strip() == "严重 1 · GpuLost n1:9853 GPU 0 chat-b"
    assert rendered(tmp_path, title, message("resolved")).strip() == "RESOLVED · GpuLost n1:9853 chat-b"
    assert rendered(tmp_path, title, message("resolved"), Language.CHINESE).startswith("已恢复 · ")


def test_a_label_with_a_colon_makes_no_title_that_yaml_would_take_apart(tmp_path):
    data = message()
    data["commonLabels"]["replica"] = "chat: b:"
    text = filled('{{ template "shardwatch.title" . }}', tmp_path, data)
    assert text == "CRITICAL 2 · GpuLost n1:9853 chat b "


def test_what_is_over_is_listed_as_over(tmp_path):
    text = rendered(tmp_path, '{{ template "shardwatch.markdown" . }}', message("resolved"))
    assert text.count("**Over Card") == 2


def test_long_messages_are_cut_and_say_so(tmp_path):
    text = rendered(tmp_path, '{{ template "shardwatch.text" . }}', message(number=12))
    assert text.count("is lost") == 10
    assert "12 in all; the first 10 are shown." in text


def longest(what):
    """Give the longest that an alert of ours says in Chinese, its labels filled with longish values."""
    rules = [
        rule
        for group in yaml.safe_load(files(groups(Tuning()), Tuning(), Language.CHINESE)[RULES])["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    said = [re.sub(r"\{\{.*?\}\}", "x" * 30, rule["annotations"][what]) for rule in rules]
    return max(said, key=lambda text: len(text.encode()))


@pytest.mark.parametrize("what, most", [("short", 4096), ("markdown", 20_000)], ids=["WeCom", "DingTalk"])
def test_the_longest_messages_are_no_longer_than_robots_take(what, most, tmp_path):
    data = message(number=12)
    for number, alert in enumerate(data["alerts"]):
        alert["annotations"] = {key: longest(key) for key in alert["annotations"]}
        alert["labels"]["uuid"] = "GPU-00000000-0000-0000-0000-000000000000"
        if number >= 8:
            alert["status"] = "resolved"
    text = rendered(tmp_path, f'{{{{ template "shardwatch.{what}" . }}}}', data, Language.CHINESE)
    assert "xxxxxx" in text
    assert len(text.encode()) <= most


def payloads():
    tree = yaml.safe_load(made(ROBOTS)[0])
    robots = next(one for one in tree["receivers"] if one["name"] == "robots")
    return [one["payload"] for one in robots["webhook_configs"]]


def filled(tree, place, data):
    if isinstance(tree, dict):
        return {key: filled(value, place, data) for key, value in tree.items()}
    if isinstance(tree, list):
        return [filled(value, place, data) for value in tree]
    text = rendered(place, tree, data).removesuffix("\n") if "{{" in tree else tree
    # Its YAML reader takes what follows a closed bracket for nothing.
    assert text[0] not in "[{", f"Alertmanager 0.32 would take this apart: {text!r}"
    try:
        seen = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    assert isinstance(seen, str), f"Alertmanager 0.32 would take this apart: {text!r}"
    return text


@pytest.mark.parametrize("status", ["firing", "resolved"])
def test_robots_get_the_json_that_they_document(status, tmp_path):
    wecom, dingtalk, feishu = [filled(one, tmp_path, message(status)) for one in payloads()]
    assert (wecom["msgtype"], list(wecom["markdown"])) == ("markdown", ["content"])
    assert (dingtalk["msgtype"], sorted(dingtalk["markdown"])) == ("markdown", ["text", "title"])
    assert feishu["msg_type"] == "interactive"
    assert feishu["card"]["header"]["title"]["tag"] == "plain_text"
    assert feishu["card"]["header"]["template"] == {"firing": "red", "resolved": "green"}[status]
    assert feishu["card"]["elements"][0]["tag"] == "markdown"
    for text in (
        wecom["markdown"]["content"],
        dingtalk["markdown"]["text"],
        feishu["card"]["elements"][0]["content"],
    ):
        assert "Card 1 of n1:9853 is lost" in text


def test_a_new_enough_alertmanager_posts_to_robots_and_an_older_one_refuses_the_file(tmp_path):
    with servers.webhook() as inbox:
        names = ("wecom", "dingtalk", "feishu")
        for name in names:
            (tmp_path / name).write_text(f"{inbox.url}/{name}")
        robots = [{name: {"robot_url_file": str(tmp_path / name)}} for name in names]
        text = yaml.safe_dump(
            {
                "receivers": {"robots": robots},
                "routes": dict.fromkeys(("critical", "warning", "info"), "robots"),
                "timing": {"critical": {"wait": "1s", "interval": "1s"}},
            }
        )
        configuration = write(tmp_path, text)
        if version() < (0, 32):
            command = [servers.program("amtool"), "check-config", str(configuration)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode != 0
            assert "field payload not found" in done.stdout + done.stderr
            return
        with servers.alertmanager(configuration, folder=tmp_path) as manager:
            for alert in message()["alerts"]:
                manager.post("/api/v2/alerts", [{"labels": alert["labels"], "annotations": alert["annotations"]}])
            posts = inbox.wait(lambda posts: posts if len({path for _, path, _ in posts}) == 3 else None, 20)
        assert posts, "no robot was told"
    told = {path.strip("/"): body for _, path, body in posts}
    texts = (
        told["wecom"]["markdown"]["content"],
        told["dingtalk"]["markdown"]["text"],
        told["feishu"]["card"]["elements"][0]["content"],
    )
    assert all("Card 1 of n1:9853 is lost" in text for text in texts)
    assert told["dingtalk"]["markdown"]["title"] == "CRITICAL 2 · GpuLost n1:9853 chat-b"


def strings(tree):
    """Give every templated text of the receivers."""
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        if isinstance(value, str) and "{{" in value:
            yield value
        else:
            yield from strings(value)


def test_every_text_of_every_channel_renders_to_something(tmp_path):
    texts = {text for source in (FULL, ROBOTS) for text in strings(yaml.safe_load(made(source)[0])["receivers"])}
    assert len(texts) > 12
    for text in texts:
        kind = "html" if "shardwatch.html" in text else "text"
        assert rendered(tmp_path, text, message(number=1), kind=kind).strip(), text


def test_slack_is_told_with_links_and_who_mutes_warnings_in_maintenance_still_gets_pages(tmp_path):
    with servers.webhook() as inbox:
        (tmp_path / "slack").write_text(inbox.url)
        text = yaml.safe_dump(
            {
                "receivers": {"people": [{"slack": {"url_file": str(tmp_path / "slack"), "channel": "#gpu"}}]},
                "routes": dict.fromkeys(("critical", "warning", "info"), "people"),
                "times": {"maintenance": [{"from": "00:00", "to": "24:00"}], "muted_then": ["warning"]},
                "timing": dict.fromkeys(("critical", "warning"), {"wait": "1s", "interval": "1s"}),
            }
        )
        with servers.alertmanager(write(tmp_path, text), folder=tmp_path) as manager:
            (warning,) = message(number=1, alert="GpuHot")["alerts"]
            (critical,) = message(number=1)["alerts"]
            warning["labels"] |= {"severity": "warning", "uuid": "another"}
            for alert in (warning, critical):
                manager.post("/api/v2/alerts", [{"labels": alert["labels"], "annotations": alert["annotations"]}])
            assert inbox.wait(bool, 20), "nobody was told"
            time.sleep(2.5)  # the warning would have come by now
        posts = [body for _, _, body in inbox.posts]
    assert [one["attachments"][0]["title"] for one in posts] == ["CRITICAL 1 · GpuLost n1:9853 GPU 0 chat-b"]
    assert posts[0]["channel"] == "#gpu"
    assert "<https://wiki.example/runbook.md#gpulost|runbook>" in posts[0]["attachments"][0]["text"]
    assert posts[0]["attachments"][0]["color"] == "danger"


# ------------------------------------------------------------------ which silences which


def every_alert():
    return [alert for group in groups(Tuning()) for alert in group.alerts()]


def test_an_inhibition_that_names_an_alert_that_is_gone_is_refused():
    with pytest.raises(RuleError, match="GpuLost"):
        inhibition.inhibitions([alert for alert in every_alert() if alert.name != "GpuLost"])


def test_nothing_that_pages_is_silenced_by_what_does_not():
    weaker = [replace(a, severity=Severity.WARNING) if a.name == "EngineFrozen" else a for a in every_alert()]
    with pytest.raises(RuleError, match="EngineFrozen would silence .*, which weighs more"):
        inhibition.inhibitions(weaker)


def test_an_inhibition_over_a_label_that_one_side_lacks_is_refused():
    rule = inhibition.Inhibition(why="test", sources=("GpuLost",), targets=("EngineDown",), equal=("replica",))
    with pytest.raises(RuleError, match="GpuLost has no replica"):
        inhibition._check(rule, tuple(every_alert()))


CARD = {"job": "j", "instance": "n1", "gpu": "3", "uuid": "GPU-3"}
OTHER = {**CARD, "gpu": "4", "uuid": "GPU-4"}
REPLICA = {"job": "j", "instance": "n1", "replica": "a", "engine": "vllm", "model": "m"}
POSTED = {
    # what fires, and whether it may be told
    "lost": ({"alertname": "GpuLost", "severity": "critical", **CARD}, True),
    "xid of the lost card": ({"alertname": "GpuXidResetNode", "severity": "warning", "xid": "79", **CARD}, False),
    "heat of the lost card": ({"alertname": "GpuHot", "severity": "warning", **CARD}, False),
    "heat of another card": ({"alertname": "GpuHot", "severity": "warning", **OTHER}, True),
    "heat of that card elsewhere": ({"alertname": "GpuHot", "severity": "warning", **CARD, "instance": "n2"}, True),
    "frozen": ({"alertname": "EngineFrozen", "severity": "critical", **REPLICA}, True),
    "failing because frozen": ({"alertname": "RequestsFail", "severity": "critical", "window": "5m", **REPLICA}, False),
    "failing elsewhere": ({"alertname": "RequestsFail", "severity": "critical", "window": "5m", **REPLICA, "replica": "b"}, True),
    "failing elsewhere, milder": ({"alertname": "RequestsFail", "severity": "warning", "window": "5m", **REPLICA, "replica": "b"}, False),
    "an expired certificate": ({"alertname": "CertificateExpires", "severity": "warning", **REPLICA}, True),
    "daemon down": ({"alertname": "ShardwatchDown", "severity": "critical", "job": "j", "instance": "n9"}, True),
    "card lost where the daemon is down": ({"alertname": "GpuLost", "severity": "critical", **CARD, "instance": "n9"}, False),
    "engine down where the daemon is down": ({"alertname": "EngineDown", "severity": "critical", **REPLICA, "instance": "n9"}, False),
    "the daemon restarts": ({"alertname": "ShardwatchRestarting", "severity": "warning", "job": "j", "instance": "n9"}, True),
    "Prometheus on that machine": ({"alertname": "RulesFail", "severity": "warning", "job": "prometheus", "instance": "n9"}, True),
    "fast burn": ({"alertname": "FirstTokenBudgetBurn", "severity": "critical", "window": "1h", "job": "j", "model": "m", "class": "c", "objective": "first_token"}, True),
    "slow burn": ({"alertname": "FirstTokenBudgetBurn", "severity": "warning", "window": "3d", "job": "j", "model": "m", "class": "c", "objective": "first_token"}, False),
    "burn of another model": ({"alertname": "FirstTokenBudgetBurn", "severity": "warning", "window": "3d", "job": "j", "model": "n", "class": "c", "objective": "first_token"}, True),
    "over PCIe": ({"alertname": "GroupTalksOverPcie", "severity": "warning", "job": "j", "instance": "n1", "replica": "p"}, True),
    "uneven because of PCIe": ({"alertname": "GroupUtilizationUneven", "severity": "warning", "job": "j", "instance": "n1", "replica": "p"}, False),
    "watchdog": ({"alertname": "Watchdog", "severity": "none"}, True),
}  # fmt: skip


def test_a_real_alertmanager_silences_what_follows_and_nothing_else(tmp_path):
    with servers.alertmanager(write(tmp_path), folder=tmp_path) as manager:
        ends = (datetime.now(timezone.utc) + timedelta(minutes=5)).isoformat()
        body = [{"labels": {**labels, "case": name}, "endsAt": ends} for name, (labels, _) in POSTED.items()]
        manager.post("/api/v2/alerts", body)
        wanted = {name: told for name, (_, told) in POSTED.items()}
        deadline = time.monotonic() + 20
        while True:
            alerts = manager.get("/api/v2/alerts")
            # Every case must be known; "unprocessed" ones have not met the inhibitor yet.
            seen = {a["labels"]["case"]: not a["status"]["inhibitedBy"] for a in alerts}
            if seen == wanted or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        assert seen == wanted
