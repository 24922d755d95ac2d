"""XIDs held for the page: which sources are named, what is logged, and that neither worker nor reload costs a count."""

from __future__ import annotations

import logging

import pytest

from exporter.config.settings import parse
from exporter.derive.nic_events import MAX_ADAPTERS
from exporter.driver import protocol
from exporter.driver.daemon.source import DRIVER_DOWN
from exporter.model import CardFacts
from exporter.model.xid_catalog import FATAL
from exporter.runtime.app import App, Driver
from exporter.runtime.gpu_event_lines import MAX_LOGGED
from exporter.runtime.gpu_events import PERIOD, STARTUP_GRACE, GpuEvents
from exporter.sources.kernel_log.log import Entry
from exporter.sources.kernel_log.messages import GpuNameMessage, XidMessage
from exporter.sources.kernel_log.nic_messages import NicMessage
from exporter.sources.kernel_log.switch_messages import SxidMessage
from exporter.sources.pci import PciDevices
from tests.support.builders import Clock, card
from tests.support.records import replace
from tests.support.tools import without_root
from tests.support.waiting import until

UUID = "GPU-0000"
CARDS = [replace(card(0), facts=CardFacts(index=0, uuid=UUID, pci_bus_id="00000000:65:00.0"))]
UP = protocol.EventSubscription(cards=1)
DOWN = protocol.EventSubscription(cards=0, reason=DRIVER_DOWN)


def xid_seen(xid=79, times=1, at=1000.0, uuid=UUID):
    return protocol.XidSeen(uuid=uuid, xid=xid, times=times, at=at)


def line(xid=79, text="GPU has fallen off the bus."):
    return f"NVRM: Xid (PCI:0000:65:00): {xid}, {text}\n"


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def changes():
    return []


@pytest.fixture
def events(clock, changes):
    gpu_events = GpuEvents(on_change=lambda: changes.append(1), clock=clock, unix_now=lambda: 1.7e9 + clock.now)
    yield gpu_events
    gpu_events.stop()
    if gpu_events._watch is not None:
        gpu_events._watch.poll_loop.join(5.0)


def follow(events, path, *, known=lambda events: events._watch.poll_loop.status.reason != "starting"):
    """Start the real thread on a file and wait for what is asked."""
    events.watch(enabled=True, path=str(path))
    until(lambda: known(events))


def look(events):
    """Read the kernel log once, in this thread."""
    events._watch.refresh()


def count(events, xid="79"):
    matching = [xid_count for xid_count in events.view(CARDS) if xid_count.labels[2] == xid]
    assert len(matching) == 1, matching
    return matching[0].count


def labels(events):
    return {xid_count.labels[3] for xid_count in events.view(CARDS)}


def test_an_event_of_the_driver_is_counted_and_notified(events, changes):
    events.on_driver_event(UP)
    changes.clear()
    events.on_driver_event(xid_seen())
    assert changes
    (xid_count,) = [xid_count for xid_count in events.view(CARDS) if xid_count.last_unix_time is not None]
    assert (xid_count.labels, xid_count.count, xid_count.last_unix_time) == (
        ("0", UUID, "79", "nvml"),
        1,
        1.7e9 + 1000.0,
    )
    assert len(events.view(CARDS)) == len(FATAL)


def test_nothing_is_shown_before_it_is_known_who_is_listened_to(events, clock, tmp_path):
    assert events.view(CARDS) == ()
    follow(events, tmp_path / "missing")
    assert events.view(CARDS) == (), "nobody listens"
    (tmp_path / "missing").write_text("")
    look(events)
    assert events.view(CARDS) == (), "the driver may still be there in a moment"
    clock.tick(STARTUP_GRACE)
    assert labels(events) == {"kernel_log"}
    events.on_driver_event(UP)
    assert labels(events) == {"nvml+kernel_log"}


def test_a_source_that_fails_for_a_while_renames_no_series(events, tmp_path):
    (tmp_path / "log").write_text("")
    events.on_driver_event(UP)
    follow(events, tmp_path / "log")
    assert labels(events) == {"nvml+kernel_log"}
    for message in (DOWN, protocol.EventSubscription(cards=0, reason="hung")):
        events.on_driver_event(message)
        assert labels(events) == {"nvml+kernel_log"}
    (tmp_path / "log").unlink()
    look(events)
    assert labels(events) == {"nvml+kernel_log"}


def test_one_event_in_both_sources_counts_once(events, tmp_path):
    path = tmp_path / "log"
    path.write_text("")
    events.on_driver_event(UP)
    follow(events, path)
    events.view(CARDS)
    path.write_text(line() + "NVRM: GPU 0000:65:00.0: GPU has fallen off the bus.\n")
    look(events)
    events.on_driver_event(xid_seen(at=1001.0))
    assert count(events) == 1


def test_a_worker_that_is_replaced_costs_no_count(events):
    events.on_driver_event(UP)
    events.on_driver_event(xid_seen())
    events.on_driver_event(DOWN)
    assert count(events) == 1
    events.on_driver_event(UP)
    events.on_driver_event(xid_seen(at=1030.0))
    assert count(events) == 2


def test_an_event_on_a_gpu_that_is_lost_keeps_its_labels(events):
    events.on_driver_event(UP)
    events.view(CARDS)
    events.on_driver_event(xid_seen())
    matching = [xid_count for xid_count in events.view([]) if xid_count.last_unix_time is not None]
    assert [xid_count.labels[:3] for xid_count in matching] == [("0", UUID, "79")]


def test_the_kernel_log_that_is_switched_off_is_no_source_any_more_and_costs_no_count(events, tmp_path):
    path = tmp_path / "log"
    path.write_text("")
    events.on_driver_event(UP)
    follow(events, path)
    events.view(CARDS)
    path.write_text(line())
    look(events)
    watch = events._watch
    events.watch(enabled=True, path=str(path))
    assert events._watch is watch, "the same path goes on"
    events.watch(enabled=False, path=None)
    watch.poll_loop.join(5.0)
    assert [status.source for status in events.statuses] == ["nvml_events"]
    assert count(events) == 1 and labels(events) == {"nvml"}


def test_both_sources_say_how_they_are(events, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    follow(events, tmp_path / "missing")
    events.on_driver_event(protocol.EventSubscription(cards=0, reason="unsupported"))
    driver, log = events.statuses
    assert (driver.source, driver.up, driver.reason, driver.failures) == (
        "nvml_events", False, "unsupported", {"unsupported": 1},
    )  # fmt: skip
    assert (log.source, log.up, log.reason) == ("kernel_log", False, "missing") and log.failures["missing"] >= 1
    for _ in range(5):
        look(events)
        events.on_driver_event(protocol.EventSubscription(cards=0, reason="unsupported"))
    assert sum("source=nvml_events state=down reason=unsupported" in text for text in caplog.messages) == 1
    assert sum("source=kernel_log state=down reason=missing" in text for text in caplog.messages) == 1
    events.on_driver_event(UP)
    assert events.statuses[0].up


def test_no_permission_is_said_once_with_what_helps_and_exposed(events, tmp_path, caplog):
    path = tmp_path / "log"
    path.write_text("")
    path.chmod(0o600)
    tmp_path.chmod(0o755)
    with without_root():
        if not denied(path):
            pytest.fail("this user can read everything")
        follow(events, path)
        for _ in range(3):
            look(events)
    (status,) = [status for status in events.statuses if status.source == "kernel_log"]
    assert (status.up, status.reason) == (False, "no_permission") and status.failures["no_permission"] >= 3
    logged = [text for text in caplog.messages if "kernel_log" in text]
    assert len(logged) == 1 and "CAP_SYSLOG" in logged[0]


def denied(path):
    try:
        open(path).close()
    except PermissionError:
        return True
    return False


def test_a_driver_that_is_down_is_not_said_twice(events, caplog):
    events.on_driver_event(DOWN)
    assert not caplog.messages and events.statuses[0].failures == {}


def test_an_event_is_logged_with_its_meaning_and_a_storm_in_one_line_a_minute(events, clock, caplog):
    caplog.set_level(logging.INFO)
    events.view(CARDS)
    for _ in range(1000):
        events.on_driver_event(xid_seen(xid=94, at=clock.now, times=10))
    (text,) = caplog.messages
    for part in (
        "xid=94",
        "class=application",
        "action=restart_application",
        "gpu=0",
        UUID,
        "pci=0000:65:00",
        "source=nvml",
        "contained",
    ):
        assert part in text
    clock.tick(61.0)
    events.on_driver_event(xid_seen(xid=94, at=clock.now))
    assert "suppressed=9990" in caplog.messages[1] and caplog.records[1].levelname == "WARNING"
    events.on_driver_event(xid_seen(xid=63, at=clock.now))
    assert caplog.records[2].levelname == "INFO"


def test_a_flood_of_ever_other_codes_fills_no_log(events, clock, caplog):
    caplog.set_level(logging.INFO)
    events.view(CARDS)
    for code in range(100, 100 + 3 * MAX_LOGGED):
        events.on_driver_event(xid_seen(xid=code, at=clock.now))
    assert len(caplog.messages) == MAX_LOGGED + 1
    clock.tick(61.0)
    events.on_driver_event(xid_seen(xid=99, at=clock.now))
    events.on_driver_event(xid_seen(xid=100, at=clock.now))
    assert len(caplog.messages) == MAX_LOGGED + 3, "what was said long ago makes room"


def test_what_the_driver_wrote_is_logged_and_cannot_forge_a_line(events, tmp_path, caplog):
    path = tmp_path / "log"
    path.write_text("")
    follow(events, path)
    path.write_text(line(13, "pid=7, name=x\x1b[31m\rlevel=ERROR forged"))
    look(events)
    (text,) = [text for text in caplog.messages if "event=xid" in text]
    assert "pid=7, name=x" in text and text.isprintable()


def test_an_event_before_the_start_is_seen_and_not_counted(events, tmp_path, caplog):
    path = tmp_path / "log"
    path.write_text("1699999000.5 node kernel: " + line(79))
    events.on_driver_event(UP)
    follow(events, path)
    (xid_count,) = [xid_count for xid_count in events.view(CARDS) if xid_count.last_unix_time is not None]
    assert (xid_count.count, xid_count.last_unix_time) == (0, 1_699_999_000.5)
    assert not [text for text in caplog.messages if "event=xid" in text]


def test_faults_of_adapters_are_counted_by_kind_and_logged_once_a_minute(events, changes, caplog):
    def entry(event, old=False, at=1.7e9, pci="0000:65:00.0"):
        return Entry(message=NicMessage(pci=pci, event=event, detail="Link down"), unix_time=at, old=old)

    events._on_log_entries([entry("health", old=True, at=1.6e9), entry("link_down"), entry("link_down", at=1.8e9)])
    assert changes
    assert {(*each.labels, each.count, each.last_unix_time) for each in events.nic_events()} == {
        ("0000:65:00.0", "health", 0, 1.6e9),
        ("0000:65:00.0", "link_down", 2, 1.8e9),
    }
    assert caplog.text.count("event=nic_event") == 1
    events._on_log_entries([entry("link_down", pci=f"0000:{bus:02x}:00.0") for bus in range(200)])
    assert len({each.labels.pci_bus_id for each in events.nic_events()}) == MAX_ADAPTERS + 1


def test_messages_about_devices_that_are_not_there_count_nothing_and_are_logged_once(clock, tmp_path, caplog):
    (tmp_path / "0000:65:00.0").mkdir()
    (tmp_path / "0000:65:00.0" / "vendor").write_text("0x10de\n")
    events = GpuEvents(driver=False, devices=PciDevices(str(tmp_path)), clock=clock)
    present, elsewhere = (
        [
            Entry(message=message, unix_time=1.7e9, old=False)
            for message in (
                XidMessage(pci=pci, xid=79),
                GpuNameMessage(pci=pci, uuid=UUID),
                SxidMessage(pci=pci, sxid=24007, severity="fatal", link=None),
            )
        ]
        for pci in ("0000:65:00", "0000:19:00")
    )
    events._on_log_entries(elsewhere)
    clock.tick(STARTUP_GRACE)
    assert events.switches() == () and caplog.text.count("event=unknown_device") == 1
    events._on_log_entries(present)
    assert {labels.labels.pci_bus_id for labels in events.switches()} == {"0000:65:00"}
    events.view([replace(card(0), facts=CardFacts(index=0, uuid=UUID, pci_bus_id="00000000:19:00.0"))])
    events._on_log_entries(elsewhere)
    assert {labels.labels.pci_bus_id for labels in events.switches()} == {"0000:19:00", "0000:65:00"}, (
        "the driver knows"
    )


def test_a_text_file_is_said_to_be_no_proof_once(events, tmp_path, caplog):
    path = tmp_path / "log"
    path.write_text("")
    follow(events, path)
    for _ in range(3):
        look(events)
    assert caplog.text.count("event=kernel_log_not_authentic") == 1


def test_old_lines_without_a_time_are_left_out(events, tmp_path):
    path = tmp_path / "log"
    path.write_text(line(79))
    events.on_driver_event(UP)
    follow(events, path)
    assert all(xid_count.last_unix_time is None for xid_count in events.view(CARDS))
    with path.open("a") as log:
        log.write(line(79))
    look(events)
    assert [xid_count.count for xid_count in events.view(CARDS) if xid_count.last_unix_time is not None] == [1], (
        "a new one is read"
    )


def test_the_thread_reads_what_is_added_by_itself(events, tmp_path, changes):
    path = tmp_path / "log"
    path.write_text("")
    events.on_driver_event(UP)
    follow(events, path)
    events.view(CARDS)
    path.write_text(line(79))
    until(lambda: count(events) == 1, seconds=20 * PERIOD)
    assert changes


def test_nothing_new_costs_no_new_rows(events):
    events.on_driver_event(UP)
    assert events.view(CARDS) is events.view(CARDS)


def test_a_time_in_the_future_is_taken_as_now(events, clock):
    events.on_driver_event(UP)
    events.on_driver_event(xid_seen(at=1e12))
    (xid_count,) = [xid_count for xid_count in events.view(CARDS) if xid_count.last_unix_time is not None]
    assert xid_count.last_unix_time == 1.7e9 + clock.now


SIMULATED = Driver(module="exporter.simulate.nvml")


@pytest.mark.parametrize(
    "text, driver, watched",
    [
        ("", SIMULATED, "no watch"),
        ("", None, None),
        ("kernel_log: {path: /nowhere/kern.log}", SIMULATED, "/nowhere/kern.log"),
        ("kernel_log: {path: /nowhere/kern.log, enabled: false}", SIMULATED, "no watch"),
        ("kernel_log: {path: /nowhere/kern.log}\ngpu: {enabled: false}", None, "no watch"),
        ("kernel_log: {path: /nowhere/kern.log}", None, "/nowhere/kern.log"),
    ],
)
def test_a_simulated_node_never_reads_the_log_of_the_machine_it_runs_on(text, driver, watched):
    app = App(parse(text, "test", {}), driver=driver)
    app._watch_kernel()
    watch = app.events._watch
    try:
        assert (watch.path if watch is not None else "no watch") == watched
    finally:
        app.events.stop()
        if watch is not None:
            watch.poll_loop.join(5.0)


def test_a_reload_follows_another_log():
    app = App(parse("kernel_log: {path: /nowhere/a}", "test", {}), driver=SIMULATED)
    app._watch_kernel()
    first = app.events._watch
    app.settings = parse("kernel_log: {path: /nowhere/b}", "test", {})
    app._watch_kernel()
    second = app.events._watch
    first.poll_loop.join(5.0)
    app.events.stop()
    second.poll_loop.join(5.0)
    assert (first.path, second.path) == ("/nowhere/a", "/nowhere/b")


def test_until_the_driver_has_said_anything_its_events_are_starting(events):
    assert [(status.source, status.reason) for status in events.statuses] == [("nvml_events", "starting")]
    events.on_driver_event(DOWN)
    assert events.statuses[0].reason == DRIVER_DOWN
    events.on_driver_event(UP)
    assert (events.statuses[0].up, events.statuses[0].reason) == (True, "")


def test_without_gpus_to_watch_there_is_no_source_of_events():
    assert GpuEvents(driver=False).statuses == []
