"""What goes out when a fault of the simulator happens: one page and one ticket at most, and their text.

The golden files hold each message as a real Prometheus expands it and a real Alertmanager sends it, in both languages:
as Slack, e-mail, a webhook and a robot of WeCom show it; a page and a ticket also as HTML and as other robots do.  ``--update-golden``
writes them anew; their diff is the review.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from alerts import alertmanager
from alerts.alertmanager import reader
from alerts.registry import groups
from alerts.tuning import Tuning
from exporter.model.text import Language
from tests.support import alertmanager_texts, fault_messages, servers
from tests.support.tools import tool
from tests.support.virtual_node import UNIX_START
from tests.support.waiting import until

GOLDEN = Path(__file__).parents[1] / "golden" / "messages"
IN_FULL = ("hang", "heat")  # a page and a ticket
JOBS = [*fault_messages.FAULTS, "drift"]
RECEIVERS = """
receivers:
  people:
    - slack: {{url_file: {folder}/slack, channel: "#gpu"}}
    - webhook: {{url: "{webhook}"}}
    - email: {{to: oncall@example.org, from: alerts@example.org, smarthost: "{smtp}"}}
routes: {{critical: people, warning: people, info: people}}
timing:
  critical: {{wait: 1s, interval: 1s, repeat: 1h}}
  warning: {{wait: 1s, interval: 1s, repeat: 1h}}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    for name in ("prometheus", "promtool", "alertmanager"):
        tool(name)
    return fault_messages.lived(tmp_path_factory)


@pytest.mark.parametrize("job", JOBS)
def test_a_fault_is_at_most_one_page_and_one_ticket(folder, job):
    sent = fault_messages.sent(folder, job)
    assert sent, "a fault that nobody hears of"
    by_severity = Counter(firing.severity for _, firing in sent)
    assert by_severity["critical"] <= 1 and by_severity["warning"] <= 1, [(at, firing.name) for at, firing in sent]


@pytest.fixture(scope="module", params=list(Language), ids=lambda language: language.value)
def delivered(folder, request, tmp_path_factory):
    """Return a language and every notification in it, as each channel received it."""
    return request.param, list(_delivered(folder, tmp_path_factory.mktemp("delivered"), request.param))


def test_the_messages_are_the_golden_ones(delivered, request):
    language, messages = delivered
    parts = (f"=== {message.heading}\n{message.slack}" for message in messages)
    _compare(GOLDEN / f"{language.value}.txt", "\n\n".join(parts) + "\n", request)


def test_every_channel_says_the_golden_words(delivered, request, tmp_path):
    language, messages = delivered
    parts = [
        f"=== {message.heading}, {channel}\n{text.strip()}"
        for message in messages
        for channel, text in _channels(message, language, tmp_path)
    ]
    _compare(GOLDEN / f"channels.{language.value}.txt", "\n\n".join(parts) + "\n", request)


def _compare(golden, text, request):
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


class Delivered(Struct, frozen=True, kw_only=True):
    """A notification: what Slack showed, the e-mail, and the body of the webhook."""

    job: str
    heading: str
    slack: str
    mail: Mapping[str, str]
    webhook: dict[str, Any]


def _delivered(folder, place, language):
    """Yield each notification in the order of the faults, sent by a real Alertmanager."""
    copies = fault_messages.annotated(folder, place / "prometheus", language)
    with contextlib.ExitStack() as running:
        inbox = running.enter_context(servers.webhook())
        mailbox = running.enter_context(servers.smtp())
        (place / "slack").write_text(inbox.url + "/slack")
        plan = reader.read(RECEIVERS.format(folder=place, webhook=inbox.url + "/webhook", smtp=mailbox.address))
        for path, text in alertmanager.files(groups(Tuning()), plan, [language]).items():
            # The mailbox of the test has no certificate.
            (place / path.name).write_text(text.replace("    to: ", "    require_tls: false\n    to: "))
        manager = running.enter_context(servers.alertmanager(place / "alertmanager.yaml", folder=place))
        for number, (copy, annotations) in enumerate(copies):
            manager.post("/api/v2/alerts", [_posted(copy, annotations)])

            def all_of(path, wanted=number + 1):
                return [body for _, to, body in inbox.posts if to == path][wanted - 1 : wanted]

            until(
                lambda: all_of("/slack") and all_of("/webhook") and len(mailbox.messages) == number + 1,  # noqa: B023
                60,
            )
            (slack,), (webhook,) = all_of("/slack"), all_of("/webhook")
            (attachment,) = slack["attachments"]
            job = copy.job.partition(".")[0]
            after = copy.at - (0 if job in fault_messages.FROM_THE_START else fault_messages.FAULT_AT)
            yield Delivered(
                job=job,
                heading=f"{job}, {after:.0f} s after it began",
                slack=f"{attachment['title']}\n{attachment['text'].strip()}".replace(copy.job, "shardwatch"),
                mail={what: text.replace(copy.job, "shardwatch") for what, text in _read(mailbox.messages[number])},
                webhook=json.loads(json.dumps(webhook).replace(copy.job, "shardwatch")),
            )


def _read(mail):
    """Yield the parts of an e-mail."""
    yield "e-mail, subject", mail["Subject"]
    for kind in ("plain", "html"):
        yield f"e-mail, {kind}", mail.get_body((kind,)).get_content().replace("\r\n", "\n")


def _channels(message, language, place):
    """Yield each channel and what it shows of a notification."""
    in_full = message.job in IN_FULL
    yield from ((part, text) for part, text in message.mail.items() if in_full or not part.endswith("html"))
    (alert,) = message.webhook["alerts"]
    yield "webhook", json.dumps({key: alert[key] for key in ("labels", "annotations")}, indent=1, ensure_ascii=False)
    for robot, template in (("WeCom", "short"), ("DingTalk and Feishu", "markdown"))[: 2 if in_full else 1]:
        text = alertmanager_texts.rendered(
            place, f'{{{{ template "shardwatch.{template}" . }}}}', message.webhook, language
        )
        yield f"robot of {robot}", text


def _posted(copy, annotations):
    begin = datetime.fromtimestamp(UNIX_START + copy.firing.begin, timezone.utc)
    return {
        "labels": {**copy.firing.of, "job": copy.job},
        "annotations": annotations,
        "startsAt": begin.isoformat(),
        "endsAt": (datetime.now(timezone.utc) + timedelta(minutes=5)).isoformat(),
    }
