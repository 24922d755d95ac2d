"""The worker's thread for questions about two cards: when it asks, how it makes way, and what is kept of its answers."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from exporter.driver import protocol
from exporter.driver.daemon.registry import CardRegistry
from exporter.driver.worker import main, topology_thread
from exporter.driver.worker.topology_thread import TopologyThread
from exporter.model import CardFacts, CardReading, CardTopology, LinkEnd, Peer
from tests.support.waiting import until


class Place:
    def __init__(self, uuid, gone=False):
        self.uuid, self.gone = uuid, gone

    def standing(self):
        return (self.uuid, self.uuid) if self.gone is False else None


class Driver:
    """Counts passes by the ancestor question; ``gate`` holds it up, ``error`` is raised by it."""

    def __init__(self):
        self.asked, self.gate, self.error = [], threading.Event(), None
        self.gate.set()
        self.entered = threading.Event()

    def nvmlDeviceGetTopologyCommonAncestor(self, handle, other):  # noqa: N802
        self.asked.append((handle, other))
        self.entered.set()
        assert self.gate.wait(10)
        if self.error:
            raise self.error
        return 10


class FrameWriter(list):
    def send(self, message):
        self.append(message)


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(topology_thread, "LOOK", 0.01)
    started = []

    def begin(driver, places):
        outlet = FrameWriter()
        thread = TopologyThread(driver, places, outlet)
        started.append((driver, thread))
        return thread, outlet

    yield begin
    for driver, thread in started:
        thread.end()
        driver.gate.set()
    until(lambda: not any(one.name == "topology" for one in threading.enumerate()))


def test_it_waits_for_first_answers_and_asks_only_about_cards_that_stand(start):
    late = Place("b", gone=None)
    driver, places = Driver(), [Place("a"), late, Place("c", gone=True)]
    _, outlet = start(driver, places)
    time.sleep(0.1)
    assert not driver.asked
    late.gone = False
    until(lambda: outlet)
    assert outlet[0] == protocol.TopologyRead(
        cards={
            "a": CardTopology(peers={"b": Peer(pci_path="PIX")}),
            "b": CardTopology(peers={"a": Peer(pci_path="PIX")}),
        }
    )
    time.sleep(0.1)
    assert len(outlet) == 1, "once is enough"


def test_a_card_that_hangs_from_the_start_is_not_waited_for_longer_than_that(start, monkeypatch):
    monkeypatch.setattr(topology_thread, "FIRST_ANSWERS", 0.1)
    _, outlet = start(Driver(), [Place("a"), Place("b"), Place("c", gone=None)])
    until(lambda: outlet)
    assert set(outlet[0].cards) == {"a", "b"}


def test_a_card_that_comes_back_is_asked_about_at_once(start):
    away = Place("c", gone=True)
    _, outlet = start(Driver(), [Place("a"), Place("b"), away])
    until(lambda: outlet)
    away.gone = False
    until(lambda: len(outlet) == 2)
    assert set(outlet[1].cards["a"].peers) == {"b", "c"}


def test_answers_that_were_not_final_are_asked_for_again(start, monkeypatch):
    monkeypatch.setattr(topology_thread, "AGAIN", 0.05)
    driver = Driver()
    driver.error = type("E", (Exception,), {"value": 999})()
    _, outlet = start(driver, [Place("a"), Place("b")])
    until(lambda: len(outlet) >= 2)
    driver.error = None
    until(lambda: outlet[-1].cards["a"].peers["b"].pci_path == "PIX")
    time.sleep(0.1)
    count = len(outlet)
    time.sleep(0.2)
    assert len(outlet) == count


def test_it_makes_way_at_its_next_question_and_begins_anew_when_resumed(start):
    driver = Driver()
    driver.gate.clear()
    thread, outlet = start(driver, [Place("a"), Place("b"), Place("c")])
    assert driver.entered.wait(10)
    assert thread.working
    until(lambda: thread.stuck(time.monotonic()) > 0.02)
    thread.pause()
    driver.gate.set()
    until(lambda: not thread.working)
    assert not outlet and len(driver.asked) == 1 and thread.stuck(time.monotonic()) == 0
    thread.resume()
    until(lambda: outlet)
    assert len(outlet[0].cards) == 3


def test_a_driver_that_is_over_ends_the_pass_and_is_left_to_others_to_say(start):
    driver = Driver()
    driver.error = type("E", (Exception,), {"value": 1})()
    thread, outlet = start(driver, [Place("a"), Place("b")])
    until(lambda: len(driver.asked) > 1)
    driver.error = None
    until(lambda: outlet)
    assert not thread.working


class Stuck:
    def __init__(self, seconds):
        self.seconds, self.working, self.paused = seconds, True, 0

    def pause(self):
        self.paused += 1

    def resume(self):
        self.paused -= 1

    def stuck(self, _now):
        return self.seconds


@pytest.mark.parametrize(("seconds", "given_up"), [(main.STUCK - 5, []), (main.STUCK + 5, ["hung"])])
def test_a_new_initialisation_waits_for_a_question_but_not_for_ever(monkeypatch, seconds, given_up):
    monkeypatch.setattr(main.time, "sleep", lambda _: None)
    failures = []
    outlet = SimpleNamespace(send=lambda _: None, fail=lambda reason, _: failures.append(reason))
    one = main.Worker("none", "", outlet)
    thread = Stuck(seconds)
    one._topology = (thread,)
    one._initialise_again(SimpleNamespace())
    assert failures == given_up and thread.paused == 0


def test_what_is_known_of_a_card_outlives_the_worker_and_passes_without_it():
    book, links = CardRegistry(), {0: LinkEnd(kind="switch")}
    facts = CardFacts(index=0, uuid="GPU-a")
    book.begin(1)
    book.found(facts, 1.0)
    book.joined(protocol.TopologyRead(cards={"GPU-a": CardTopology(links=links), "GPU-x": CardTopology()}))
    book.end()
    book.begin(1)
    book.found(facts, 2.0)
    reading = CardReading(at=2.0, signals={})
    book.read(protocol.CardRead(index=0, uuid="GPU-a", cycle=1, duration=0.1, reading=reading), 1e9)
    book.joined(protocol.TopologyRead(cards={}))
    (state,) = book.view(2.0, 5.0, "")
    assert state.topology == CardTopology(links=links)


class Blocking(Driver):
    """Blocks in questions of the cards named, until ``gate`` is set."""

    def __init__(self, *cards):
        super().__init__()
        self.blocks = cards
        self.gate.clear()

    def nvmlDeviceGetTopologyCommonAncestor(self, handle, other):  # noqa: N802
        self.asked.append((handle, other))
        assert handle not in self.blocks or self.gate.wait(10)
        return 10


@pytest.mark.parametrize("stuck", [["a"], ["a", "b"], ["a", "b", "c", "d"]])
def test_cards_whose_questions_block_cost_their_own_answers_in_a_bounded_number_of_threads(start, monkeypatch, stuck):
    monkeypatch.setattr(topology_thread, "HANGS", 0.05)
    driver = Blocking(*stuck)
    thread, outlet = start(driver, [Place(uuid) for uuid in "abcdef"])
    told = min(len(stuck), topology_thread.MOST_HANGING)
    until(lambda: len(outlet) > told or (len(outlet) == told == topology_thread.MOST_HANGING))
    time.sleep(0.2)
    known = {(one, peer) for message in outlet for one, said in message.cards.items() for peer in said.peers}
    asking = set("abcdef") - set(stuck) if len(stuck) < topology_thread.MOST_HANGING else set()
    assert known == {(one, other) for one in asking for other in "abcdef" if other != one}
    passes = [one for one in threading.enumerate() if one.name == "topology-pass"]
    assert len(passes) == told and thread.working and thread.stuck(time.monotonic()) > 0.05
    driver.gate.set()
    until(lambda: all(len(said.peers) == 5 for said in outlet[-1].cards.values()) and len(outlet[-1].cards) == 6)
    until(lambda: not thread.working)
    count = len(outlet)
    time.sleep(0.1)
    assert len(outlet) == count and not any(one.name == "topology-pass" for one in threading.enumerate())


def test_a_card_that_comes_back_during_the_pass_without_it_is_asked_after_that_pass(start, monkeypatch):
    monkeypatch.setattr(topology_thread, "HANGS", 0.5)
    gates, entered = {uuid: threading.Event() for uuid in "abc"}, set()

    class Gated(Driver):
        def nvmlDeviceGetTopologyCommonAncestor(self, handle, other):  # noqa: N802
            entered.add(handle)
            assert gates[handle].wait(10)
            return 10

    gates["b"].set()
    thread, outlet = start(Gated(), [Place(uuid) for uuid in "abc"])
    until(lambda: "c" in entered)  # the pass without a has come to c
    gates["a"].set()
    until(lambda: len(thread._passes) == 1)
    gates["c"].set()
    until(lambda: outlet[-1].cards.keys() == set("abc"))
    assert outlet[-1].cards["a"].peers.keys() == {"b", "c"}


def test_a_pair_that_was_not_asked_about_this_time_keeps_what_is_known_of_it():
    book, far, near = CardRegistry(), Peer(pci_path="SYS"), Peer(pci_path="PIX")
    book.begin(3)
    for index, uuid in enumerate("abc"):
        book.found(CardFacts(index=index, uuid=uuid), 1.0)
    book.joined(protocol.TopologyRead(cards={"a": CardTopology(peers={"b": far, "c": far, "gone": far})}))
    book.joined(protocol.TopologyRead(cards={"a": CardTopology(peers={"b": near})}))
    assert book.view(1.0, 5.0, "")[0].topology.peers == {"b": near, "c": far}
