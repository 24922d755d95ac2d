"""The daemon as a process, over the real binding, over a libnvidia-ml.so.1 built from tests/support/fake_nvml.c.

``build`` compiles the library; ``Node`` runs the daemon against it and looks at its page.  Whatever a test is about,
every page that a Node sees must be answered and valid, show no card's figures under another card's name, and leave
the cards that the test spares alone; and two workers must never be alive at once.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time
from collections import defaultdict
from functools import cache
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import CEILING

SOURCE = pathlib.Path(__file__).parent / "fake_nvml.c"
INTERVAL, DEADLINE = 0.2, 1.0
FRESH = INTERVAL + DEADLINE
VALIDATED = 20  # one page in so many is read by prometheus_client, which costs ten times as much
MAY_BE_NEGATIVE = {"gpu_temperature_margin_celsius", "gpu_group_deviation_ratio"}
INIT, COUNT = "nvmlInitWithFlags", "nvmlDeviceGetCount_v2"


def build(compiler, folder, without=()):
    """Compile the library into ``folder``, lacking the symbols in ``without``."""
    folder.mkdir(exist_ok=True)
    script = folder / "symbols"
    hidden = "".join(f"{name}; " for name in without)
    script.write_text(f"{{ global: nvml*; local: {hidden}*; }};\n")
    command = [
        compiler,
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        f"-Wl,--version-script={script}",
    ]
    command += ["-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE), "-lpthread", "-ldl", "-lm"]
    subprocess.run(command, check=True, timeout=60)
    return folder


def uuid(number):
    return f"GPU-00000000-0000-0000-0000-00000000000{number}"


class Sample(NamedTuple):
    """One line of a page."""

    name: str
    labels: dict[str, str]
    value: float


class Page:
    """One answer of /metrics: figures by name and labels."""

    def __init__(self, text):
        self.text = text
        self.samples = []
        for line in text.splitlines():
            if line[:1] not in {"", "#"}:
                series, _, value = line.rpartition(" ")
                self.samples.append(Sample(*_series(series), float(value)))
        self._by_name = defaultdict(list)
        for sample in self.samples:
            self._by_name[sample.name].append(sample)

    def validate(self):
        """Compare the page with what prometheus_client reads."""
        families = text_string_to_metric_families(self.text)
        read = [(s.name, s.labels, s.value) for family in families for s in family.samples]
        assert read == [tuple(sample) for sample in self.samples]

    def all(self, name, **labels):
        wanted = labels.items()
        return [s for s in self._by_name[name] if wanted <= s.labels.items()]

    def get(self, name, **labels):
        samples = self.all(name, **labels)
        assert len(samples) <= 1, samples
        return samples[0].value if samples else None

    def card(self, name, number, **labels):
        return self.get(name, uuid=uuid(number), **labels)

    def up(self, *numbers):
        return all(self.card("gpu_up", number) == 1 for number in numbers)

    def why(self, source="driver"):
        """Return why a source (a card's number, or its name) is down; None while it is up."""
        source = f"gpu:{uuid(source)}" if isinstance(source, int) else source
        samples = self.all("shardwatch_source_down_info", source=source)
        assert len(samples) <= 1, samples
        return samples[0].labels["reason"] if samples else None

    def hung(self, source="driver"):
        source = f"gpu:{uuid(source)}" if isinstance(source, int) else source
        return self.get("shardwatch_source_hung", source=source)

    def failures(self, reason, source="driver"):
        source = f"gpu:{uuid(source)}" if isinstance(source, int) else source
        return self.get("shardwatch_source_failures_total", source=source, reason=reason) or 0

    def names_of(self, number):
        """Return the names of the card's own figures; identity, health, verdict and what it once reported do not count."""
        kept = {
            "gpu_info",
            "gpu_mode_info",
            "gpu_up",
            "gpu_data_age_seconds",
            "gpu_replica_info",
            "gpu_verdict",
            "gpu_xid_events_total",
        }
        return {s.name for s in self.samples if s.labels.get("uuid") == uuid(number)} - kept

    def missing(self, number):
        samples = self.all("gpu_signal_missing_info", uuid=uuid(number))
        return {s.labels["signal"]: s.labels["reason"] for s in samples}


_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@cache
def _series(text):
    """Return name and labels of a series; of the same few hundred in each page."""
    name, _, labels = text.partition("{")
    return name, {
        label: re.sub(r"\\.", lambda match: _UNESCAPED[match[0]], value) for label, value in _LABEL.findall(labels)
    }


class Node:
    """One daemon, its control file and its log, in a folder of its own.

    ``constants``: MODULE.NAME → what it is in this daemon, for deadlines that no test needs to wait for.
    """

    def __init__(self, folder, library, *, cards=4, plan=(), engine=None, config=None, constants=None):
        self.folder, self.count = folder, cards
        folder.mkdir()
        self.control, self.counts, self.logfile = folder / "control", folder / "counts", folder / "log"
        self.spared = set()  # numbers of cards that must be up on every page from now on
        self.most_workers = 0
        self.worst_age = 0.0
        self.plan(*plan)
        settings = {
            "listen": "127.0.0.1:0",
            "gpu": {"interval": "200ms", "deadline": "1s"},
            "discovery": {"processes": False},
            "series": "full",
            "kernel_log": {"enabled": False},  # what befalls the machine of the tests is not their subject
            **(config or {}),
        }
        if engine:
            settings["engines"] = [{"name": "e", "url": engine, "interval": "1s"}]
        (folder / "c.yaml").write_text(json.dumps(settings))
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SHARDWATCH_")}
        root = str(SOURCE.parents[2])
        self.environment = kept | {
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML_CONTROL": str(self.control),
            "FAKE_NVML_COUNTS": str(self.counts),
            "PYTHONPATH": root,
        }
        self.constants = json.dumps(constants or {})
        self.pages = 0
        self.process = None
        self.start()

    def start(self, listen="127.0.0.1:0"):
        daemon = [sys.executable, "-m", "tests.support.patched_daemon", self.constants]
        command = [*daemon, "run", "--config", "c.yaml", "--listen", listen]
        begun = self.logfile.stat().st_size if self.logfile.exists() else 0
        with open(self.logfile, "ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self.pid = self.process.pid
        try:
            self._await(begun)
        except BaseException:
            self.process.kill()  # whoever wanted it never gets it, and would not end it
            self.process.wait()
            raise

    def _await(self, begun):
        """Wait for the first page; ``begun``: where in the log this start begins."""
        end = time.monotonic() + CEILING
        while not (match := re.search(r"event=listening address=\S+?:(\d+) ", self.log()[begun:])):
            self._go_on_until(end, "it does not listen")
            time.sleep(0.02)
        self.port = int(match[1])
        listening = time.monotonic()
        while (last := self.get())[0] != 200:  # the listener is up before the first page is made
            self._go_on_until(end, f"no page: {last}")
            time.sleep(0.01)
        self.first_page_after = time.monotonic() - listening

    def _go_on_until(self, end, what):
        """Fail where the daemon has ended or had all the time there is, and say what was seen last."""
        code = self.process.poll()
        assert code is None, f"{what}; it ended with code {code}:\n{self.log()}"
        assert time.monotonic() < end, f"{what} after {CEILING:g} s:\n{self.log()}"

    # ---- the driver

    def plan(self, *lines, cards=None, order=None):
        numbers = order if order is not None else range(cards if cards is not None else self.count)
        text = "\n".join([f"cards {' '.join(map(uuid, numbers))}", *lines]) + "\n"
        fresh = self.control.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.control)

    def call_counts(self):
        """Return how often each question was put, over all workers: ``number:function`` or ``number:field:id``."""
        record = struct.Struct("56sQ")
        call_counts = {}
        for key, times in record.iter_unpack(self.counts.read_bytes()):
            if times:
                call_counts[key.rstrip(b"\0").decode()] = times
        return call_counts

    # ---- the daemon

    def log(self):
        return self.logfile.read_text(errors="replace") if self.logfile.exists() else ""

    def get(self, path="/metrics"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def page(self):
        status, text = self.get()
        assert status == 200, (status, text, self.log())
        page = Page(text)
        if self.pages % VALIDATED == 0:
            page.validate()
        self.pages += 1
        self._look(page)
        return page

    def _look(self, page):
        self.most_workers = max(self.most_workers, len(self.workers()))
        for sample in page.samples:
            assert math.isfinite(sample.value), sample
            assert sample.value >= 0 or sample.name in MAY_BE_NEGATIVE, sample
        for sample in page.all("gpu_power_watts"):
            assert sample.value == 300 + int(sample.labels["uuid"][-1]), sample
        for number in self.spared:
            assert page.up(number), (number, page.why(number), page.why(), self.log()[-2000:])
            self.worst_age = max(self.worst_age, page.card("gpu_data_age_seconds", number))

    def until(self, condition, seconds=CEILING):
        """Inspect the page until ``condition`` holds, and give the page."""
        end = time.monotonic() + seconds
        while True:
            page = self.page()
            if condition(page):
                return page
            assert time.monotonic() < end, f"not so within {seconds:g} s; seen last:\n{self._state(page)}"
            time.sleep(0.1)

    def _state(self, page):
        wanted = r"^(?:gpu_up|gpu_data_age|gpu_signal_missing|shardwatch_source)(?!.*unsupported).*$"
        return "\n".join([*re.findall(wanted, page.text, re.MULTILINE), self.log()[-3000:]])

    def during(self, seconds):
        """Inspect the page for some time, and give all pages."""
        end = time.monotonic() + seconds
        pages = []
        while time.monotonic() < end:
            pages.append(self.page())
            time.sleep(0.1)
        return pages

    def throughout(self, condition, seconds):
        """Return the pages of the first stretch of ``seconds`` in which ``condition`` holds on every one of them.

        A machine that is short of CPU time breaks a stretch; what flaps by itself never lasts for one.
        """
        end = time.monotonic() + CEILING
        while True:
            pages, begun = [], time.monotonic()
            while condition(page := self.page()):
                pages.append(page)
                if time.monotonic() - begun >= seconds:
                    return pages
                time.sleep(0.1)
            assert time.monotonic() < end, f"never for {seconds:g} s; seen last:\n{self._state(page)}"

    def children(self):
        pids = []
        for task in os.listdir(f"/proc/{self.pid}/task"):
            try:
                pids += pathlib.Path(f"/proc/{self.pid}/task/{task}/children").read_text().split()
            except OSError:
                continue
        return [int(pid) for pid in pids]

    def workers(self):
        """Return the children that live: running, stopped, or with a thread that the kernel cannot end."""
        alive = []
        for pid in self.children():
            try:
                state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" or len(os.listdir(f"/proc/{pid}/task")) > 1:
                    alive.append(pid)
            except OSError:
                continue
        return alive

    @staticmethod
    def group(leader):
        """Return what lives of a worker and all that it started."""
        pids = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == leader and fields[0] != "Z":
                pids.append(int(pid))
        return pids

    def worker(self):
        """Return the one worker there is."""
        end = time.monotonic() + CEILING
        while len(pids := self.workers()) != 1:
            assert time.monotonic() < end, f"workers {pids}:\n{self.log()}"
            time.sleep(0.05)
        return pids[0]

    def footprint(self):
        """Return resident MiB, threads and descriptors of the daemon.

        The least of several looks: a poll of an engine, or a scrape that has just ended, holds a descriptor for a
        moment, and that is no growth.
        """
        return tuple(map(min, zip(*(self._held() for _ in range(20)), strict=True)))

    def _held(self):
        time.sleep(0.03)
        pages = int(pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        base = f"/proc/{self.pid}"
        return (
            pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            len(os.listdir(f"{base}/task")),
            len(os.listdir(f"{base}/fd")),
        )

    def stop(self):
        """Stop the daemon; return its exit code and the seconds it took."""
        begun = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return self.process.returncode, time.monotonic() - begun
