"""The worker as a real process behind its pipe: it answers, survives its driver, and never outlives its parent."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from exporter.driver import protocol
from exporter.driver.daemon import process
from exporter.driver.daemon.process import WorkerProcess
from exporter.driver.nvml.shared import SharedState
from exporter.driver.protocol import WorkerOptions
from exporter.driver.worker import gpu_thread, worker
from exporter.driver.worker.reinit_scheduler import RETRY_FIRST, ReinitScheduler
from exporter.model import Missing, Signal
from exporter.threads import Thread
from tests.support.fake_nvml import FakeDriver
from tests.support.waiting import CEILING, until, wait_until


def gone(pid):
    """A zombie nobody has reaped is gone too."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class WorkerClient:
    """A worker with a plan, and every message that it sent."""

    def __init__(self, path, plan):
        self.path = path
        self.plan(plan)
        self.process = WorkerProcess(WorkerOptions(module="tests.support.fake_nvml", options=str(path)))
        self.messages = []

    def plan(self, plan):
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(plan))
        os.replace(new, self.path)

    def listen(self, seconds=0.05):
        select.select([self.process], [], [], seconds)
        self.messages += self.process.receive()

    def wait(self, condition):
        """Return the newest message for which the condition holds; fail with what came where there is none."""
        end = time.monotonic() + CEILING
        while not (matching := [message for message in self.messages if condition(message)]):
            assert time.monotonic() < end and not self.process.closed, f"not among {self.messages[-8:]}"
            self.listen()
        return matching[-1]

    def wait_asking(self, condition, cycle):
        """Return the newest message for which the condition holds; ask for a Heartbeat until one comes."""
        end = time.monotonic() + CEILING
        while not (matching := [message for message in self.messages if condition(message)]):
            assert time.monotonic() < end and not self.process.closed, f"not among {self.messages[-8:]}"
            self.process.send(protocol.Read(cycle=cycle, ask=False))
            self.listen()
        return matching[-1]

    def of(self, kind):
        return [message for message in self.messages if isinstance(message, kind)]

    def read(self, cycle, *uuids):
        self.process.send(protocol.Read(cycle=cycle))
        answers = {}
        for uuid in uuids:
            answers[uuid] = self.wait(
                lambda m, u=uuid: (
                    isinstance(m, protocol.CardRead | protocol.CardFailed) and m.uuid == u and m.cycle == cycle
                )
            )
        return answers

    def code(self):
        wait_until(lambda: self.process.exit_code() is not None)
        return self.process.exit_code()


@pytest.fixture
def start_client(tmp_path):
    opened = []

    def start(plan=None):
        opened.append(WorkerClient(tmp_path / f"plan{len(opened)}.json", plan or {}))
        return opened[-1]

    yield start
    for client in opened:
        client.process.kill()
        until(lambda: client.process.exit_code() is not None)
        client.process.close()
        client.process._child.wait()


def test_it_says_hello_and_reads_each_gpu_once_unasked(start_client):
    client = start_client()
    assert client.wait(lambda m: isinstance(m, protocol.CardRead) and m.uuid == "GPU-a")
    assert client.wait(lambda m: isinstance(m, protocol.CardRead) and m.uuid == "GPU-b")
    assert [type(message) for message in client.messages[:2]] == [protocol.Initialising, protocol.Initialised]
    assert client.of(protocol.Initialised)[0].cards == 2
    assert {message.facts.uuid for message in client.of(protocol.CardFound)} == {"GPU-a", "GPU-b"}
    assert all(message.cycle == 0 for message in client.of(protocol.CardRead))
    answers = client.read(5, "GPU-a", "GPU-b")
    assert all(isinstance(answer, protocol.CardRead) for answer in answers.values())
    assert abs(answers["GPU-a"].reading.at - time.monotonic()) < CEILING


def test_a_gpu_that_blocks_for_ever_is_not_read_again_and_the_others_go_on(start_client):
    client = start_client()
    client.wait(lambda m: isinstance(m, protocol.CardRead) and m.uuid == "GPU-a")
    client.wait(lambda m: isinstance(m, protocol.CardRead) and m.uuid == "GPU-b")
    client.plan({"at": {"GPU-b": {"nvmlDeviceGetClockInfo": {"block": True}}}})
    for cycle in (1, 2, 3):
        assert isinstance(client.read(cycle, "GPU-a")["GPU-a"], protocol.CardRead)
    # The blocked thread may not have entered the driver by the third cycle where other processes take the cores.
    client.wait_asking(lambda m: isinstance(m, protocol.Heartbeat) and m.cycle == 3 and m.busy.get(1, 0) > 0, cycle=3)
    assert not [m for m in client.of(protocol.CardRead) if m.uuid == "GPU-b" and m.cycle > 0]
    client.plan({})
    # The one read that was started comes back; those that were refused were not queued.
    assert client.wait(lambda m: isinstance(m, protocol.CardRead) and m.uuid == "GPU-b" and m.cycle == 1)
    assert isinstance(client.read(4, "GPU-b")["GPU-b"], protocol.CardRead)
    assert [m.cycle for m in client.of(protocol.CardRead) if m.uuid == "GPU-b"] == [0, 1, 4]


def test_a_lost_gpu_does_not_stop_the_others_and_comes_back(start_client):
    client = start_client({"at": {"GPU-b": {"nvmlDeviceGetTemperatureV": {"error": 15}}}})
    failed = client.wait(lambda m: isinstance(m, protocol.CardFailed))
    assert (failed.uuid, failed.reason, failed.index) == ("GPU-b", "lost", 1)
    client.wait(
        lambda m: isinstance(m, protocol.CardRead) and m.uuid == "GPU-a"
    )  # a card that is being read is not asked
    answers = client.read(1, "GPU-a", "GPU-b")
    assert isinstance(answers["GPU-a"], protocol.CardRead)
    assert isinstance(answers["GPU-b"], protocol.CardFailed)
    client.plan({})
    assert isinstance(client.read(2, "GPU-b")["GPU-b"], protocol.CardRead)


@pytest.mark.parametrize("code,reason", [(12, "library"), (9, "driver"), (18, "mismatch"), (4, "no_permission")])
def test_a_driver_that_does_not_start_is_reported_and_the_process_ends(start_client, code, reason):
    client = start_client({"calls": {"nvmlInit": {"error": code}}})
    assert client.wait(lambda m: isinstance(m, protocol.DriverFailed)).reason == reason
    assert client.code() == protocol.EXIT_FAILED


def test_a_version_mismatch_while_running_ends_the_process(start_client):
    client = start_client()
    client.wait(lambda m: isinstance(m, protocol.CardRead))
    client.plan({"calls": {"*": {"error": 18}}})
    client.process.send(protocol.Read(cycle=1))
    assert client.wait(lambda m: isinstance(m, protocol.DriverFailed)).reason == "mismatch"
    assert client.code() == protocol.EXIT_FAILED


def test_an_uninitialised_driver_is_initialised_again_in_place(start_client):
    client = start_client({"calls": {"nvmlDeviceGetTemperatureV": {"error": 1}}})
    assert client.wait(lambda m: isinstance(m, protocol.CardFailed)).reason == "uninitialized"
    client.plan({})
    assert client.wait(lambda m: isinstance(m, protocol.CardRead) and m.uuid == "GPU-a")
    assert len(client.of(protocol.Initialised)) >= 2
    assert isinstance(client.read(2, "GPU-a")["GPU-a"], protocol.CardRead)


def test_after_another_initialisation_there_may_be_other_gpus_at_other_indices(start_client):
    client = start_client()
    client.wait(lambda m: isinstance(m, protocol.CardRead) and m.uuid == "GPU-b")
    cards = ["GPU-b", "GPU-c", "GPU-a"]
    client.plan({"cards": cards, "calls": {"nvmlDeviceGetTemperatureV": {"error": 1}}})
    client.process.send(protocol.Read(cycle=1))
    assert client.wait(lambda m: isinstance(m, protocol.Initialised) and m.cards == 3)
    client.plan({"cards": cards})
    for index, uuid in enumerate(cards):
        assert client.wait(
            lambda m, u=uuid, i=index: isinstance(m, protocol.CardRead) and (m.uuid, m.index) == (u, i)
        )
    answers = client.read(2, *cards)
    assert [answers[uuid].index for uuid in cards] == [0, 1, 2]


def test_a_driver_that_prints_corrupts_nothing(start_client):
    client = start_client({"calls": {"nvmlDeviceGetTemperatureV": {"print": 1_000_000}}})
    for cycle in (1, 2):
        client.wait(lambda m: isinstance(m, protocol.CardRead) and m.uuid == "GPU-a" and m.cycle == cycle - 1)
        assert isinstance(client.read(cycle, "GPU-a")["GPU-a"], protocol.CardRead)
    assert not client.process.closed


def test_it_ends_when_the_pipe_closes_even_while_all_gpus_hang(start_client):
    client = start_client({"calls": {"*": {"block": True}}})
    client.wait(lambda m: isinstance(m, protocol.Initialised))
    client.process.close()
    assert client.code() == 0


def test_it_ends_when_the_pipe_closes_while_initialisation_hangs(start_client):
    client = start_client({"calls": {"nvmlInit": {"block": True}}})
    client.wait(lambda m: isinstance(m, protocol.Initialising))
    client.process.close()
    assert client.code() == 0


def test_terminal_signals_are_ignored_and_sigterm_is_not(start_client):
    client = start_client()
    client.wait(lambda m: isinstance(m, protocol.CardRead) and m.uuid == "GPU-a")
    for number in (signal.SIGINT, signal.SIGHUP):
        client.process.kill(number)
    assert isinstance(client.read(1, "GPU-a")["GPU-a"], protocol.CardRead)
    client.process.kill(signal.SIGTERM)
    assert client.code() == -signal.SIGTERM


def test_an_abort_in_the_library_leaves_no_core_file(start_client, tmp_path):
    client = start_client({"calls": {"nvmlDeviceGetTemperatureV": {"abort": True}}})
    assert client.code() == -signal.SIGABRT
    assert not os.WCOREDUMP(client.process._child.returncode & 0x7F)
    assert list(tmp_path.glob("core*")) == []


def test_core_files_are_switched_off(start_client):
    client = start_client()
    client.wait(lambda m: isinstance(m, protocol.CardRead))
    with open(f"/proc/{client.process.pid}/limits") as file:
        limit = next(line for line in file if line.startswith("Max core file size"))
    assert limit.split()[4:6] == ["0", "0"]


def test_it_holds_no_descriptor_of_its_parent_but_the_pipes(start_client):
    with open(os.devnull) as held:
        os.set_inheritable(held.fileno(), True)
        client = start_client()
        client.wait(lambda m: isinstance(m, protocol.CardRead))
        base = f"/proc/{client.process.pid}/fd"
        targets = sorted(os.readlink(f"{base}/{number}") for number in os.listdir(base))
    assert [target.split(":")[0] for target in targets if target != os.devnull] == ["pipe", "pipe", "pipe"]
    assert targets.count(os.devnull) <= 4  # 0, 1, 2 and where they came from


def test_it_recycles_itself_at_its_memory_cap(start_client):
    client = start_client({"calls": {"nvmlDeviceGetTemperatureV": {"leak": 80 * 2**20}}})
    client.wait(lambda m: isinstance(m, protocol.CardRead) and m.uuid == "GPU-a")
    client.wait(lambda m: isinstance(m, protocol.CardRead) and m.uuid == "GPU-b")
    client.process.send(protocol.Read(cycle=1))
    assert client.code() == protocol.EXIT_RECYCLED


def test_nonsense_from_the_parent_ends_it(start_client):
    client = start_client()
    client.wait(lambda m: isinstance(m, protocol.CardRead))
    os.write(client.process._to_child.fileno(), b"\xff\xff\xff\xff nonsense")
    assert client.code() == protocol.EXIT_FAILED


PARENT = """
import sys, time
sys.path[:] = {path!r}
from exporter.driver.daemon.process import WorkerProcess
from exporter.driver.protocol import WorkerOptions
child = WorkerProcess(WorkerOptions(module="tests.support.fake_nvml", options={plan!r}))
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("plan", [{}, {"calls": {"*": {"block": True}}}, {"calls": {"nvmlInit": {"block": True}}}])
def test_it_does_not_outlive_a_parent_that_is_killed(tmp_path, plan):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    code = PARENT.format(path=sys.path, plan=str(path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        time.sleep(0.3)
        parent.kill()
        # The promise is one second; the rest is for a machine that does other things.
        until(lambda: gone(pid), 5.0)


def test_a_folder_called_exporter_in_the_current_directory_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "exporter").mkdir()
    (tmp_path / "exporter" / "__init__.py").write_text("raise SystemExit('wrong package')")
    (tmp_path / "plan.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    child = WorkerProcess(WorkerOptions(module="tests.support.fake_nvml", options=str(tmp_path / "plan.json")))
    try:
        messages = []

        def initialised():
            messages.extend(child.receive())
            return any(isinstance(message, protocol.Initialised) for message in messages)

        until(initialised)
    finally:
        child.kill()
        child._child.wait()
        child.close()


def test_the_import_path_for_the_child_has_no_relative_entries(monkeypatch):
    monkeypatch.setattr(sys, "path", ["", "lib", "/absolute"])
    path = process.import_path()
    assert path[1:] == ["/absolute"]
    assert os.path.isdir(os.path.join(path[0], "exporter", "sources"))


def test_facts_are_read_again_after_a_while_and_a_change_starts_the_gpu_anew(monkeypatch):
    sent = []
    driver = FakeDriver({})
    outlet = SimpleNamespace(send=sent.append)
    thread = gpu_thread.GpuThread(
        driver, 0, "590.48", sender=outlet, on_driver_unavailable=sent.append, shared=SharedState()
    )

    thread.start()

    def read(cycle):
        until(lambda: not thread.busy)
        thread.request(cycle)
        until(lambda: sent and isinstance(sent[-1], protocol.CardRead) and sent[-1].cycle == cycle)
        return sent[-1].reading

    read(1)
    driver.plan = {"calls": {"nvmlDeviceGetMigMode": {"return": [1, 1]}}}
    assert Signal.UTILIZATION in read(2).signals  # ten minutes have not passed
    monkeypatch.setattr(gpu_thread, "FACTS_EVERY", -1.0)
    assert read(3).missing[Signal.UTILIZATION] is Missing.MIG
    assert [message.facts.mig for message in sent if isinstance(message, protocol.CardFound)] == [False, True]
    read(4)
    assert len([message for message in sent if isinstance(message, protocol.CardFound)]) == 2
    thread.end()
    assert thread.join(CEILING)


def test_a_changed_number_of_gpus_leads_to_an_initialisation(monkeypatch):
    driver, sent = FakeDriver({"cards": ["GPU-a"]}), []
    monkeypatch.setattr(worker, "load_driver", lambda *_: driver)
    monkeypatch.setattr(worker, "COUNT_EVERY", 0.1)
    monkeypatch.setattr(worker, "_TICK", 0.01)
    driver_worker = worker.Worker(WorkerOptions(module="in this process"), SimpleNamespace(send=sent.append))
    Thread(driver_worker._watch, name="watch").start()

    def counted():
        return [message.cards for message in list(sent) if isinstance(message, protocol.Initialised)]

    until(lambda: counted() == [1])
    driver.plan = {"cards": ["GPU-a", "GPU-b"]}
    until(lambda: counted() == [1, 2])
    until(
        lambda: (
            {message.uuid for message in list(sent) if isinstance(message, protocol.CardRead)} == {"GPU-a", "GPU-b"}
        )
    )
    driver_worker._release()


def test_a_gpu_that_is_gone_makes_initialisations_rarer_and_rarer():
    scheduler = ReinitScheduler(0.0)
    times, now = [], 0.0
    while now < 1300:
        now += 0.5
        if scheduler.due(now, [False, True]):
            times.append(now)
            scheduler.on_done(now)
    gaps = [after - before for before, after in zip(times, times[1:])]
    assert times[0] == pytest.approx(2.5)
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 500
    assert len(times) < 12
    # Healthy again: the next loss is acted on as fast as the first.
    scheduler.due(now, [False, False])
    assert not scheduler.due(now + 100.0, [False, True])
    assert scheduler.due(now + 100.0 + RETRY_FIRST, [False, True])


def test_a_driver_that_is_uninitialised_for_ever_is_not_initialised_all_the_time():
    scheduler, count, now = ReinitScheduler(0.0), 0, 0.0
    while now < 600:
        now += 0.5
        scheduler.request()
        if scheduler.due(now, [None]):
            count += 1
            scheduler.on_done(now)
    assert 8 <= count <= 20


def test_a_gpu_in_a_call_postpones_the_initialisation():
    scheduler = ReinitScheduler(0.0)
    scheduler.request()
    assert scheduler.due(1.0, [])
    scheduler.postpone(1.0)
    assert not scheduler.due(30.0, [])
    assert scheduler.due(62.0, [])


def test_resident_memory_is_read_from_the_kernel():
    assert 2**20 < worker.resident_bytes() < 2**34


def test_a_new_initialisation_does_not_make_the_others_wait_for_a_gpu_that_hangs(monkeypatch):
    driver_worker = worker.Worker(WorkerOptions(module="tests.support.fake_nvml"), writer=None)
    driver_worker._accepting = True
    hanging = SimpleNamespace(busy=True, call_seconds=lambda now: 10.0)
    driver_worker._gpus = (hanging, SimpleNamespace(call_seconds=lambda now: 0.0))
    waits = []
    monkeypatch.setattr(worker.time, "sleep", waits.append)
    assert not driver_worker._quiesce()
    assert driver_worker._accepting and waits == []
