"""Threads: their names are the kernel's, and a limit of threads is an error of its own."""

from __future__ import annotations

import pathlib
import threading

import pytest

from exporter.errors import ThreadLimitError
from exporter.threads import Thread


def test_the_kernel_knows_the_name_of_a_thread_as_far_as_it_keeps_names():
    seen, go_on = threading.Event(), threading.Event()

    def work(event):
        event.set()
        go_on.wait(10)

    thread = Thread(work, name="poll-engine-chat-a", args=[seen])
    thread.start()
    assert seen.wait(10)
    try:
        assert pathlib.Path(f"/proc/self/task/{thread.native_id}/comm").read_text() == "poll-engine-cha\n"
        assert thread.daemon
    finally:
        go_on.set()
        thread.join(10)


def test_a_limit_of_threads_is_distinguished_from_a_defect(monkeypatch):
    def out_of_threads(*_, **__):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        for name in ("_start_new_thread", "_start_joinable_thread"):
            patched.setattr(threading, name, out_of_threads, raising=False)
        with pytest.raises(ThreadLimitError):
            Thread(print, name="work").start()
    thread = Thread(lambda: None, name="work")
    thread.start()
    thread.join(10)
    with pytest.raises(RuntimeError, match="was started before") as caught:
        thread.start()
    assert not isinstance(caught.value, ThreadLimitError)
