"""The process that calls the GPU driver, so that a driver call that never returns stops nothing else.

It is started by ``driver.daemon.process``, speaks ``driver.protocol`` over its standard input and output, and ends
when that pipe closes.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import resource
import signal
import sys
from typing import NamedTuple

import msgspec

from exporter.driver import protocol
from exporter.driver.worker.frame_writer import FrameWriter
from exporter.driver.worker.worker import Worker
from exporter.threads import name_thread


class _Pipes(NamedTuple):
    requests: int
    answers: int


def _take_pipes() -> _Pipes:
    """Move the protocol away from descriptors 0 to 2: vendor libraries print to those whenever they like.

    What was standard error carries the crash trace alone: should the library crash, in which call.
    """
    errors = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)
    os.set_blocking(errors, False)  # or a worker whose output is not read could not end
    faulthandler.enable(file=errors, all_threads=False)  # the stacks of running threads cannot be read safely
    requests = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    answers = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(devnull, descriptor)
    return _Pipes(requests, answers)


def _prepare_process() -> None:
    """Set what the parent's terminal, signal masks and limits must not decide."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The default action works even while a driver call holds the interpreter; a handler would not.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A driver that aborts on each start would fill the disk with core files.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    name_thread("shardwatch-nvml")


def main(argument: str | None = None) -> None:
    """Run the worker until its pipe closes; ``argument``: protocol.WorkerOptions as JSON, else the command line's."""
    options = msgspec.json.decode(sys.argv[1] if argument is None else argument, type=protocol.WorkerOptions)
    pipes = _take_pipes()
    _prepare_process()
    writer = FrameWriter(pipes.answers)
    try:
        Worker(options, writer).serve(pipes.requests)
    except BaseException as error:
        writer.fail("crashed", f"{type(error).__name__}: {error}")
    os._exit(0)
