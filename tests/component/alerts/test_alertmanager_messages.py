"""What people read: the templates of every channel, rendered by amtool and posted by a real Alertmanager."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from alerts.registry import groups
from alerts.render import RULES, files
from alerts.templates import with_longest_words
from alerts.tuning import Tuning
from exporter.model.text import Language
from tests.support import servers
from tests.support.alertmanager_texts import FULL, ROBOTS, made, message, rendered, version, write
from tests.support.tools import tool


@pytest.mark.parametrize("what", ["text", "markdown", "slack", "html", "short"])
@pytest.mark.parametrize("language", list(Language))
def test_a_message_names_each_gpu_its_replica_and_node_and_links_to_help(what, language, tmp_path):
    text = rendered(
        tmp_path,
        f'{{{{ template "shardwatch.{what}" . }}}}',
        message(),
        language,
        "html" if what == "html" else "text",
    )
    card, node, replica, since, book = {
        Language.ENGLISH: ("GPU", "node", "replica", "since", "runbook"),
        Language.CHINESE: ("GPU", "节点", "副本", "开始于", "运行手册"),
    }[language]
    for gpu in (0, 1):
        assert f"{node} n1:9853 {card} {gpu} (GPU-{gpu}) {replica} chat-b {since} 2026-01-02 03:04:05 UTC" in text
    assert text.count("https://wiki.example/runbook.md#gpulost") == 2
    assert text.count("https://grafana.example/d/shardwatch-fleet?viewPanel=101") == 2
    assert book in text
    label = {Language.ENGLISH: "Action: ", Language.CHINESE: "处理："}[language]
    assert text.count(f"{label}Drain the node, then reboot it.") == 2
    if what == "html":
        assert "<b> & more" not in text, "what an alert says is not taken for markup"


@pytest.mark.parametrize("what", ["text", "markdown", "slack", "html", "short"])
def test_a_runbook_without_an_address_is_no_link_in_a_message(what, tmp_path):
    data = message(number=1)
    data["alerts"][0]["annotations"]["runbook_url"] = "alerts/runbook.md#gpulost"
    kind = "html" if what == "html" else "text"
    text = rendered(tmp_path, f'{{{{ template "shardwatch.{what}" . }}}}', data, kind=kind)
    assert "runbook" not in text
    assert "https://grafana.example/d/shardwatch-fleet?viewPanel=101" in text
    assert "·" not in text
    del data["alerts"][0]["annotations"]["dashboard_url"]
    data["alerts"][0]["annotations"]["runbook_url"] = "https://wiki.example/runbook.md#gpulost"
    text = rendered(tmp_path, f'{{{{ template "shardwatch.{what}" . }}}}', data, kind=kind)
    assert "https://wiki.example/runbook.md#gpulost" in text
    assert "dashboard" not in text
    assert "·" not in text


def test_titles_say_how_bad_how_many_what_and_where(tmp_path):
    title = '{{ template "shardwatch.title" . }}'
    assert rendered(tmp_path, title, message()).strip() == "CRITICAL 2 · GpuLost n1:9853 chat-b"
    single = message(number=1)
    assert rendered(tmp_path, title, single, Language.CHINESE).strip() == "严重 1 · GpuLost n1:9853 GPU 0 chat-b"
    assert rendered(tmp_path, title, message("resolved")).strip() == "RESOLVED · GpuLost n1:9853 chat-b"
    assert rendered(tmp_path, title, message("resolved"), Language.CHINESE).startswith("已恢复 · ")


def test_a_label_with_a_colon_makes_no_title_that_yaml_would_take_apart(tmp_path):
    data = message()
    data["commonLabels"]["replica"] = "chat: b:"
    text = filled('{{ template "shardwatch.title" . }}', tmp_path, data)
    assert text == "CRITICAL 2 · GpuLost n1:9853 chat b "


def test_what_is_over_is_listed_as_over(tmp_path):
    text = rendered(tmp_path, '{{ template "shardwatch.markdown" . }}', message("resolved"))
    assert text.count("**Resolved GPU") == 2


def test_long_messages_are_cut_and_say_so(tmp_path):
    text = rendered(tmp_path, '{{ template "shardwatch.text" . }}', message(number=12))
    assert text.count("is lost") == 10
    assert "12 alerts in total; the first 10 shown." in text


def longest(what):
    """Return the longest that an alert of ours says in Chinese, its labels filled with longish values."""
    rules = [
        rule
        for group in yaml.safe_load(files(groups(Tuning()), Tuning(), Language.CHINESE)[RULES])["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    texts = [
        re.sub(r"\{\{.*?\}\}", _filling, with_longest_words(rule["annotations"].get(what, ""))) for rule in rules
    ]
    return max(texts, key=lambda text: len(text.encode()))


def _filling(template):
    if template[0].startswith(("{{ with", "{{ end", "{{ else")):
        return ""
    if "printf" in template[0]:
        return "x" * 8  # 1.23e+09
    return "x" * (12 if "value" in template[0] else 30)  # a figure is at most "23h 59m 59s" long


@pytest.mark.parametrize("what, max_bytes", [("short", 4096), ("markdown", 20_000)], ids=["WeCom", "DingTalk"])
def test_the_longest_messages_are_no_longer_than_robots_take(what, max_bytes, tmp_path):
    data = message(number=12)
    annotations = {key: longest(key) for key in data["alerts"][0]["annotations"]}
    for number, alert in enumerate(data["alerts"]):
        alert["annotations"] = annotations
        alert["labels"]["uuid"] = "GPU-00000000-0000-0000-0000-000000000000"
        if number >= 8:
            alert["status"] = "resolved"
    text = rendered(tmp_path, f'{{{{ template "shardwatch.{what}" . }}}}', data, Language.CHINESE)
    assert "xxxxxx" in text
    assert len(text.encode()) <= max_bytes


def payloads():
    tree = yaml.safe_load(made(ROBOTS)[0])
    robots = next(receiver for receiver in tree["receivers"] if receiver["name"] == "robots")
    return [item["payload"] for item in robots["webhook_configs"]]


def filled(tree, place, data):
    if isinstance(tree, dict):
        return {key: filled(value, place, data) for key, value in tree.items()}
    if isinstance(tree, list):
        return [filled(value, place, data) for value in tree]
    text = rendered(place, tree, data).removesuffix("\n") if "{{" in tree else tree
    # Its YAML reader takes what follows a closed bracket for nothing.
    assert text[0] not in "[{", f"Alertmanager 0.32 would take this apart: {text!r}"
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    assert isinstance(parsed, str), f"Alertmanager 0.32 would take this apart: {text!r}"
    return text


@pytest.mark.parametrize("status", ["firing", "resolved"])
def test_robots_get_the_json_that_they_document(status, tmp_path):
    wecom, dingtalk, feishu = [filled(item, tmp_path, message(status)) for item in payloads()]
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
        assert "GPU 1 on n1:9853 is lost" in text


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
            command = [tool("amtool"), "check-config", str(configuration)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode != 0
            assert "field payload not found" in done.stdout + done.stderr
            return
        with servers.alertmanager(configuration, folder=tmp_path) as manager:
            for alert in message()["alerts"]:
                manager.post("/api/v2/alerts", [{"labels": alert["labels"], "annotations": alert["annotations"]}])
            posts = inbox.wait(lambda posts: posts if len({path for _, path, _ in posts}) == 3 else None, 20)
        assert posts, "no robot was told"
    messages = {path.strip("/"): body for _, path, body in posts}
    texts = (
        messages["wecom"]["markdown"]["content"],
        messages["dingtalk"]["markdown"]["text"],
        messages["feishu"]["card"]["elements"][0]["content"],
    )
    assert all("GPU 1 on n1:9853 is lost" in text for text in texts)
    assert messages["dingtalk"]["markdown"]["title"] == "CRITICAL 2 · GpuLost n1:9853 chat-b"


def strings(tree):
    """Yield every templated text of the receivers."""
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


@pytest.mark.slow
def test_slack_messages_have_links_and_pages_are_sent_while_maintenance_mutes_warnings(tmp_path):
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
            first, second = message(number=2)["alerts"]
            warning["labels"] |= {"severity": "warning", "uuid": "another"}
            # Each is sent only after the one before was told: when the second page comes, the warning's time is over.
            for alert, post_count in ((warning, 0), (first, 1), (second, 2)):
                manager.post("/api/v2/alerts", [{"labels": alert["labels"], "annotations": alert["annotations"]}])
                assert inbox.wait(lambda posts, post_count=post_count: len(posts) >= post_count, 20), (
                    "nobody was told"
                )
        posts = [body for _, _, body in inbox.posts]
    assert [item["attachments"][0]["title"] for item in posts] == [
        "CRITICAL 1 · GpuLost n1:9853 GPU 0 chat-b",
        "CRITICAL 2 · GpuLost n1:9853 chat-b",
    ]
    assert posts[0]["channel"] == "#gpu"
    assert "<https://wiki.example/runbook.md#gpulost|runbook>" in posts[0]["attachments"][0]["text"]
    assert posts[0]["attachments"][0]["color"] == "danger"
