"""Rows E1 to E21, E31, E35, E40, E42 and E45 of the fault matrix: a whole daemon among engines that turn hostile.

In ``fault_storm`` one daemon polls every hostile engine at once, beside healthy ones and two cards.  All of them are healthy
at first, then all turn at the same moment, then all heal; what the tests look at was seen from outside meanwhile.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from tests.support.endpoint_probe import REFUSED, full_backlog
from tests.support.fault_matrix import OPENMETRICS, Program, cards, configure, programs
from tests.support.living_engines import ODD_PAGES
from tests.support.malicious_pages import bomb
from tests.support.malicious_server import MaliciousServer
from tests.support.page_figures import HEALTH, Figures, promtool_is_content, strictly
from tests.support.waiting import CEILING

pytestmark = pytest.mark.slow

TIMEOUT = 0.8  # seconds, as `configure` sets it
WITHDRAWN = 2.0  # seconds: one interval, and the deadline of one exchange
SLACK = 10.0  # seconds that a machine with other work may add; a figure that is not withdrawn stays for ever


# Row → hostile engines of it.
FAULTS_OF = {
    "E1": ["refused"],
    "E3": ["silent"],
    "E4": ["drip_head"],
    "E5": ["drip_body", "drip_chunks", "drip_trailers", "drip_gzip"],
    "E6": ["late"],
    "E7": ["endless_body"],
    "E8": ["endless_chunks", "huge_chunk", "negative_chunk", "endless_chunk_line"],
    "E9": [
        "endless_head", "huge_head_line", "huge_status_line", "many_fields", "endless_continue", "endless_trailers",
    ],
    "E10": ["big_page"],
    "E11": ["gzip_bomb", "endless_gzip"],
    "E12": [
        "gzip_cut", "gzip_without_checksum", "gzip_wrong_checksum", "gzip_lie", "gzip_trailing", "gzip_trailing_later",
        "twice_gzip",
    ],
    "E13": ["unknown_coding", "other_transfer_coding"],
    "E14": [
        "length_short", "length_negative", "length_two", "length_words", "length_huge", "chunked_with_length",
    ],
    "E15": ["reset_in_body", "cut_in_chunk", "cut_before_last_chunk", "cut_in_head", "cut_between_fields", "no_answer"],
    "E16": ["not_http", "no_status", "malformed_field", "folded_field", "bad_chunk_end"],
    "E17": [
        "redirect_port", "redirect_host", "redirect_no_scheme", "redirect_scheme", "redirect_file",
        "redirect_userinfo", "redirect_broken", "redirect_nowhere",
    ],
    "E18": ["redirect_loop"],
    "E19": ["status_204", "status_401", "status_404", "status_500", "odd_status"],
    "E20": ["html"],
    "E21": ["empty", "empty_until_close", "gzip_empty"],
    "E31": ["explosion"],
}  # fmt: skip
CASES = [(row, fault) for row, faults in FAULTS_OF.items() for fault in faults]
TURNED = [fault for _, fault in CASES if fault != "refused"]
OTHER_REASONS = {"refused": "refused", "html": "not_metrics", "explosion": "too_many_lines"}
HEALTHY = ["well-a", "well-b", "well-c"]
CLOSING = ["closing", "dies_at_the_second", "resets_the_second"]  # they end each connection in one way or another
CARDS = ["GPU-a", "GPU-b"]
LOOKED_AFTERWARDS = 6.0  # seconds
STAMP = "shardwatch_source_last_success_timestamp_seconds"


def reason_of(fault: str) -> str:
    return REFUSED.get(fault) or OTHER_REASONS.get(fault, "timeout")


def name_of(fault: str) -> str:
    return fault.replace("_", "-")


MALICIOUS = {f"engine:{name_of(fault)}" for _, fault in CASES} | {"engine:token", "engine:hole"}


@dataclass
class FaultStorm:
    """What was seen.  Times: Unix for pages, MiB for memory."""

    before: Figures
    turned_at: float = 0.0
    withdrawn_at: float = math.inf  # the first page on which nothing hostile is up
    during: list[Figures] = field(default_factory=list)
    openmetrics: list[str] = field(default_factory=list)
    slowest: float = 0.0
    healthy: list[tuple[int, str]] = field(default_factory=list)
    base: tuple[int, float] = (0, 0.0)
    threads: list[int] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)
    after: Figures | None = None
    healed: float = 0.0  # seconds
    log: str = ""
    log_during: list[str] = field(default_factory=list)
    heads: list[tuple[str, bytes]] = field(default_factory=list)
    leaked: int = 0  # connections to places where no request belongs
    left: tuple[int, float] = (-1, 99.0)

    @property
    def late(self) -> list[Figures]:
        """The pages since everything hostile was withdrawn."""
        return [page for page in self.during if page.at >= self.withdrawn_at]


def up(page: Figures) -> set[str]:
    return page.labels("shardwatch_source_up", "source") - page.labels("shardwatch_source_down_info", "source")


def failures(page: Figures, name: str) -> dict[str, float]:
    """By reason."""
    of_one = {"name": "shardwatch_source_failures_total", "source": f"engine:{name}"}
    return {reason: page.value(**of_one, reason=reason) for reason in page.labels(**of_one, label="reason")}


def but_late(page: Figures, name: str) -> dict[str, float]:
    """By reason, without exchanges that a busy machine did not end in time."""
    return {reason: count for reason, count in failures(page, name).items() if reason != "timeout"}


def run_fault_storm(folder, stack: ExitStack) -> FaultStorm:
    server = stack.enter_context(MaliciousServer())
    elsewhere = stack.enter_context(MaliciousServer())
    same_port = stack.enter_context(MaliciousServer("127.0.0.2", server.port))
    first_life = stack.enter_context(ExitStack())
    mortal = first_life.enter_context(MaliciousServer())
    hole = stack.enter_context(full_backlog())
    start = stack.enter_context(programs())
    bomb()
    server.state["other"] = elsewhere.port
    (folder / "token").write_text("first\n")
    (folder / "token").chmod(0o600)
    netrc = folder / ".netrc"
    netrc.write_text("default login canary password canary\n")
    netrc.chmod(0o600)
    engines = [(name_of(fault), server.url(f"turned/{name_of(fault)}/{fault}")) for fault in TURNED]
    engines += [(name_of(odd), server.url(f"turned/{name_of(odd)}/{odd}")) for odd in ODD_PAGES]
    engines += [(name, server.url(f"living/{name}")) for name in HEALTHY]
    engines += [(name_of(fault), server.url(fault)) for fault in CLOSING]
    engines += [("flap", server.url("turned/flap/flap"))]
    engines += [("refused", mortal.url("living")), ("token", server.url("authorized"))]
    engines += [("hole", f"http://127.0.0.1:{hole}/metrics")]
    token = f", bearer_token_file: {folder / 'token'}"
    config = configure(folder, engines, more={"token": token})
    proxy = elsewhere.url("")
    environ = dict.fromkeys(
        ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"], proxy
    )
    program = start(config, cards(folder, cards=CARDS), NO_PROXY="", no_proxy="", HOME=str(folder), **environ)

    everybody = len(engines) - 1 + 1  # all but the hole, and the driver
    fault_storm = FaultStorm(before=program.wait_for(lambda page: len(up(page)) == everybody))
    time.sleep(1.5)
    fault_storm.base = (program.threads, program.resident)
    fault_storm.before = program.page()
    logged = len(program.log)

    server.state["turned"] = 1
    (folder / "token").unlink()
    first_life.close()
    fault_storm.turned_at = time.time()
    _watch(program, fault_storm)
    fault_storm.log_during = program.log[logged:]

    server.state["turned"] = 0
    (folder / "token").write_text("second, longer\n".replace(", ", "-"))
    (folder / "token").chmod(0o600)
    stack.enter_context(MaliciousServer("127.0.0.1", mortal.port))
    begun = time.monotonic()
    fault_storm.after = program.wait_for(lambda page: len(up(page)) == everybody)
    fault_storm.healed = time.monotonic() - begun

    server.state["turned"] = 1
    time.sleep(1.0)
    fault_storm.left = program.end()
    fault_storm.log = program.text()
    fault_storm.heads = list(server.requests)
    fault_storm.leaked = elsewhere.connections + same_port.connections
    return fault_storm


def _watch(program: Program, fault_storm: FaultStorm) -> None:
    """Look until everything hostile has been down for some seconds and each has shown its own reason."""
    end = time.monotonic() + CEILING
    down_since = None
    without_reason = {name_of(fault): reason_of(fault) for _, fault in CASES}
    while time.monotonic() < end:
        begun = time.monotonic()
        page = program.page()
        fault_storm.during.append(page)
        if down_since is None and not up(page) & MALICIOUS:
            down_since, fault_storm.withdrawn_at = begun, page.at
        if down_since is not None:
            without_reason = {name: why for name, why in without_reason.items() if page.reason(name) != why}
            if not without_reason and begun > down_since + LOOKED_AFTERWARDS:
                return
        fault_storm.slowest = max(fault_storm.slowest, time.monotonic() - begun)
        fault_storm.threads.append(program.threads)
        fault_storm.resident.append(program.resident)
        fault_storm.healthy.append(program.get("/-/healthy"))
        if len(fault_storm.during) % 8 == 0:
            status, text = program.get(accept=OPENMETRICS)
            assert status == 200
            fault_storm.openmetrics.append(text)
        time.sleep(0.2)


@pytest.fixture(scope="module")
def fault_storm(tmp_path_factory) -> FaultStorm:
    with ExitStack() as stack:
        return run_fault_storm(tmp_path_factory.mktemp("fault_storm"), stack)


@pytest.mark.parametrize(("row", "fault"), CASES, ids=[f"{row}-{fault}" for row, fault in CASES])
def test_a_fault_withdraws_the_replica_with_its_reason_and_heals(fault_storm, row, fault):
    name = name_of(fault)
    late = fault_storm.late
    assert len(late) > 5
    for page in late:
        assert page.value("llm_up", replica=name) == 0.0
        assert page.families_of(name) <= HEALTH
        assert page.value(STAMP, source=f"engine:{name}") <= fault_storm.turned_at + 1.0
    reasons = {page.reason(name) for page in late}
    # The large ones may have to wait for one another, and then it is their deadline that ends them.
    assert reasons <= {reason_of(fault), "timeout"}
    assert reason_of(fault) in reasons
    failures = late[-1].all("shardwatch_source_failures_total", source=f"engine:{name}", reason=reason_of(fault))
    assert failures and failures[0] >= 1.0
    assert fault_storm.before.value("llm_up", replica=name) == fault_storm.after.value("llm_up", replica=name) == 1.0
    assert fault_storm.after.value(STAMP, source=f"engine:{name}") > late[-1].value(STAMP, source=f"engine:{name}")


@pytest.mark.parametrize("odd", ODD_PAGES, ids=[f"{row}-{odd}" for odd, (row, _, _) in ODD_PAGES.items()])
def test_an_odd_page_is_used_as_far_as_it_goes_and_the_rest_is_counted(fault_storm, odd):
    name, reason = name_of(odd), ODD_PAGES[odd][2]
    late = fault_storm.late
    assert all(page.value("llm_up", replica=name) == 1.0 for page in late)
    tokens = [page.value("llm_generation_tokens_total", replica=name) for page in late]
    assert tokens == sorted(tokens) and len(set(tokens)) >= 3
    counted = late[-1].labels("shardwatch_source_oddities_total", "reason", source=f"engine:{name}")
    assert counted == ({reason} if reason else set())
    assert fault_storm.before.all("shardwatch_source_oddities_total", source=f"engine:{name}") == []


def test_e2_a_black_hole_never_comes_up_and_ends_at_its_deadline(fault_storm):
    for page in [fault_storm.before, *fault_storm.during, fault_storm.after]:
        assert page.value("llm_up", replica="hole") == 0.0
        assert page.reason("hole") == "timeout"
        assert page.all(STAMP, source="engine:hole") == []
    attempts = [
        page.value("shardwatch_source_failures_total", source="engine:hole", reason="timeout")
        for page in fault_storm.during
    ]
    assert attempts[-1] > attempts[0]  # none of them waits for ever


def test_all_that_turned_hostile_is_down_after_one_interval_and_one_deadline(fault_storm):
    assert fault_storm.withdrawn_at - fault_storm.turned_at < WITHDRAWN + SLACK
    assert all(not up(page) & MALICIOUS for page in fault_storm.late)


def test_healthy_engines_and_gpus_go_on_beside_all_hostile_ones(fault_storm):
    sources = [f"engine:{name}" for name in [*HEALTHY, "closing"]]
    for page in fault_storm.during:
        for source in sources:
            assert page.at - page.value(STAMP, source=source) < 1.0 + SLACK, source
        assert page.all("gpu_up") == [1.0, 1.0]
        assert max(page.all("gpu_data_age_seconds")) < 1.0 + SLACK
        assert len(page.all("gpu_power_watts")) == 2
    for name in HEALTHY:
        tokens = [page.value("llm_generation_tokens_total", replica=name) for page in fault_storm.during]
        assert tokens == sorted(tokens)
        assert len(set(tokens)) >= 6
        read = [page.value(STAMP, source=f"engine:{name}") for page in fault_storm.during]
        assert (tokens[-1] - tokens[0]) / (read[-1] - read[0]) == pytest.approx(
            1000.0, abs=1000.0 * TIMEOUT / (read[-1] - read[0])
        )
        assert but_late(fault_storm.during[-1], name) == but_late(fault_storm.before, name)


def test_the_page_is_valid_at_every_moment_of_the_fault_storm(fault_storm, promtool):
    """``Figures`` has already refused repeated series and numbers that are not finite, on every page."""
    assert len(fault_storm.during) > 15 and len(fault_storm.openmetrics) >= 2
    for page, openmetrics in zip(fault_storm.during[::8], fault_storm.openmetrics, strict=False):
        strictly(page.text, openmetrics)
    promtool_is_content(promtool, fault_storm.during[-1].text)
    assert all(page.value("shardwatch_dropped_series") == 0.0 for page in fault_storm.during)
    assert fault_storm.slowest < 2.0 + SLACK


def test_threads_and_memory_stay_bounded_and_liveness_true_under_the_fault_storm(fault_storm):
    threads, resident = fault_storm.base
    assert max(fault_storm.threads) <= threads + 2
    assert max(fault_storm.resident) - resident <= 24.0
    assert {status for status, _ in fault_storm.healthy} == {200}


def test_e17_nothing_ever_goes_to_another_place(fault_storm):
    assert fault_storm.leaked == 0
    assert any(path == "turned" and b"redirect_host" in head for path, head in fault_storm.heads)


def test_e31_fifty_thousand_new_series_do_not_change_the_number_of_ours(fault_storm):
    counts = {len(page.rows) for page in fault_storm.late}
    assert max(counts) - min(counts) <= 40  # reasons that are counted for the first time
    assert max(counts) < len(fault_storm.before.rows)


def test_e35_a_fault_storm_is_logged_by_transitions_and_not_by_polls(fault_storm):
    """Each source may say three things, then one a minute, whatever it does; what stays down says that once."""
    by_source = Counter(re.findall(r"source=(\S+)", "".join(fault_storm.log_during)))
    assert max(by_source.values()) <= 3
    assert len(fault_storm.log_during) - by_source.total() <= 10
    assert len(re.findall(r"source=engine:flap ", fault_storm.log)) <= 5
    assert "Traceback" not in fault_storm.log


def test_e40_proxies_and_netrc_of_the_environment_are_not_used(fault_storm):
    assert fault_storm.leaked == 0  # the proxy would have been that other place
    assert not any(b"Basic " in head for _, head in fault_storm.heads)


def test_e42_a_token_that_vanished_is_credentials_and_a_rotated_one_is_used(fault_storm):
    late = fault_storm.late
    assert {page.reason("token") for page in late} == {"credentials"}
    assert fault_storm.after.value("llm_up", replica="token") == 1.0
    sent = re.findall(rb"Authorization: Bearer (\S+)", b"".join(head for _, head in fault_storm.heads))
    assert set(sent) == {b"first", b"second-longer"}
    assert sent == sorted(sent)
    assert not any(
        b"Authorization" in head for path, head in fault_storm.heads if path not in ("authorized", "version")
    )


def test_e45_an_engine_that_closes_after_each_answer_fails_never(fault_storm):
    for fault in CLOSING:
        name = name_of(fault)
        for page in [fault_storm.before, *fault_storm.during, fault_storm.after]:
            assert page.value("llm_up", replica=name) == 1.0 or page.reason(name) == "timeout"
            assert but_late(page, name) == {}
        assert fault_storm.after.value("llm_up", replica=name) == 1.0


def test_p1_sigterm_amid_the_fault_storm_ends_it_with_zero_within_two_seconds(fault_storm):
    code, seconds = fault_storm.left
    assert code == 0
    assert seconds < 2.0 + SLACK


def test_a_healed_engine_is_read_again_within_the_longest_back_off(fault_storm):
    assert fault_storm.healed < 30.0 * 1.1 + 1.0 + SLACK
