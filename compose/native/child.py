"""A server as a child process: started with its output in a file, watched, and ended for certain."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from compose.native.ending import put_off
from compose.native.errors import StackError

START_SECONDS = 60.0  # a loaded machine starts slowly; a server that fails says so at once
STOP_SECONDS = 10.0
_TAIL = 4096  # bytes of a log that are shown


class Child:
    """One running server; ``url`` is where it answers, known once it listens."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        """``log`` is the file that takes its output."""
        self.name = name
        self.process = process
        self.log = log
        self.url = ""

    @property
    def address(self) -> str:
        """Host and port without the scheme, as a target in Prometheus' configuration."""
        return self.url.partition("://")[2]

    def ended(self) -> str:
        """Return its exit code and the end of its output as a sentence; empty while it runs."""
        with put_off():  # broken off at the wrong place, a poll keeps its lock, and the end waits for that for ever
            code = self.process.poll()
        if code is None:
            return ""
        return f"{self.name} ended with code {code}; its output ended with:\n{self.last_output()}"

    def last_output(self) -> str:
        """Return the end of its output."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL))
            return file.read().decode("utf-8", "replace").strip()

    def wait_for(self, pattern: str) -> str:
        """Wait until its output matches and return the first group.  Raises StackError at its end or a timeout."""
        deadline = time.monotonic() + START_SECONDS
        wanted = re.compile(pattern)
        while time.monotonic() < deadline:
            over = self.ended()  # before the look at the log, so that the last line counts
            match = wanted.search(self.log.read_text("utf-8", "replace"))
            if match:
                return match[1]
            if over:
                raise StackError(over)
            time.sleep(0.05)
        raise StackError(
            f"{self.name} did not start within {START_SECONDS:g} s; its output ended with:\n{self.last_output()}"
        )

    def wait_until_ready(self, path: str) -> None:
        """Wait until a GET of ``path`` answers 200: servers listen before they are ready."""
        deadline = time.monotonic() + START_SECONDS
        while not _answers(self.url + path):
            over = self.ended()
            if over or time.monotonic() > deadline:
                raise StackError(over or f"{self.name} did not get ready within {START_SECONDS:g} s")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it with SIGTERM, and with SIGKILL if that is not enough; may be called again."""
        with put_off():
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                try:
                    self.process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def running(
    name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Child]:
    """Start ``command``, with its output in ``folder/name.log``; end it with the context.

    It is out of reach of the terminal's Ctrl-C, so that the stack is ended in order and by one hand.
    """
    log = folder / f"{name}.log"
    with contextlib.ExitStack() as at_the_end:
        with put_off(), log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
            child = Child(name, process, log)
            at_the_end.callback(child.stop)
        yield child


def _answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        pass
    return False
