"""The protocol with the driver worker: everything survives the trip, and garbage is an error of one kind."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.driver import protocol
from exporter.driver.protocol import InstanceReading
from exporter.errors import DriverError
from exporter.model import (
    CardFacts,
    CardProcess,
    CardReading,
    CardTopology,
    DriverFacts,
    LinkEnd,
    MigInstance,
    Missing,
    Peer,
    Signal,
)

READING = CardReading(
    at=12.5,
    signals={Signal.POWER: 412.25, Signal.MEMORY_USED: 2.0**55, Signal.ENERGY: 0.1 + 0.2},
    missing={Signal.UTILIZATION: Missing.MIG},
    clock_events={"gpu_idle": True},
    clock_event_seconds={"sw_power_cap": 1.25},
    policy_seconds={"thermal": 0.5},
    nvlink_up={0: True, 17: False},
    nvlink_errors={"crc": 3.0},
    nvlink_errors_at=9.25,
    pipe_active={"fp16": 0.25},
    traffic={("pcie", "transmit"): 1e9, ("nvlink", "receive"): 0.5},
    processes=(CardProcess(pid=1, memory=None), CardProcess(pid=2, memory=5.0)),
)
INSTANCE = MigInstance(number=2, parent="GPU-3", profile="1g.10gb", gpu_instance=9, compute_instance=0)
TOPOLOGY = CardTopology(
    peers={"GPU-b": Peer(pci_path="PIX", access={"read": "ok", "nvlink": "not_supported"}), "GPU-c": Peer()},
    links={0: LinkEnd(kind="switch"), 63: LinkEnd(kind="gpu", pci_bus_id="00000000:1B:00.0")},
)
READ = protocol.CardRead(index=3, uuid="GPU-3", cycle=7, duration=0.25, reading=READING)
MESSAGES = [
    protocol.Initialising(),
    protocol.Initialised(facts=DriverFacts(driver_version="590.48", nvml_version="13", cuda_version="13.1"), cards=8),
    protocol.CardFound(facts=CardFacts(index=3, uuid="GPU-3", name="é", numa_node=1, mig=True)),
    protocol.CardFound(facts=CardFacts(index=0, uuid="GPU-0")),
    READ,
    protocol.CardRead(index=0, uuid="u", cycle=0, duration=0.0, reading=CardReading(at=0.0, signals={})),
    protocol.InstancesRead(
        uuid="GPU-3",
        instances=(InstanceReading(facts=CardFacts(index=3, uuid="MIG-1", instance=INSTANCE), reading=READING),),
    ),
    protocol.InstancesRead(uuid="GPU-3", instances=()),
    protocol.CardFailed(index=1, uuid="", cycle=7, reason="lost", message="gone"),
    protocol.Heartbeat(
        cycle=9, ask=False, busy={0: 1.5, 3: 0.0}, counting=2.5, joining=0.5, profiling={"GPU-a": 3.0}
    ),
    protocol.TopologyRead(cards={"GPU-a": TOPOLOGY, "GPU-b": CardTopology()}),
    protocol.CounterUnits(driver_version="590.48.01", units={"sw_power_cap": 1e-9, "sync_boost": 1e-6}),
    protocol.CounterUnits(driver_version="590.48.01", units={}),
    protocol.XidSeen(uuid="GPU-3", xid=79, times=3, at=12.5),
    protocol.EventSubscription(cards=8),
    protocol.EventSubscription(cards=0, reason="unsupported"),
    protocol.DriverFailed(reason="mismatch", message="x"),
    protocol.Read(cycle=1),
    protocol.Read(cycle=2, ask=False),
]


def frame(body):
    return msgspec.msgpack.encode(body)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_trip(message):
    (data,) = protocol.FrameBuffer().feed(protocol.encode(message))
    assert protocol.decode(data) == message


def test_the_types_of_a_reading_survive_the_trip():
    reading = protocol.decode(protocol.encode(READ)[4:]).reading
    assert all(isinstance(signal, Signal) and type(value) is float for signal, value in reading.signals.items())
    assert reading.missing[Signal.UTILIZATION] is Missing.MIG
    assert isinstance(reading, CardReading) and isinstance(reading.processes[0], CardProcess)


def test_frames_are_cut_out_of_a_stream_that_arrives_in_any_pieces():
    stream = b"".join(protocol.encode(message) for message in MESSAGES)
    for size in (1, 3, 7, 1000, len(stream)):
        buffer, frames = protocol.FrameBuffer(), []
        for start in range(0, len(stream), size):
            frames += buffer.feed(stream[start : start + size])
        assert [protocol.decode(data) for data in frames] == MESSAGES


def test_a_frame_that_would_be_too_long_is_refused_before_it_is_collected():
    buffer = protocol.FrameBuffer()
    with pytest.raises(DriverError, match="at most") as caught:
        buffer.feed((protocol.MAX_FRAME + 1).to_bytes(4, "big"))
    assert caught.value.reason == "protocol"
    assert protocol.FrameBuffer().feed(protocol.MAX_FRAME.to_bytes(4, "big")) == []


def refused(data):
    with pytest.raises(DriverError) as caught:
        protocol.decode(data)
    return caught.value.reason == "protocol"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"\xc0", b"\x90", b"\x07", frame("Read"), b"\xff\xfe", b"\x91" * 100_000, b"\x81\xa4kind" + b"\x91" * 100_000,
        b"\x81\x91\x80\x01", b'{"kind":"Read","cycle":1}', protocol.encode(protocol.Read(cycle=1))[4:] + b"\0",
        protocol.encode(protocol.Read(cycle=1))[4:-1],
    ],
    ids=lambda data: repr(data[:20]),
)  # fmt: skip
def test_what_is_no_message_at_all_is_a_protocol_error_and_nothing_else(data):
    assert refused(data)


@pytest.mark.parametrize(
    "body",
    [
        {}, {"kind": "Nothing"}, {"kind": ["Read"]}, {"kind": "Read"}, {"cycle": 1}, {"kind": "Read", "cycle": 1, "more": 1},
        {"kind": "Read", "cycle": -1}, {"kind": "Read", "cycle": 1, "ask": 1}, {"kind": "Read", "cycle": True},
        {"kind": "Read", "cycle": 1e3}, {"kind": "Read", "cycle": 2**53}, {"kind": "Read", "cycle": "1"},
        {"kind": "Heartbeat", "cycle": 1, "busy": {"x": 1}}, {"kind": "Heartbeat", "cycle": 1, "busy": [1]},
        {"kind": "Heartbeat", "cycle": 1, "busy": {-1: 1.0}}, {"kind": "Heartbeat", "cycle": 1, "busy": {0: math.nan}},
        {"kind": "Heartbeat", "cycle": 1, "busy": {0: math.inf}}, {"kind": "Heartbeat", "cycle": 1, "profiling": {0: 1.0}},
        {"kind": "DriverFailed", "reason": "two words"}, {"kind": "DriverFailed", "reason": ""}, {"kind": "DriverFailed", "reason": "x\n"},
        {"kind": "DriverFailed", "reason": "x" * 40}, {"kind": "DriverFailed", "reason": "x", "message": 7},
        {"kind": "EventSubscription", "cards": 0, "reason": "two words"},
        {"kind": "CounterUnits", "driver_version": "1", "units": {"sw_power_cap": 1}}, {"kind": "CounterUnits", "driver_version": "1", "units": {"x": []}},
        {"kind": "CounterUnits", "driver_version": "1", "units": {"two words": 1e-9}}, {"kind": "CounterUnits", "driver_version": 1, "units": {}},
        {"kind": "CounterUnits", "driver_version": "1", "units": {f"r{number}": 1e-9 for number in range(33)}},
        {"kind": "XidSeen", "uuid": "", "xid": 65_536, "times": 1, "at": 1.0}, {"kind": "XidSeen", "uuid": "", "xid": 1, "times": 1, "at": 1.0, "gpu_instance": -1},
        {"kind": "CardFound", "facts": {"index": 0, "uuid": ""}}, {"kind": "CardFound", "facts": {"index": 0, "uuid": "x" * 513}},
        {"kind": "CardFound", "facts": {"uuid": "x"}}, {"kind": "CardRead", "index": 0},
        {"kind": "InstancesRead", "uuid": "x", "instances": [[{"index": 0, "uuid": "MIG-x"}, {"at": 0.0, "signals": {}}]]},
        {"kind": "TopologyRead", "cards": {"x": {"peers": {f"GPU-{number}": {} for number in range(65)}}}},
        {"kind": "TopologyRead", "cards": {"x": {"links": {64: {"kind": "gpu"}}}}}, {"kind": "TopologyRead", "cards": {"x": {"links": {0: {"kind": "cable"}}}}},
        {"kind": "TopologyRead", "cards": {"x": {"peers": {"y": {"pci_path": "PIX\n"}}}}}, {"kind": "TopologyRead", "cards": {"x": {"peers": {"y": {"access": {"read": "maybe"}}}}}},
    ],
    ids=repr,
)  # fmt: skip
def test_a_message_that_breaks_a_bound_is_a_protocol_error_and_nothing_else(body):
    assert refused(frame(body))


@pytest.mark.parametrize(
    "field,value",
    [
        ("at", None), ("at", "1"), ("at", math.nan), ("signals", {"power": True}), ("signals", {"power": None}), ("signals", {"power": math.inf}),
        ("signals", {"no_signal": 1}), ("signals", [1]), ("missing", {"power": "because"}), ("missing", {"power": []}), ("clock_events", {"gpu_idle": 1}),
        ("clock_events", {"x" * 513: True}), ("nvlink_up", {-1: True}), ("nvlink_up", {"0": True}), ("nvlink_up", {0: "yes"}), ("nvlink_errors", {"crc": "many"}),
        ("nvlink_errors_at", "now"), ("processes", 7), ("processes", [[1]]), ("processes", [{"pid": -1, "memory": None}]), ("traffic", {"pcie": 1.0}),
    ],
)  # fmt: skip
def test_a_reading_with_one_wrong_part_is_refused(field, value):
    body = {
        "kind": "CardRead",
        "index": 3,
        "uuid": "GPU-3",
        "cycle": 7,
        "duration": 0.25,
        "reading": {"at": 1.0, "signals": {}},
    }
    assert protocol.decode(frame(body)).reading.signals == {}
    body["reading"][field] = value
    assert refused(frame(body))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    with pytest.raises(DriverError):
        protocol.decode(data)


def test_flipped_bytes_give_a_message_or_a_protocol_error():
    chance = random.Random(7)
    whole = protocol.encode(READ)[4:]
    count = 0
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(3):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            assert isinstance(protocol.decode(bytes(data)), protocol.Message)
        except DriverError:
            count += 1
    assert count > 1000


@pytest.mark.parametrize("kind,more", [("DriverFailed", {}), ("CardFailed", {"index": 0, "uuid": "", "cycle": 0})])
def test_long_texts_of_exceptions_are_cut(kind, more):
    body = {"kind": kind, "reason": "x", "message": "x" * 10_000, **more}
    assert len(protocol.decode(frame(body)).message) == 512
    assert len(getattr(protocol, kind)(reason="x", message="x" * 10_000, **more).message) == 512


def test_the_error_does_not_quote_what_the_worker_sent():
    with pytest.raises(DriverError) as caught:
        protocol.decode(frame({"kind": "secret", "cycle": "secret"}))
    assert "secret" not in str(caught.value)
