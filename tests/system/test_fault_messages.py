"""What goes out when a fault of the simulator happens: one page and one ticket at most, and their text.

The golden files hold each message as a real Prometheus expands it and a real Alertmanager sends it to Slack, in both
languages.  ``--update-golden`` writes them anew; their diff is the review.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from alerts import alertmanager
from alerts.alertmanager import reader
from alerts.registry import groups
from alerts.tuning import Tuning
from exporter.model.text import Language
from tests.support import fault_messages, servers
from tests.support.tools import tool
from tests.support.virtual_node import UNIX_START

GOLDEN = Path(__file__).parents[1] / "golden" / "messages"
JOBS = [*fault_messages.FAULTS, "drift"]
RECEIVERS = """
receivers:
  people: [{{slack: {{url_file: {folder}/slack, channel: "#gpu"}}}}]
routes: {{critical: people, warning: people, info: people}}
timing:
  critical: {{wait: 1s, interval: 1s, repeat: 1h}}
  warning: {{wait: 1s, interval: 1s, repeat: 1h}}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


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


@pytest.mark.parametrize("language", list(Language))
def test_the_messages_are_the_golden_ones(folder, language, tmp_path, request):
    text = "\n\n".join(_messages(folder, tmp_path, language)) + "\n"
    golden = GOLDEN / f"{language.value}.txt"
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def _messages(folder, place, language):
    """Yield each message in the order of the faults: when it went out, and what Slack showed."""
    copies = fault_messages.annotated(folder, place / "prometheus", language)
    with contextlib.ExitStack() as running:
        inbox = running.enter_context(servers.webhook())
        (place / "slack").write_text(inbox.url + "/slack")
        plan = reader.read(RECEIVERS.format(folder=place))
        for path, text in alertmanager.files(groups(Tuning()), plan, [language]).items():
            (place / path.name).write_text(text)
        manager = running.enter_context(servers.alertmanager(place / "alertmanager.yaml", folder=place))
        for number, (copy, annotations) in enumerate(copies):
            manager.post("/api/v2/alerts", [_posted(copy, annotations)])
            posts = inbox.wait(lambda posts, wanted=number + 1: posts[wanted - 1 : wanted], 30)
            assert posts, f"{copy.firing.name} of {copy.job} was not sent"
            (attachment,) = posts[0][2]["attachments"]
            job = copy.job.partition(".")[0]
            after = copy.at - (0 if job in fault_messages.FROM_THE_START else fault_messages.FAULT_AT)
            text = f"{attachment['title']}\n{attachment['text'].strip()}".replace(copy.job, "shardwatch")
            yield f"=== {job}, {after:.0f} s after it began\n{text}"


def _posted(copy, annotations):
    begin = datetime.fromtimestamp(UNIX_START + copy.firing.begin, timezone.utc)
    return {
        "labels": {**copy.firing.of, "job": copy.job},
        "annotations": annotations,
        "startsAt": begin.isoformat(),
        "endsAt": (datetime.now(timezone.utc) + timedelta(minutes=5)).isoformat(),
    }
