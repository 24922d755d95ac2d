"""The first dashboard as a person sees it: a recorded fault in a real Prometheus, drawn by Chromium on a 1080p screen.

The recording is kept in the repository, so that no daemon has to run for minutes; ``make pictures`` draws the other
faults, and ``python -m tests.support.recorded_scenarios`` records this one anew.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dashboards.preview import ask, drawing, plan, recording
from dashboards.preview.__main__ import CACHE
from tests.support.recorded_scenarios import KEPT
from tests.support.records import replace
from tests.support.tools import CI, locked, tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="the extra test brings it")
SCREEN = {"width": 1920, "height": 1080}
BARS = 120  # pixels of a browser and of Grafana above the dashboard
WORDS = {
    "en": (
        "hang-0:9853 6 chat-b GPU lost: XID 79, fallen off the bus take the replica out, drain and reboot the node",
        "hang-0:9853 – chat-b frozen: no progress, no tokens take it out of the gateway, restart it",
        "Requests without an answer 35",
        "GPUs lost 1",
        "chat-b frozen 24 11 – – – 50.6%",
        "EngineFrozen firing critical",
    ),
    "zh": (
        "hang-0:9853 6 chat-b 掉卡：XID 79，已从总线掉落 摘除副本，排空并重启节点",
        "hang-0:9853 – chat-b 冻结：没有进展，不产出 token 从网关摘除并重启",
        "没有应答的请求 35",
        "掉卡 / 无应答 1",
    ),
}


@pytest.fixture(scope="module")
def built():
    """Return the folder of the bundled page; skip where npm cannot install Grafana's components, but never in CI."""
    for name in ("chromium", "node", "npm", "prometheus"):
        tool(name)
    with locked(Path(f"{CACHE}.lock")):
        try:
            return drawing.bundle(CACHE)
        except drawing.PreviewError as error:
            if CI:
                raise
            pytest.skip(f"outside of CI that may be for want of a network: {str(error)[-300:]}")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    shutil.copytree(KEPT, folder, dirs_exist_ok=True)  # Prometheus writes beside the blocks
    recorded = replace(recording.load(str(KEPT)), folder=str(folder))
    with recording.serving(recorded) as url:
        yield recorded, url


@pytest.fixture(scope="module")
def browser(built):
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(
            executable_path=tool("chromium"), args=["--no-sandbox", "--disable-gpu"], timeout=120_000
        )
        yield chromium
        chromium.close()


@pytest.mark.parametrize("language", WORDS)
def test_the_first_screen_names_the_lost_gpu_what_to_do_and_who_is_affected(built, prometheus, browser, language):
    recorded, url = prometheus
    window = plan.TimeRange(start=recorded.start, end=recorded.end - recorded.scrape, scrape=recorded.scrape)
    chosen = {"instance": [node.instance for node in recorded.nodes]}
    made = plan.plan(plan.load("shardwatch-now", language), window, chosen, width=SCREEN["width"], unfold=False)
    given = ask.answers(ask.Client(url=url), made)
    assert ask.problems(made, given) == []
    with drawing.serving(built) as (page, address):
        page.show(drawing.describe(made, given, language=language, theme="dark", subtitle="hang"))
        tab = browser.new_page(viewport=SCREEN)
        tab.set_default_timeout(120_000)
        with tab.expect_request("**/report") as report:
            tab.goto(address)
        assert report.value.post_data_json == [], "what failed while it was drawn"
        shown = " ".join(tab.locator("#page").inner_text().split())
        height = tab.locator("#page").evaluate("page => page.getBoundingClientRect().bottom")
        tab.close()
    for words in WORDS[language]:
        assert words in shown
    assert made.height + drawing.HEAD <= SCREEN["height"] - BARS >= height > 0
