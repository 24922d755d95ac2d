"""The kinds of channels: the keys of each in the receivers file, and the Alertmanager configuration that it becomes.

``needs`` lists the features that require a newer Alertmanager than the oldest supported one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

Given = Mapping[str, Any]
Version = tuple[int, int]

OLDEST: Version = (0, 25)  # what the configuration needs whatever the channels
_TITLE, _TEXT, _MARKDOWN, _SLACK, _HTML, _SHORT = (
    f'{{{{ template "shardwatch.{what}" . }}}}' for what in ("title", "text", "markdown", "slack", "html", "short")
)
_FIRING = '{{ if eq .Status "firing" }}'


@dataclass(frozen=True, slots=True)
class Need:
    """The oldest Alertmanager that has a feature."""

    version: Version
    feature: str


@dataclass(frozen=True, slots=True)
class Made:
    """A channel in Alertmanager's words: the list it belongs to, the entry, and what it needs."""

    section: str
    entry: dict[str, Any]
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A kind of channel.  ``ways`` are the sets of keys of which exactly one must be given; ``also`` may be added."""

    ways: tuple[frozenset[str], ...]
    also: frozenset[str]
    make: Callable[[Given], Made]

    @property
    def keys(self) -> frozenset[str]:
        """Every key that this kind knows."""
        return frozenset().union(*self.ways) | self.also


def _way(*keys: str) -> frozenset[str]:
    return frozenset(keys)


_URL_FILE = Need((0, 26), "url_file of a webhook")
_PAYLOAD = Need((0, 32), "payload of a webhook, which speaks to a robot without an adaptor")
_WECOM_SECRET = Need((0, 31), "api_secret_file of WeCom")


def _webhook(given: Given) -> Made:
    where = {key: given[key] for key in ("url", "url_file") if key in given}
    http = (
        {"http_config": {"authorization": {"credentials_file": given["bearer_token_file"]}}}
        if "bearer_token_file" in given
        else {}
    )
    return Made("webhook_configs", {**where, **http}, (_URL_FILE,) if "url_file" in given else ())


def _slack(given: Given) -> Made:
    entry = {
        "api_url_file": given["url_file"],
        "channel": given["channel"],
        "title": _TITLE,
        "title_link": "{{ (index .Alerts 0).Annotations.dashboard_url }}",
        "text": _SLACK,
        "color": _FIRING + '{{ if eq .CommonLabels.severity "critical" }}danger{{ else }}warning{{ end }}'
        "{{ else }}good{{ end }}",
    }
    return Made("slack_configs", entry)


def _pagerduty(given: Given) -> Made:
    entry = {
        "routing_key_file": given["routing_key_file"],
        "description": _TITLE,
        "severity": "{{ with .CommonLabels.severity }}{{ . }}{{ else }}error{{ end }}",
        "class": "{{ .CommonLabels.alertname }}",
        "component": "{{ .CommonLabels.component }}",
        "group": "{{ .CommonLabels.instance }}",
        "details": {"alerts": _TEXT, "number": "{{ .Alerts.Firing | len }}"},
        "links": [
            # PagerDuty ignores an empty link and resolves a relative one against its own address.
            {
                "href": '{{ with (index .Alerts 0).Annotations.runbook_url }}{{ if match "^https?://" . }}{{ . }}{{ end }}{{ end }}',
                "text": "runbook",
            },
            {"href": "{{ (index .Alerts 0).Annotations.dashboard_url }}", "text": "dashboard"},
        ],
    }
    return Made("pagerduty_configs", entry)


def _email(given: Given) -> Made:
    access = {
        f"auth_{key}": given[key] for key in ("username", "password_file") if key in given
    }  # fmt: skip
    entry = {
        **{key: given[key] for key in ("to", "from", "smarthost")},
        **access,
        "headers": {"Subject": _TITLE},
        "html": _HTML,
        "text": _TEXT,
    }
    return Made("email_configs", entry)


def _adaptor(given: Given) -> Made:
    return Made("webhook_configs", {"url": given["adaptor"]})


def _robot(given: Given, payload: Mapping[str, Any]) -> Made:
    return Made("webhook_configs", {"url_file": given["robot_url_file"], "payload": payload}, (_URL_FILE, _PAYLOAD))


def _wecom(given: Given) -> Made:
    if "adaptor" in given:
        return _adaptor(given)
    if "robot_url_file" in given:
        return _robot(given, {"msgtype": "markdown", "markdown": {"content": _SHORT}})
    entry = {
        "corp_id": given["corp_id"],
        "agent_id": given["agent_id"],
        "api_secret_file": given["secret_file"],
        **{key: given[key] for key in ("to_user", "to_party", "to_tag") if key in given},
        "message_type": "markdown",
        "message": _SHORT,
    }
    return Made("wechat_configs", entry, (_WECOM_SECRET,))


def _dingtalk(given: Given) -> Made:
    if "adaptor" in given:
        return _adaptor(given)
    return _robot(given, {"msgtype": "markdown", "markdown": {"title": _TITLE, "text": _MARKDOWN}})


def _feishu(given: Given) -> Made:
    if "adaptor" in given:
        return _adaptor(given)
    colour = (
        _FIRING + '{{ if eq .CommonLabels.severity "critical" }}red{{ else }}orange{{ end }}{{ else }}green{{ end }}'
    )
    header = {"title": {"tag": "plain_text", "content": _TITLE}, "template": colour}
    message = {"header": header, "elements": [{"tag": "markdown", "content": _MARKDOWN}]}
    return _robot(given, {"msg_type": "interactive", "card": message})


_ROBOT = (_way("robot_url_file"), _way("adaptor"))
_NO_KEYS: frozenset[str] = frozenset()
CHANNELS: Mapping[str, Channel] = {
    "webhook": Channel(ways=(_way("url"), _way("url_file")), also=_way("bearer_token_file"), make=_webhook),
    "slack": Channel(ways=(_way("url_file", "channel"),), also=_NO_KEYS, make=_slack),
    "pagerduty": Channel(ways=(_way("routing_key_file"),), also=_NO_KEYS, make=_pagerduty),
    "email": Channel(ways=(_way("to", "from", "smarthost"),), also=_way("username", "password_file"), make=_email),
    "wecom": Channel(
        ways=(_way("corp_id", "agent_id", "secret_file"), *_ROBOT), also=_way("to_user", "to_party", "to_tag"), make=_wecom
    ),
    "dingtalk": Channel(ways=_ROBOT, also=_NO_KEYS, make=_dingtalk),
    "feishu": Channel(ways=_ROBOT, also=_NO_KEYS, make=_feishu),
}  # fmt: skip
# What people try to write here, and the key that names a file instead.
SECRETS: Mapping[str, str] = {
    "api_url": "url_file",
    "bearer_token": "bearer_token_file",
    "token": "bearer_token_file",
    "routing_key": "routing_key_file",
    "service_key": "routing_key_file",
    "password": "password_file",
    "auth_password": "password_file",
    "secret": "secret_file",
    "api_secret": "secret_file",
    "robot_url": "robot_url_file",
    "access_token": "robot_url_file",
}
# Whoever knows the whole address of these may post.
_ROBOTS_HOSTS: Mapping[str | None, str] = {
    "hooks.slack.com": "slack",
    "qyapi.weixin.qq.com": "wecom",
    "oapi.dingtalk.com": "dingtalk",
    "open.feishu.cn": "feishu",
    "open.larksuite.com": "feishu",
}
_CARRIES_SECRET = re.compile(r"(?:^|[&_-])(?:key|token|secret|sign|password|access_token)=", re.IGNORECASE)
_ADDRESS = re.compile(r"[^@\s]+@[^@\s,]+(?:,\s*[^@\s]+@[^@\s,]+)*\Z")
_FILE = (re.compile(r"/"), "an absolute path of a file that Alertmanager can read")
_ANY = (re.compile(r""), "text")
_SHAPES: Mapping[str, tuple[re.Pattern[str], str]] = {
    **dict.fromkeys(("to", "from"), (_ADDRESS, "an address such as gpu@example.org")),
    "smarthost": (re.compile(r"[^\s:/@]+:\d{1,5}\Z"), "host:port, such as smtp.example.org:587"),
}


def fault(key: str, value: str) -> str:
    """Return what is wrong with a channel's value, empty when nothing is; never repeats the value."""
    if not value.strip() or not value.isprintable():
        return "must be text"
    if "{{" in value:
        return "must hold no template"
    if key in {"url", "adaptor"}:
        return _url_fault(value, key)
    shape, what = _FILE if key.endswith("_file") else _SHAPES.get(key, _ANY)
    return "" if shape.match(value) else f"must be {what}"


def _url_fault(value: str, key: str) -> str:
    try:
        parts = urlsplit(value)
        bad = parts.scheme not in {"http", "https"} or not parts.hostname or (parts.port or 1) < 1
    except ValueError:
        bad = True
    if bad or " " in value:
        return "must be an address such as http://127.0.0.1:5001/alerts"
    if parts.hostname in _ROBOTS_HOSTS:
        return f"is itself a secret of {_ROBOTS_HOSTS[parts.hostname]}; use that kind of channel, which takes a file"
    if parts.username is not None or _CARRIES_SECRET.search(parts.query):
        cure = "url_file" if key == "url" else "an adaptor without one"
        return f"carries a secret, which would stand in the generated file; use {cure}"
    return ""
