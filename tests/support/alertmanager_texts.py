"""Decisions of three kinds of people, the Alertmanager configuration made of them, and a group of alerts to post."""

from __future__ import annotations

import functools
import json
import re
import subprocess

from alerts import alertmanager
from alerts.alertmanager import reader
from alerts.alertmanager.files import CONFIGURATION, TEMPLATES
from alerts.registry import groups
from alerts.tuning import Tuning
from exporter.model.text import Language
from tests.support.tools import tool

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


@functools.cache
def made(text=None, language=Language.ENGLISH):
    """Return the configuration and the templates as text."""
    plan = reader.load(alertmanager.DEFAULT) if text is None else reader.read(text)
    texts = {path.name: content for path, content in alertmanager.files(groups(Tuning()), plan, [language]).items()}
    return texts[CONFIGURATION], texts[TEMPLATES]


def write(place, text=None, language=Language.ENGLISH):
    configuration, templates = made(text, language)
    (place / CONFIGURATION).write_text(configuration)
    (place / TEMPLATES).write_text(templates)
    return place / CONFIGURATION


def amtool(*arguments):
    done = subprocess.run([tool("amtool"), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(place, text, data, language=Language.ENGLISH, kind="text"):
    """Return what a template makes of a message."""
    write(place, None, language)
    (place / "data.json").write_text(json.dumps(data))
    return amtool(
        "template", "render", f"--template.glob={place}/*.tmpl", f"--template.text={text}", f"--template.type={kind}",
        f"--template.data={place}/data.json",
    )  # fmt: skip


@functools.cache
def version():
    done = subprocess.run([tool("amtool"), "--version"], capture_output=True, text=True, timeout=60)
    match = re.search(r"version (\d+)\.(\d+)", done.stdout + done.stderr)
    return int(match[1]), int(match[2])


def message(status="firing", number=2, alert="GpuLost"):
    """A message as Alertmanager gives it to templates."""

    def firing(gpu):
        labels = {
            "alertname": alert, "severity": "critical", "component": "gpu", "job": "shardwatch", "instance": "n1:9853",
            "gpu": str(gpu), "uuid": f"GPU-{gpu}", "replica": "chat-b",
        }  # fmt: skip
        annotations = {
            "summary": f"GPU {gpu} on n1:9853 is lost", "description": f"GPU {gpu} <b> & more: look.",
            "action": "Drain the node, then reboot it.",
            "runbook_url": "https://wiki.example/runbook.md#gpulost",
            "dashboard_url": "https://grafana.example/d/shardwatch-fleet?viewPanel=101&var-instance=n1%3A9853",
        }  # fmt: skip
        return {
            "status": status, "labels": labels, "annotations": annotations, "startsAt": "2026-01-02T03:04:05Z",
            "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://p/", "fingerprint": f"{gpu:016x}",
        }  # fmt: skip

    alerts = [firing(gpu) for gpu in range(number)]
    common = {key: value for key, value in alerts[0]["labels"].items() if number == 1 or key not in ("gpu", "uuid")}
    return {
        "receiver": "r", "status": status, "alerts": alerts, "groupLabels": {"alertname": alert},
        "commonLabels": common, "commonAnnotations": {}, "externalURL": "http://am/",
    }  # fmt: skip
