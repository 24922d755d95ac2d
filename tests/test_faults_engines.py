"""Rows E1 to E21, E31, E35 and E39 to E46 of the fault matrix: a whole daemon among engines that turn hostile.

In ``siege`` one daemon polls every hostile engine at once, beside healthy ones and two cards.  All of them are healthy
at first, then all turn at the same moment, then all heal; what the tests look at was seen from outside meanwhile.
"""

from __future__ import annotations

import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

import exporter.app
from exporter.app import App
from exporter.settings import parse
from exporter.sources.endpoint import resolver
from tests.endpoint_probe import REFUSED, full_backlog, refused_port
from tests.fault_matrix import (
    HEALTH,
    ODD_PAGES,
    OPENMETRICS,
    Figures,
    Program,
    cards,
    configure,
    programs,
    promtool_is_content,
    strictly,
    wait_until,
)
from tests.hostile import Hostile
from tests.hostile_pages import bomb

pytestmark = pytest.mark.slow

WITHDRAWN = 2.0  # seconds: one interval, and one exchange's deadline
SLACK = 3.0  # what a machine with other work may add

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
STAMP = "shardwatch_source_last_success_timestamp_seconds"


def reason_of(fault: str) -> str:
    return REFUSED.get(fault) or OTHER_REASONS.get(fault, "timeout")


def name_of(fault: str) -> str:
    return fault.replace("_", "-")


@dataclass
class Siege:
    """What was seen.  Times: Unix for pages, MiB for memory."""

    before: Figures
    turned_at: float = 0.0
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
    log_during: int = 0
    heads: list[tuple[str, bytes]] = field(default_factory=list)
    leaked: int = 0  # connections to places where no request belongs
    left: tuple[int, float] = (-1, 99.0)


def up(page: Figures) -> set[str]:
    return page.labels("shardwatch_source_up", "source") - page.labels("shardwatch_source_down_info", "source")


def besiege(folder, stack: ExitStack) -> Siege:
    server = stack.enter_context(Hostile())
    elsewhere = stack.enter_context(Hostile())
    same_port = stack.enter_context(Hostile("127.0.0.2", server.port))
    first_life = stack.enter_context(ExitStack())
    mortal = first_life.enter_context(Hostile())
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
    siege = Siege(before=program.wait_for(lambda page: len(up(page)) == everybody, 30))
    time.sleep(1.5)
    siege.base = (program.threads, program.resident)
    siege.before = program.page()
    logged = len(program.log)

    server.state["turned"] = 1
    (folder / "token").unlink()
    first_life.close()
    siege.turned_at = time.time()
    _watch(program, siege, until=time.monotonic() + 9.0)
    siege.log_during = len(program.log) - logged

    server.state["turned"] = 0
    (folder / "token").write_text("second, longer\n".replace(", ", "-"))
    (folder / "token").chmod(0o600)
    stack.enter_context(Hostile("127.0.0.1", mortal.port))
    begun = time.monotonic()
    siege.after = program.wait_for(lambda page: len(up(page)) == everybody, 45)
    siege.healed = time.monotonic() - begun

    server.state["turned"] = 1
    time.sleep(1.0)
    siege.left = program.end()
    siege.log = program.text()
    siege.heads = list(server.requests)
    siege.leaked = elsewhere.connections + same_port.connections
    return siege


def _watch(program: Program, siege: Siege, until: float) -> None:
    while time.monotonic() < until:
        begun = time.monotonic()
        siege.during.append(program.page())
        siege.slowest = max(siege.slowest, time.monotonic() - begun)
        siege.threads.append(program.threads)
        siege.resident.append(program.resident)
        siege.healthy.append(program.get("/-/healthy"))
        if len(siege.during) % 8 == 0:
            status, text = program.get(accept=OPENMETRICS)
            assert status == 200
            siege.openmetrics.append(text)
        time.sleep(0.2)


@pytest.fixture(scope="module")
def siege(tmp_path_factory) -> Siege:
    with ExitStack() as stack:
        return besiege(tmp_path_factory.mktemp("siege"), stack)


@pytest.mark.parametrize(("row", "fault"), CASES, ids=[f"{row}-{fault}" for row, fault in CASES])
def test_a_fault_withdraws_the_replica_with_its_reason_and_heals(siege, row, fault):
    name = name_of(fault)
    late = [page for page in siege.during if page.at > siege.turned_at + WITHDRAWN + SLACK]
    assert len(late) > 5
    for page in late:
        assert page.one("llm_up", replica=name) == 0.0
        assert page.families_of(name) <= HEALTH
        assert page.one(STAMP, source=f"engine:{name}") <= siege.turned_at + 1.0
    reasons = {page.reason(name) for page in late}
    # The large ones may have to wait for one another, and then it is their deadline that ends them.
    assert reasons <= {reason_of(fault), "timeout"}
    assert reason_of(fault) in reasons
    failures = late[-1].all("shardwatch_source_failures_total", source=f"engine:{name}", reason=reason_of(fault))
    assert failures and failures[0] >= 1.0
    assert siege.before.one("llm_up", replica=name) == siege.after.one("llm_up", replica=name) == 1.0
    assert siege.after.one(STAMP, source=f"engine:{name}") > late[-1].one(STAMP, source=f"engine:{name}")


@pytest.mark.parametrize("odd", ODD_PAGES, ids=[f"{row}-{odd}" for odd, (row, _, _) in ODD_PAGES.items()])
def test_an_odd_page_is_used_as_far_as_it_goes_and_the_rest_is_counted(siege, odd):
    name, reason = name_of(odd), ODD_PAGES[odd][2]
    late = [page for page in siege.during if page.at > siege.turned_at + WITHDRAWN + SLACK]
    assert all(page.one("llm_up", replica=name) == 1.0 for page in late)
    tokens = [page.one("llm_generation_tokens_total", replica=name) for page in late]
    assert tokens == sorted(tokens) and len(set(tokens)) >= 3
    counted = late[-1].labels("shardwatch_source_oddities_total", "reason", source=f"engine:{name}")
    assert counted == ({reason} if reason else set())
    assert siege.before.all("shardwatch_source_oddities_total", source=f"engine:{name}") == []


def test_e2_a_black_hole_never_comes_up_and_ends_at_its_deadline(siege):
    for page in [siege.before, *siege.during, siege.after]:
        assert page.one("llm_up", replica="hole") == 0.0
        assert page.reason("hole") == "timeout"
        assert page.all(STAMP, source="engine:hole") == []
    attempts = [
        page.one("shardwatch_source_failures_total", source="engine:hole", reason="timeout") for page in siege.during
    ]
    assert attempts[-1] > attempts[0]  # none of them waits for ever


def test_all_that_turned_hostile_is_down_after_one_interval_and_one_deadline(siege):
    page = next(page for page in siege.during if page.at > siege.turned_at + WITHDRAWN + SLACK)
    hostile = {f"engine:{name_of(fault)}" for _, fault in CASES} | {"engine:token", "engine:hole"}
    assert up(page) & hostile == set()


def test_healthy_engines_and_cards_go_on_beside_all_hostile_ones(siege):
    sources = [f"engine:{name}" for name in [*HEALTHY, "closing"]]
    for page in siege.during:
        for source in sources:
            assert page.at - page.one(STAMP, source=source) < 1.0 + SLACK, source
        assert page.all("gpu_up") == [1.0, 1.0]
        assert max(page.all("gpu_data_age_seconds")) < 1.0 + SLACK
        assert len(page.all("gpu_power_watts")) == 2
    for name in HEALTHY:
        tokens = [page.one("llm_generation_tokens_total", replica=name) for page in siege.during]
        assert tokens == sorted(tokens)
        assert len(set(tokens)) >= 6
        read = [page.one(STAMP, source=f"engine:{name}") for page in siege.during]
        assert (tokens[-1] - tokens[0]) / (read[-1] - read[0]) == pytest.approx(1000.0, rel=0.05)
        assert siege.during[-1].all("shardwatch_source_failures_total", source=f"engine:{name}") == []


def test_the_page_is_valid_at_every_moment_of_the_siege(siege, promtool):
    """``Figures`` has already refused repeated series and numbers that are not finite, on every page."""
    assert len(siege.during) > 15 and len(siege.openmetrics) >= 2
    for page, openmetrics in zip(siege.during[::8], siege.openmetrics, strict=False):
        strictly(page.text, openmetrics)
    promtool_is_content(promtool, siege.during[-1].text)
    assert all(page.one("shardwatch_dropped_series") == 0.0 for page in siege.during)
    assert siege.slowest < 2.0


def test_threads_and_memory_stay_bounded_and_liveness_true_under_siege(siege):
    threads, resident = siege.base
    assert max(siege.threads) <= threads + 2
    assert max(siege.resident) - resident <= 24.0
    assert {status for status, _ in siege.healthy} == {200}


def test_e17_nothing_ever_goes_to_another_place(siege):
    assert siege.leaked == 0
    assert any(path == "turned" and b"redirect_host" in head for path, head in siege.heads)


def test_e31_fifty_thousand_new_series_do_not_change_the_number_of_ours(siege):
    counts = {len(page.rows) for page in siege.during if page.at > siege.turned_at + WITHDRAWN + SLACK}
    assert max(counts) - min(counts) <= 40  # reasons that are counted for the first time
    assert max(counts) < len(siege.before.rows)


def test_e35_a_siege_is_logged_by_transitions_and_not_by_polls(siege):
    """Each engine may say once that it is down; what flaps on every poll is silent for a minute."""
    assert siege.log_during <= len(CASES) + 10
    assert len(re.findall(r"source=engine:flap ", siege.log)) <= 2
    assert "Traceback" not in siege.log


def test_e40_proxies_and_netrc_of_the_environment_are_not_used(siege):
    assert siege.leaked == 0  # the proxy would have been that other place
    assert not any(b"Basic " in head for _, head in siege.heads)


def test_e42_a_token_that_vanished_is_credentials_and_a_rotated_one_is_used(siege):
    late = [page for page in siege.during if page.at > siege.turned_at + WITHDRAWN + SLACK]
    assert {page.reason("token") for page in late} == {"credentials"}
    assert siege.after.one("llm_up", replica="token") == 1.0
    sent = re.findall(rb"Authorization: Bearer (\S+)", b"".join(head for _, head in siege.heads))
    assert set(sent) == {b"first", b"second-longer"}
    assert sent == sorted(sent)
    assert not any(b"Authorization" in head for path, head in siege.heads if path not in ("authorized", "version"))


def test_e45_an_engine_that_closes_after_each_answer_fails_never(siege):
    for page in [*siege.during, siege.after]:
        for fault in CLOSING:
            assert page.one("llm_up", replica=name_of(fault)) == 1.0
            assert page.all("shardwatch_source_failures_total", source=f"engine:{name_of(fault)}") == []


def test_p1_sigterm_amid_the_siege_ends_it_with_zero_within_two_seconds(siege):
    code, seconds = siege.left
    assert code == 0
    assert seconds < 2.0 + SLACK


def test_a_healed_engine_is_read_again_within_the_longest_back_off(siege):
    assert siege.healed < 30.0 * 1.1 + 1.0 + SLACK


# ---------------------------------------------------------------------- E43, E44: hung engines


def test_e43_e44_one_hung_engine_disturbs_nobody_and_sixteen_leave_a_good_page(tmp_path):
    names = [f"e{number:02}" for number in range(16)]
    with Hostile() as server, programs() as start:
        pace = "interval: 500ms, timeout: 400ms"
        config = configure(tmp_path, [(name, server.url(f"turned/{name}/silent")) for name in names], pace=pace)
        program = start(config, cards(tmp_path))
        program.wait_for(lambda page: page.all("llm_up") == [1.0] * 16)
        threads = program.threads

        server.state["e07"] = 1
        seen = []
        for _ in range(14):
            time.sleep(0.25)
            seen.append(program.page())
            assert program.threads <= threads
        assert seen[-1].reason("e07") == "timeout"
        for name in names:
            if name != "e07":
                tokens = [page.one("llm_generation_tokens_total", replica=name) for page in seen]
                assert len(set(tokens)) >= 4
                assert seen[-1].all("shardwatch_source_failures_total", source=f"engine:{name}") == []

        server.state["turned"] = 1
        page = program.wait_for(lambda page: page.all("llm_up") == [0.0] * 16, WITHDRAWN + SLACK)
        strictly(page.text, program.get(accept=OPENMETRICS)[1])
        assert {page.reason(name) for name in names} == {"timeout"}
        assert program.threads <= threads
        assert page.all("gpu_up") == [1.0, 1.0]
        assert program.get("/-/healthy")[0] == 200
        assert program.get("/-/ready") == (200, "2 of 2 cards and 0 of 16 replicas answer\n")
        code, seconds = program.end()
        assert (code, seconds < 2.0 + SLACK) == (0, True)


# ---------------------------------------------------------------------- E39: names


@pytest.fixture
def no_cards_app() -> Iterator[object]:
    made: list[App] = []

    def make(engines: list[tuple[str, str]], *extra: str) -> App:
        rows = "".join(f"  - {{name: {n}, url: '{u}', interval: 500ms, timeout: 400ms}}\n" for n, u in engines)
        text = "\n".join(["listen: 127.0.0.1:0", "gpu: {enabled: false}", *extra, "engines:", rows])
        made.append(App(parse(text, "test", {})))
        made[-1].start()
        return made[-1]

    yield make
    for app in made:
        pollers = list(app._replicas.values())
        app.stop()
        for poller in pollers:
            poller.join(5)
        assert app.placement._thread is not None
        app.placement._thread.join(5)


def page_of(app: App) -> Figures | None:
    body = app.pages.page(openmetrics=False, gzip=False)
    return Figures(body.decode()) if body is not None else None


def test_e39_names_that_hang_fail_or_move_cost_one_thread_each_and_no_neighbour(no_cards_app, monkeypatch):
    release = threading.Event()
    answers = ["127.0.0.3", "127.0.0.1"]

    def look_up(host: str) -> list[resolver.Address]:
        if host == "hangs.example":
            release.wait(60)
            return []
        if host == "unknown.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, (answers.pop(0) if len(answers) > 1 else answers[0], 0))]

    shared = resolver.Resolver(look_up)
    endpoint = exporter.app.Endpoint
    monkeypatch.setattr(exporter.app, "Endpoint", lambda target: endpoint(target, resolver=shared))
    monkeypatch.setattr("exporter.placement.SHARED", shared)
    with Hostile() as server:
        url = server.url
        app = no_cards_app(
            [
                ("well", url("living/well")),
                ("hangs", url("living/a", host="hangs.example")),
                ("hangs-too", url("living/b", host="hangs.example")),
                ("unknown", url("living/c", host="unknown.example")),
                ("moves", url("living/d", host="moves.example")),
            ]
        )
        try:
            wanted = {"hangs": "dns", "hangs-too": "dns", "unknown": "dns", "moves": "", "well": ""}
            assert wait_until(
                lambda: (page := page_of(app)) and {name: page.reason(name) for name in wanted} == wanted, 10
            )
            for _ in range(10):
                time.sleep(0.2)
                resolving = [t.name for t in threading.enumerate() if t.name.startswith("resolve-hangs")]
                assert resolving == ["resolve-hangs.example"]
            page = page_of(app)
            assert page.at - page.one(STAMP, source="engine:well") < 1.0 + SLACK
            spent = {status.source: status.duration for status in app.publisher.snapshot.sources}
            assert 0.4 <= spent["engine:hangs"] < 0.4 + SLACK
            assert {name: page.reason(name) for name in wanted} == wanted
        finally:
            release.set()


# ---------------------------------------------------------------------- E41: TLS


def test_e41_each_bad_certificate_has_its_reason_and_the_good_one_tells_when_it_ends(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificates and is not installed")
    from tests.test_endpoint_tls import CONFIGURATION, EXPIRES, Keys, Raw, server_context

    keys = Keys(tmp_path)
    (tmp_path / "conf").write_text(CONFIGURATION)
    (tmp_path / "index").touch()
    keys.authority("ca")
    keys.authority("stranger")
    valid = ("20200101000000Z", "20480102030405Z")
    keys.certificate("good", "ca", "here", *valid)
    keys.certificate("wrong-name", "ca", "elsewhere", *valid)
    keys.certificate("expired", "ca", "here", "20200101000000Z", "20210101000000Z")
    keys.certificate("of-a-stranger", "stranger", "here", *valid)
    wanted = {
        "good": "", "expired": "tls_expired", "wrong-name": "tls_name", "of-a-stranger": "tls_unknown_ca",
        "mute": "timeout", "plain": "timeout",
    }  # fmt: skip
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Hostile(tls=server_context(keys, name)))
            for name in ("good", "wrong-name", "expired", "of-a-stranger")
        }
        plain = stack.enter_context(Hostile())
        mute = stack.enter_context(Raw(b"", drip=False))
        engines = [(name, server.url("living")) for name, server in servers.items()]
        engines += [("mute", mute.url), ("plain", plain.url("living").replace("http:", "https:"))]
        tls = f", tls: {{ca_file: {keys.path('ca.pem')}}}"
        start = stack.enter_context(programs())
        program = start(
            configure(tmp_path, engines, more=dict.fromkeys(wanted, tls), extra="gpu: {enabled: false}\n")
        )
        page = program.wait_for(lambda page: {name: page.reason(name) for name in wanted} == wanted)
        assert page.one("llm_certificate_expiry_timestamp_seconds", replica="good") == EXPIRES
        assert page.one("llm_up", replica="good") == 1.0
        assert [name for name, server in servers.items() if server.requests] == ["good"]
        assert all(b"HTTP" not in head for _, head in plain.requests)  # never downgraded


# ---------------------------------------------------------------------- E46: identity


def test_e46_engines_of_one_name_or_one_page_are_refused_at_load():
    from exporter.errors import SettingsError

    url = "http://127.0.0.1:8000/metrics"
    for second in ("{name: a, url: 'http://127.0.0.1:8001/metrics'}", f"{{name: b, url: '{url}'}}"):
        with pytest.raises(SettingsError, match=r"engines\[1\]"):
            parse(f"engines:\n  - {{name: a, url: '{url}'}}\n  - {second}\n", "test", {})


def test_e46_a_found_engine_never_shares_the_name_of_a_configured_one(no_cards_app):
    """Somebody calls the engine on port 1 by the name that discovery would give to the one on port 2."""
    from exporter.sources.processes.table import Candidate

    with Hostile() as one, Hostile() as other:
        name = f"127.0.0.1:{other.port}"
        app = no_cards_app([(f"'{name}'", one.url("living"))])
        places = [("127.0.0.1", other.port), ("127.0.0.1", one.port), ("::1", other.port)]
        found = [Candidate(host=host, port=port, pid=1, kind="vllm") for host, port in places]
        app.discovery.saw_processes(found)
        names = [engine.name for engine in app._replicas]
        assert len(set(names)) == len(names)
        assert wait_until(lambda: (page := page_of(app)) and page.all("llm_up", replica=name) == [1.0])
        urls = {poller._fetcher._target.url for poller in app._replicas.values() if poller.plan.name == name}
        assert urls == {one.url("living")}


def test_a_refused_port_is_asked_again_within_five_seconds_however_long_it_was_closed(tmp_path):
    port = refused_port()
    with programs() as start:
        config = configure(
            tmp_path, [("a", f"http://127.0.0.1:{port}/living")], pace="interval: 200ms, timeout: 150ms",
            extra="gpu: {enabled: false}\n",
        )  # fmt: skip
        program = start(config)
        program.wait_for(
            lambda page: sum(page.all("shardwatch_source_failures_total", source="engine:a", reason="refused")) >= 8
        )
        with Hostile("127.0.0.1", port):
            program.wait_for(lambda page: page.all("llm_up") == [1.0], 5.5 + SLACK)
