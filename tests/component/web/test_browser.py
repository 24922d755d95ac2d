"""The node web page in a real Chromium: what a person sees, in every scenario and when something is wrong."""

from __future__ import annotations

import re

import pytest

from exporter.errors import ListenError
from exporter.simulate.scenarios import SCENARIOS
from tests.support.npm import node_modules
from tests.support.records import replace
from tests.support.tools import tool
from tests.support.waiting import until
from tests.support.web_config import USERS, client_context, fetch, make_keys, protected, tls
from tests.support.web_node import WebNode, big_node, lived, malicious_snapshot, web_node

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="the extra test brings it")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE = 60_000  # ms; says when something is broken, not how fast it must be
FAULTS = {"pcie", "oom", "hang", "skew", "heat", "powercap", "brake", "tenant", "narrow", "nic"}
PHONE = {"width": 390, "height": 844}
MALICIOUS = '<script>window.harmed = 1</script><img src=x onerror="window.harmed=1">"\'\u202e\u2066'
AXE = "() => axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map(one => [one.id, one.nodes.map(node => node.html).slice(0, 3)]))"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=tool("chromium"), args=FLAGS, timeout=2 * PATIENCE)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def node():
    with web_node() as served:
        yield served


@pytest.fixture(scope="module")
def hang():
    return lived("hang", 90, fault_at=5.0)


@pytest.fixture
def visit(browser, node):
    """Open the page in a context of its own; fail if the browser reports an error, or breaks the policy."""
    contexts, errors = [], []

    def go(path="", *, expect_errors=False, **options):
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        if not expect_errors:
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{node.url}{path}")
        return page

    yield go
    for context in contexts:
        context.close()
    assert errors == []


def seen(page, section):
    return " ".join(page.locator(f"#{section}").inner_text().split())


def serves_again(node, port):
    """Return whether the port could be had: a connection of somebody else may hold it for a moment."""
    try:
        return bool(node.start(port))
    except ListenError:
        return False


@pytest.mark.parametrize("scenario", [scenario.name for scenario in SCENARIOS])
def test_every_scenario_shows_its_findings_first(visit, node, scenario):
    shown, history = lived(scenario, 100, fault_at=5.0)
    node.show(shown, history)
    page = visit()
    text = seen(page, "findings")
    assert bool(shown.findings) == (scenario in FAULTS)
    for finding in shown.findings:
        for words in (finding.summary.en, *(step.en for step in finding.steps)):
            assert " ".join(words.split()) in text
    if not shown.findings:
        assert "No findings" in text
    tops = page.locator("main section").evaluate_all("all => all.map(one => one.id)")
    assert tops[:3] == ["findings", *(["replicas", "gpus"] if shown.replicas else ["gpus"])]
    assert page.locator("#gpus tbody tr").count() == len(shown.cards)


def test_a_lost_gpu_is_marked_with_its_xid_and_what_waits_for_it_says_so(visit, node, hang):
    node.show(*hang)
    page = visit()
    row = page.locator("#gpus tbody tr").nth(6)
    assert row.get_attribute("data-level") == "critical"
    text = " ".join(row.inner_text().split())
    assert re.match(r"6 chat-b ■ ?CRITICAL: lost eject", text), text
    assert "79" in text
    assert "°C" not in text, "no value outlives the GPU"
    assert "waits for GPU 6" in " ".join(page.locator("#gpus tbody tr").nth(5).inner_text().split())
    assert "still sends to an ejected replica" in seen(page, "gateways")


def test_the_page_follows_the_daemon_and_keeps_focus_filter_and_curves(visit, node, hang):
    shown, history = hang
    node.show(replace(shown, findings=()), history)
    page = visit()
    page.locator("#only").focus()
    page.keyboard.press("Space")
    curves = page.locator("#gpus .c path").count()
    assert curves > 0
    node.show(replace(shown, at=shown.at + 1, unix_time=shown.unix_time + 1), history)
    page.locator("#findings article").wait_for()
    assert "makes no progress" in seen(page, "findings")
    assert page.evaluate("document.activeElement.id") == "only"
    assert page.locator("#only").is_checked()
    assert page.locator("#gpus tbody tr:visible").count() == 1, "GPU 6 alone has a problem"
    assert page.locator("#gpus .c path").count() == curves
    until(lambda: page.evaluate("document.title.startsWith('■ 1')"))
    node.show(replace(shown, at=shown.at + 2, unix_time=shown.unix_time + 2, findings=()), history)
    page.locator("#findings article").wait_for(state="detached")
    assert page.locator("#findings .well").count() == 1


def test_the_filter_for_problems_says_so_where_there_are_none(visit, node, hang):
    node.show(replace(hang[0], findings=()), hang[1])
    page = visit()
    nothing = page.get_by_text("No GPU has a problem.")
    assert nothing.is_hidden()
    page.locator("#only").check()
    assert nothing.is_visible()
    assert page.locator("#gpus table").is_hidden()
    node.show(replace(hang[0], at=hang[0].at + 1), hang[1])
    page.locator("#gpus tbody tr:visible").wait_for()
    assert nothing.count() == 0


def test_a_daemon_that_is_gone_is_said_to_be_gone_with_the_time_of_the_data(visit, node, hang):
    node.show(*hang)
    page = visit(expect_errors=True)
    port = node.port
    node.stop()
    lost = page.locator("#lost")
    try:
        lost.wait_for(state="visible")
        assert "No answer from the daemon" in lost.inner_text()
        until(lambda: page.title().startswith("? "))
        assert "The values below are those of 2026-01-05 00:01:30 UTC" in lost.inner_text()
        assert "makes no progress" in seen(page, "findings"), "the last data stays"
        until(lambda: page.evaluate("document.getElementById('main').classList.contains('old')"))
    finally:
        until(lambda: serves_again(node, port))
    lost.wait_for(state="hidden")
    until(lambda: page.title().startswith("■ "))
    until(lambda: page.evaluate("!document.getElementById('main').classList.contains('old')"))


def test_data_that_grows_old_is_said_to_be_old(visit, node, hang):
    node.show(*hang)
    page = visit()
    assert page.locator("#old").is_hidden()
    node.show(*hang, age=90.0)
    page.locator("#old").wait_for(state="visible")
    assert "90 s old: the daemon has stopped reading" in page.locator("#old").inner_text()


def test_a_daemon_without_data_fills_the_page_when_it_has_some(visit, node, hang):
    node.show(None)
    page = visit()
    assert "the daemon is starting" in seen(page, "findings")
    node.show(*hang)
    page.locator("#gpus tbody tr").first.wait_for()
    assert "makes no progress" in seen(page, "findings")


@pytest.mark.parametrize(
    "name", [MALICIOUS, "\u202egnp.exe\u05d0\u05d1", "x" * 10_000], ids=["script", "rtl", "10 kB"]
)
def test_names_that_mean_harm_are_text(visit, node, name):
    shown = malicious_snapshot(name)
    node.show(shown, lived("healthy", 3)[1])
    page = visit(viewport=PHONE)
    for _ in range(2):  # as the server writes it, and as the script changes it
        assert page.evaluate("window.harmed") is None
        assert page.locator("main img, main script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert page.locator("#replicas tbody th bdi").first.inner_text()[:8] in {name[:8], "�gnp.exe"}
        node.show(replace(shown, at=shown.at + 1, unix_time=shown.unix_time + 1))
        at = f"{shown.unix_time + 1:.3f}"
        until(lambda: page.locator("#age").get_attribute("data-at") == at)


def test_without_script_everything_is_there_and_the_page_reloads_itself(visit, node, hang):
    node.show(*hang)
    page = visit(java_script_enabled=False)
    assert "makes no progress" in seen(page, "findings")
    assert page.locator("#gpus tbody tr").count() == 8
    assert page.locator("#gpus .c path").count() > 0
    head = page.locator("header").inner_text()
    assert "data of 2026-01-05 00:01:30 UTC" in head
    assert "reloads every 5 s" in head
    assert " old" not in head, "nobody would change it"
    node.show(replace(hang[0], findings=()))
    page.locator("#findings .well").wait_for()


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [{"width": 1440, "height": 900}, PHONE], ids=["wide", "phone"])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(visit, node, hang, language, scheme, viewport):
    script = (node_modules() / "axe-core" / "axe.min.js").read_text()
    node.show(*hang)
    page = visit(locale={"en": "en-US", "zh": "zh-CN"}[language], color_scheme=scheme, viewport=viewport)
    assert page.locator("html").get_attribute("lang") == language
    assert ("没有进展" in seen(page, "findings")) is (language == "zh")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    page.evaluate(script)
    assert page.evaluate(AXE) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(part => part < 60)")
    assert dark is (scheme == "dark")


def test_it_is_usable_by_keyboard_alone(visit, node, hang):
    node.show(*hang)
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    stops = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        stops.add(page.evaluate("document.activeElement.id || document.activeElement.getAttribute('href') || document.activeElement.getAttribute('aria-labelledby')"))  # fmt: skip
    assert {"only", "h-gpus", "h-replicas", "h-events", "/metrics", "/api/v1/node"} - {
        "/metrics",
        "/api/v1/node",
    } <= stops
    assert any(str(stop).startswith("/api/v1/") for stop in stops)


def test_the_other_language_is_one_click_away(visit, node, hang):
    node.show(*hang)
    page = visit(locale="en-US")
    page.get_by_text("中文").click()
    page.locator("html[lang=zh]").wait_for()
    assert "没有进展" in seen(page, "findings")
    node.show(replace(hang[0], at=hang[0].at + 1, findings=()))
    page.locator("#findings .well").wait_for()
    assert page.locator("html").get_attribute("lang") == "zh", "updates stay in it"


def test_motion_is_reduced_where_that_is_asked_for(visit, node, hang):
    node.show(*hang)
    for motion, behaviour in (("reduce", "auto"), ("no-preference", "smooth")):
        page = visit(reduced_motion=motion)
        assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == behaviour
        assert page.evaluate("document.getAnimations().length") == 0


def test_it_is_served_and_updated_over_tls_to_who_has_a_password(browser, hang, tmp_path):
    served, keys = WebNode(), make_keys(tmp_path)
    password = {"username": "prometheus", "password": "right"}
    with (
        protected(tls(keys) + USERS, tmp_path, served.handler()) as server,
        browser.new_context(ignore_https_errors=True, http_credentials=password) as context,
    ):
        served.show(*hang)
        page = context.new_page()
        page.goto(f"https://127.0.0.1:{server.address[1]}/", timeout=PATIENCE)
        assert "makes no progress" in seen(page, "findings")
        served.show(replace(hang[0], at=hang[0].at + 1, findings=()))
        page.locator("#findings .well").wait_for(timeout=PATIENCE)
        assert page.locator("#lost").is_hidden()
        assert fetch(server, client_context(keys), path="/").status == 401


def test_a_name_of_64_characters_leaves_the_columns_beside_it_in_view(visit, node, hang):
    shown, history = hang
    name = "decode-" + "0123456789" * 6
    replicas = [replace(found, name=name) for found in shown.replicas[:1]]
    reading = replicas[0].reading
    ranks = {str(rank): numbers for rank in range(2) for numbers in reading.ranks.values()}
    replicas = (replace(replicas[0], reading=replace(reading, ranks=ranks)), *shown.replicas[1:])
    sources = (replace(shown.sources[0], source=f"engine:{name}"), *shown.sources[1:])
    node.show(replace(shown, replicas=replicas, sources=sources), history)
    page = visit(viewport={"width": 1280, "height": 800})
    for table in ("sources", "ranks", "gateways"):
        assert page.evaluate(
            f"(box => box.scrollWidth <= box.clientWidth)(document.querySelector('#{table} .scroll'))"
        )


def test_64_gpus_and_32_replicas_stay_usable(visit, node):
    node.show(*big_node())
    page = visit(viewport=PHONE)
    assert page.locator("#gpus tbody tr").count() == 64
    assert page.locator("#replicas tbody tr").count() == 32
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.locator("nav a[href='#gpus']").click()
    until(lambda: page.evaluate("document.getElementById('h-gpus').getBoundingClientRect().top < innerHeight"))
