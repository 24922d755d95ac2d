"""Told to end at the worst moment, the programs that start servers leave none behind."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from compose.native import child, ending
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in ending.ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ending.ENDING)
def test_a_signal_between_the_fork_and_the_note_of_it_leaves_no_child(number, tmp_path, monkeypatch):
    started, real = [], subprocess.Popen

    def popen(*arguments, **more):
        started.append(real(*arguments, **more))
        signal.raise_signal(number)
        return started[0]

    monkeypatch.setattr(child.subprocess, "Popen", popen)
    ending.heed("ending")
    with pytest.raises(KeyboardInterrupt), child.running("x", ["sleep", "60"], tmp_path):
        pytest.fail("the signal was lost")
    assert started[0].poll() is not None


@pytest.mark.parametrize("look", ["ended", "stop"])
def test_a_look_at_a_child_is_never_broken_off(look, tmp_path, monkeypatch):
    whole = []
    with child.running("x", ["sleep", "60"], tmp_path) as sleeper:
        real = sleeper.process.poll

        def poll():
            signal.raise_signal(signal.SIGTERM)  # what follows would not be reached, were it heeded here
            whole.append(real())
            return whole[-1]

        monkeypatch.setattr(sleeper.process, "poll", poll)
        ending.heed("ending")
        with pytest.raises(KeyboardInterrupt):
            getattr(sleeper, look)()
        monkeypatch.undo()
    assert whole and sleeper.process.returncode is not None


def test_a_second_signal_does_not_break_off_the_ending(capfd):
    ending.heed("ending")
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    for number in ending.ENDING:
        signal.raise_signal(number)
    assert capfd.readouterr().out == "ending\n"


def test_a_signal_that_is_put_off_comes_at_the_end_of_the_block():
    ending.heed("ending")
    went_on = False
    with pytest.raises(KeyboardInterrupt), ending.put_off():
        signal.raise_signal(signal.SIGTERM)
        went_on = True
    assert went_on


@pytest.mark.slow
@pytest.mark.parametrize("number", ending.ENDING)
def test_a_served_fleet_ends_with_every_signal(number):
    command = [sys.executable, "-m", "compose.fleet", "serve", "--nodes", "2", "http://127.0.0.1:9/metrics"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as fleet:
        assert any("serving" in line for line in fleet.stdout)
        fleet.send_signal(number)
        until(lambda: fleet.poll() is not None, 20.0)
        assert fleet.returncode == 0, fleet.stdout.read()
