"""The thread that waits for events: whatever the driver answers, it costs events only, and it lets go when asked."""

from __future__ import annotations

import ctypes
import threading
import time
from types import SimpleNamespace

import pytest

from exporter.driver import protocol
from exporter.driver.worker import event_thread
from exporter.driver.worker.driver_thread import AvailableGpu
from exporter.driver.worker.event_thread import EventThread
from tests.support.waiting import until


class Refusal(Exception):  # noqa: N818
    def __init__(self, value):
        self.value = value
        super().__init__(str(value))


class Driver:
    """Event sets as pynvml has them.  ``fail``: function → code, ``fail_card``: handle → code of registering it."""

    def __init__(self):
        self.queue, self.fail, self.fail_card, self.supported = [], {}, {}, {}
        self.sets, self.registered, self.waits, self.block = 0, [], 0, threading.Event()
        self.blocked = False
        self.lacks = set()

    def __getattr__(self, name):
        if not name.startswith("nvml") or name in self.lacks:
            raise AttributeError(name)
        return lambda *args: self.call(name, *args)

    def call(self, name, *args):
        if name in self.fail:
            raise Refusal(self.fail[name])
        return getattr(self, "_" + name)(*args)

    def _nvmlEventSetCreate(self):
        self.sets += 1
        return object()

    def _nvmlEventSetFree(self, _):
        self.sets -= 1
        self.registered = []

    def _nvmlDeviceGetSupportedEventTypes(self, handle):
        return self.supported.get(handle, 0xD88F)

    def _nvmlDeviceRegisterEvents(self, handle, types, _):
        if handle in self.fail_card:
            raise Refusal(self.fail_card[handle])
        assert types == 0x8
        self.registered.append(handle)

    def _nvmlEventSetWait_v2(self, _, milliseconds):
        self.waits += 1
        if self.blocked:
            self.block.wait(20.0)
        end = time.monotonic() + milliseconds / 1000
        while True:
            if self.queue:
                if isinstance(self.queue[0], ctypes.Structure):
                    return self.queue.pop(0)
                handle, kind, data, *parts = self.queue.pop(0)
                named = dict(zip(("gpuInstanceId", "computeInstanceId"), parts, strict=False))
                return SimpleNamespace(device=handle, eventType=kind, eventData=data, **named)
            if time.monotonic() >= end:
                raise Refusal(10)
            time.sleep(0.005)


class Card:
    def __init__(self, uuid, handle):
        self.answer, self.checks = AvailableGpu(uuid, handle), 0

    def available(self):
        self.checks += 1
        return self.answer


class Harness:
    def __init__(self):
        self.driver, self.sent = Driver(), []
        self.cards = [Card("GPU-a", "ha"), Card("GPU-b", "hb")]
        self.thread, self.again = None, False

    def start(self):
        sender = SimpleNamespace(send=self.sent.append)
        self.thread = EventThread(self.driver, self.cards, sender, again=self.again)
        self.thread.start()
        return self

    def xid_counts(self):
        counts = {}
        for message in list(self.sent):
            if isinstance(message, protocol.XidSeen):
                key = (message.uuid, message.xid)
                counts[key] = counts.get(key, 0) + message.times
        return counts

    def event_states(self):
        return [
            (message.reason, message.cards)
            for message in self.sent
            if isinstance(message, protocol.EventSubscription)
        ]


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.setattr(event_thread, "SLICE", 50)
    monkeypatch.setattr(event_thread, "RETRY_FIRST", 0.05)
    monkeypatch.setattr(event_thread, "RETRY_LAST", 0.1)
    harness = Harness()
    yield harness
    harness.driver.block.set()
    harness.thread.end()
    assert harness.thread.join(10.0)


def test_every_gpu_that_answers_is_registered_and_its_events_are_reported(harness):
    harness.start()
    until(lambda: harness.event_states() == [("", 2)])
    harness.driver.queue += [("ha", 0x8, 79), ("hb", 0x8, 13), ("ha", 0x8, 79), ("ha", 0x10, 5), ("who", 0x8, 62)]
    until(lambda: harness.xid_counts() == {("GPU-a", 79): 2, ("GPU-b", 13): 1, ("", 62): 1})
    assert harness.event_states() == [("", 2)], "quiet waits are no news"


def test_events_of_gpus_that_are_not_opened_any_more_are_not_counted_anew_after_an_initialisation(harness):
    harness.again = True
    harness.driver.queue += [("gone", 0x8, 79), (None, 0x8, 79), ("ha", 0x8, 13)]
    harness.start()
    until(lambda: ("GPU-a", 13) in harness.xid_counts())
    assert harness.xid_counts() == {("GPU-a", 13): 1}


def test_a_burst_is_a_few_messages_and_none_is_lost(harness):
    harness.driver.queue += [("ha", 0x8, 13)] * 1500
    harness.start()
    until(lambda: harness.xid_counts() == {("GPU-a", 13): 1500})
    assert sum(isinstance(message, protocol.XidSeen) for message in harness.sent) <= 4


class Binding(ctypes.Structure):
    """An event as the binding gives it."""

    _fields_ = [
        ("device", ctypes.POINTER(ctypes.c_char)),
        ("eventType", ctypes.c_ulonglong),
        ("eventData", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    ]


class OldBinding(ctypes.Structure):
    _fields_ = Binding._fields_[:3]


def test_events_of_the_binding_are_reported_as_those_of_a_fake_are(harness):
    memory = ctypes.create_string_buffer(16)
    handle = ctypes.cast(ctypes.addressof(memory), ctypes.POINTER(ctypes.c_char))
    harness.cards[0].answer = AvailableGpu("GPU-a", handle)
    none = 0xFFFFFFFF
    harness.driver.queue += [
        Binding(handle, 0x8, 94, 7, none),
        OldBinding(handle, 0x8, 13),
        Binding(handle, 0x10, 5, none, none),
        Binding(None, 0x8, 62, none, none),
    ]
    harness.start()
    until(lambda: sum(harness.xid_counts().values()) == 3)
    events = {
        (m.uuid, m.xid, m.gpu_instance, m.compute_instance) for m in harness.sent if isinstance(m, protocol.XidSeen)
    }
    assert events == {("GPU-a", 94, 7, None), ("GPU-a", 13, None, None), ("", 62, None, None)}


def test_a_storm_of_many_codes_is_logged_less_often_the_more_there_are_and_in_full(harness, monkeypatch):
    monkeypatch.setattr(event_thread, "SEND_EVERY", 1e6)
    harness.start()
    until(lambda: harness.event_states() == [("", 2)])
    harness.driver.queue.append(("ha", 0x8, 79))
    until(lambda: harness.xid_counts() == {("GPU-a", 79): 1})  # the first is told at once
    harness.driver.queue += [("ha", 0x8, code) for code in range(100)] * 20
    until(lambda: not harness.driver.queue)
    waits = harness.driver.waits
    until(lambda: harness.driver.waits > waits + 1)
    assert harness.xid_counts() == {("GPU-a", 79): 1}
    harness.thread.pause()  # whatever ends the wait, what was heard is told
    until(lambda: not harness.thread.busy)
    assert (
        sum(harness.xid_counts().values()) == 2001
        and sum(isinstance(m, protocol.XidSeen) for m in harness.sent) == 101
    )
    harness.thread.resume()


def test_the_instance_that_an_event_names_is_reported_and_outside_mig_there_is_none(harness):
    harness.start()
    outside, absurd = 0xFFFFFFFF, "7"
    harness.driver.queue += [("ha", 0x8, 94, 7, 0), ("ha", 0x8, 94, 7, outside), ("ha", 0x8, 94, outside, outside)]
    harness.driver.queue += [("ha", 0x8, 94), ("ha", 0x8, 94, absurd, -1)]
    until(lambda: sum(harness.xid_counts().values()) == 5)
    counts = {}
    for message in harness.sent:
        if isinstance(message, protocol.XidSeen):
            key = message.gpu_instance, message.compute_instance
            counts[key] = counts.get(key, 0) + message.times
            assert protocol.decode(protocol.encode(message)[4:]) == message
    assert counts == {(7, 0): 1, (7, None): 1, (None, None): 3}


def test_a_code_beyond_all_bounds_is_cut_to_what_the_protocol_takes(harness):
    harness.driver.queue.append(("ha", 0x8, 2**60))
    harness.start()
    until(lambda: harness.xid_counts() == {("GPU-a", protocol.MAX_XID): 1})
    for message in harness.sent:
        assert protocol.decode(protocol.encode(message)[4:]) == message


def test_a_gpu_that_comes_later_is_registered_and_a_lost_one_is_still_named(harness):
    late = harness.cards[1]
    late.answer = None
    harness.start()
    until(lambda: harness.event_states() == [("", 1)])
    late.answer = AvailableGpu("GPU-b", "hb")
    until(lambda: harness.event_states()[-1] == ("", 2))
    harness.cards[0].answer = None
    harness.driver.queue.append(("ha", 0x8, 79))
    until(lambda: harness.xid_counts() == {("GPU-a", 79): 1})
    assert harness.driver.sets == 1


def test_a_gpu_that_was_opened_anew_is_registered_anew_and_nothing_that_waits_is_lost(harness):
    class Handle:  # equal, and not the same
        def __eq__(self, other):
            return isinstance(other, Handle)

        def __hash__(self):
            return 1

    first, second = Handle(), Handle()
    harness.cards[0].answer = AvailableGpu("GPU-a", first)
    harness.start()
    until(lambda: harness.event_states() == [("", 2)])
    harness.cards[0].answer = AvailableGpu("GPU-a", second)
    until(lambda: any(handle is second for handle in harness.driver.registered))
    assert len(harness.driver.registered) == 2 and harness.driver.sets == 1


@pytest.mark.parametrize("way", ["no function", "not supported", "function not found", "no type"])
def test_a_driver_without_events_says_so_once(harness, way):
    if way == "no function":
        harness.driver.lacks.add("nvmlEventSetCreate")
    elif way == "no type":
        harness.driver.supported = {"ha": 0x1, "hb": 0x1}
    else:
        harness.driver.fail["nvmlDeviceRegisterEvents"] = 3 if way == "not supported" else 13
    harness.start()
    until(lambda: harness.event_states() == [("unsupported", 0)])
    if way == "no type":
        harness.thread._wakeup.set()  # of no GPU a second question would be put for a second
    checks = harness.cards[0].checks
    until(lambda: harness.cards[0].checks > checks)
    assert harness.event_states() == [("unsupported", 0)] and harness.driver.waits == 0


def test_a_gpu_without_events_affects_no_other(harness):
    harness.driver.fail_card["ha"] = 3
    harness.start()
    until(lambda: harness.event_states() == [("", 1)])
    harness.driver.queue.append(("hb", 0x8, 79))
    until(lambda: harness.xid_counts() == {("GPU-b", 79): 1})


def test_a_gpu_that_cannot_be_registered_now_is_tried_again(harness):
    harness.driver.fail_card["ha"] = 999
    harness.start()
    until(lambda: harness.event_states() == [("", 1)])
    harness.driver.fail_card.clear()
    until(lambda: harness.event_states()[-1] == ("", 2))


@pytest.mark.parametrize(
    "code, reason", [(999, "unknown"), (15, "lost"), (4, "no_permission"), (17, "operating_system")]
)
def test_a_wait_that_fails_for_ever_is_logged_and_retried_ever_less_often(harness, code, reason):
    harness.driver.fail["nvmlEventSetWait_v2"] = code
    harness.start()
    until(lambda: harness.event_states().count((reason, 0)) >= 3)
    assert set(harness.event_states()) == {(reason, 0)} and harness.driver.sets <= 1
    harness.driver.fail.clear()
    harness.driver.queue.append(("ha", 0x8, 79))
    until(lambda: harness.event_states()[-1] == ("", 2) and harness.xid_counts() == {("GPU-a", 79): 1})


def test_no_permission_for_any_gpu_is_reported(harness):
    harness.driver.fail["nvmlDeviceRegisterEvents"] = 4
    harness.start()
    until(lambda: ("no_permission", 0) in harness.event_states())
    assert not harness.thread.join(0.0)


def test_a_wait_that_never_returns_is_logged_once_and_up_again_when_it_does(harness, monkeypatch):
    monkeypatch.setattr(event_thread, "HUNG", 0.1)
    harness.driver.blocked = True
    harness.start()
    until(lambda: harness.thread.call_seconds(time.monotonic()) > 0.1)
    for _ in range(3):
        harness.thread.check_hang(time.monotonic())
    assert harness.event_states() == [("hung", 0)]
    harness.driver.blocked = False
    harness.driver.block.set()
    until(lambda: harness.event_states()[-1] == ("", 2))
    assert harness.thread.call_seconds(time.monotonic()) < 5.0


def test_while_paused_it_holds_nothing_of_the_driver_and_then_goes_on(harness):
    harness.start()
    until(lambda: harness.event_states() == [("", 2)])
    harness.thread.pause()
    until(lambda: not harness.thread.busy)
    assert harness.driver.sets == 0
    waits = harness.driver.waits
    harness.thread._wakeup.set()  # for nothing
    until(lambda: not harness.thread._wakeup.is_set())
    assert harness.driver.waits == waits
    harness.thread.resume()
    harness.driver.queue.append(("hb", 0x8, 79))
    until(lambda: harness.xid_counts() == {("GPU-b", 79): 1})
    assert harness.thread.busy


def test_a_thread_that_is_resumed_while_it_frees_its_event_set_does_not_count_as_idle(harness):
    harness.start()
    until(lambda: harness.event_states() == [("", 2)])
    free = harness.driver._nvmlEventSetFree

    def free_and_resume(event_set):
        free(event_set)
        harness.thread.resume()  # whoever paused it has given up waiting

    harness.driver._nvmlEventSetFree = free_and_resume
    harness.thread.pause()
    until(lambda: harness.driver.waits > 2 and harness.driver.sets == 1)
    waits = harness.driver.waits
    until(lambda: harness.driver.waits > waits)
    assert harness.thread.busy, "the driver may be called, and must not be shut down"


def test_a_wait_that_hangs_keeps_it_working_so_that_nobody_shuts_the_driver_down(harness):
    harness.driver.blocked = True
    harness.start()
    until(lambda: harness.driver.waits)
    harness.thread.pause()
    until(lambda: harness.thread.call_seconds(time.monotonic()) > 0.1)
    assert harness.thread.busy
    harness.driver.block.set()
    until(lambda: not harness.thread.busy)


def test_copies_of_a_pointer_are_one_handle():
    class Opaque(ctypes.Structure):
        pass

    kind = ctypes.POINTER(Opaque)
    memory = ctypes.create_string_buffer(16)
    first, second = (ctypes.cast(ctypes.addressof(memory), kind) for _ in range(2))
    assert event_thread._key(first) == event_thread._key(second) == ctypes.addressof(memory)
    assert event_thread._key(3) == 3
