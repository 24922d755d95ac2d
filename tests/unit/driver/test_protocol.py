"""The protocol with the driver worker: everything survives the trip, and garbage is an error of one kind."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.driver import protocol
from exporter.errors import DriverError
from exporter.model import CardFacts, CardProcess, CardReading, DriverFacts, MigInstance, Missing, Signal

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
PART = MigInstance(number=2, parent="GPU-3", profile="1g.10gb", gpu_instance=9, compute_instance=0)
MESSAGES = [
    protocol.Initialising(),
    protocol.Initialised(facts=DriverFacts(driver_version="590.48", nvml_version="13", cuda_version="13.1"), cards=8),
    protocol.CardFound(facts=CardFacts(index=3, uuid="GPU-3", name="é", numa_node=1, mig=True)),
    protocol.CardFound(facts=CardFacts(index=0, uuid="GPU-0")),
    protocol.CardRead(index=3, uuid="GPU-3", cycle=7, duration=0.25, reading=READING),
    protocol.CardRead(index=0, uuid="u", cycle=0, duration=0.0, reading=CardReading(at=0.0, signals={})),
    protocol.InstancesRead(uuid="GPU-3", instances=((CardFacts(index=3, uuid="MIG-1", instance=PART), READING),)),
    protocol.InstancesRead(uuid="GPU-3", instances=()),
    protocol.CardFailed(index=1, uuid="", cycle=7, reason="lost", message="gone"),
    protocol.Heartbeat(
        cycle=9, ask=False, busy={0: 1.5, 3: 0.0}, counting=2.5, joining=0.5, profiling={"GPU-a": 3.0}
    ),
    protocol.CounterUnits(driver_version="590.48.01", units={"sw_power_cap": 1e-9, "sync_boost": 1e-6}),
    protocol.CounterUnits(driver_version="590.48.01", units={}),
    protocol.XidSeen(uuid="GPU-3", xid=79, times=3, at=12.5),
    protocol.EventSubscription(cards=8),
    protocol.EventSubscription(cards=0, reason="unsupported"),
    protocol.DriverFailed(reason="mismatch", message="x"),
    protocol.Read(cycle=1),
    protocol.Read(cycle=2, ask=False),
    protocol.Initialise(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_trip(message):
    (frame,) = protocol.FrameBuffer().feed(protocol.encode(message))
    assert protocol.decode(frame) == message


def test_frames_are_cut_out_of_a_stream_that_arrives_in_any_pieces():
    stream = b"".join(protocol.encode(message) for message in MESSAGES)
    for size in (1, 3, 7, 1000, len(stream)):
        buffer, frames = protocol.FrameBuffer(), []
        for start in range(0, len(stream), size):
            frames += buffer.feed(stream[start : start + size])
        assert [protocol.decode(frame) for frame in frames] == MESSAGES


def test_a_frame_that_would_be_too_long_is_refused_before_it_is_collected():
    buffer = protocol.FrameBuffer()
    with pytest.raises(DriverError, match="at most") as caught:
        buffer.feed((protocol.MAX_FRAME + 1).to_bytes(4, "big"))
    assert caught.value.reason == "protocol"
    assert protocol.FrameBuffer().feed(protocol.MAX_FRAME.to_bytes(4, "big")) == []


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"7", b'"Read"', b"\xff\xfe", b"[" * 100_000, b'{"kind":"Nothing"}', b'{"kind":["Read"]}',
        b'{"kind":"Read"}', b'{"kind":"Read","cycle":-1,"ask":true}', b'{"kind":"Read","cycle":1,"ask":1}',
        b'{"kind":"Read","cycle":true,"ask":true}', b'{"kind":"Read","cycle":1e3,"ask":true}',
        b'{"kind":"Read","cycle":' + b"9" * 5000 + b',"ask":true}',
        b'{"kind":"Heartbeat","cycle":1,"ask":true,"busy":{"x":1}}', b'{"kind":"Heartbeat","cycle":1,"ask":true,"busy":[1]}',
        b'{"kind":"Heartbeat","cycle":1,"ask":true,"busy":{"0":NaN}}', b'{"kind":"Heartbeat","cycle":1,"ask":true,"busy":{"0":1e999}}',
        b'{"kind":"DriverFailed","reason":"two words","message":""}', b'{"kind":"DriverFailed","reason":"","message":""}',
        b'{"kind":"DriverFailed","reason":"' + b"x" * 40 + b'","message":""}', b'{"kind":"DriverFailed","reason":"x","message":7}',
        b'{"kind":"CounterUnits","driver_version":"1","units":{"sw_power_cap":1}}', b'{"kind":"CounterUnits","driver_version":"1","units":{"x":[]}}',
        b'{"kind":"CounterUnits","driver_version":"1","units":{"two words":1e-9}}', b'{"kind":"CounterUnits","driver_version":1,"units":{}}',
        b'{"kind":"CounterUnits","driver_version":"1","units":{' + b",".join(b'"r%d":1e-9' % one for one in range(33)) + b"}}",
        b'{"kind":"CardFound","facts":{"index":0,"uuid":""}}', b'{"kind":"CardRead","index":0}',
    ],
    ids=lambda body: repr(body[:40]),
)  # fmt: skip
def test_garbage_is_a_protocol_error_and_nothing_else(body):
    with pytest.raises(DriverError) as caught:
        protocol.decode(body)
    assert caught.value.reason == "protocol"


@pytest.mark.parametrize(
    "field,value",
    [
        ("at", None), ("at", "1"), ("signals", {"power": True}), ("signals", {"power": None}), ("signals", {"no_signal": 1}),
        ("signals", [1]), ("missing", {"power": "because"}), ("missing", {"power": []}), ("clock_events", {"gpu_idle": 1}), ("nvlink_up", {"-1": True}),
        ("nvlink_up", {"0": "yes"}), ("nvlink_errors", {"crc": "many"}), ("nvlink_errors_at", "now"), ("processes", 7), ("processes", [[1]]), ("processes", [[-1, None]]),
    ],
)  # fmt: skip
def test_a_reading_with_one_wrong_part_is_refused(field, value):
    frame = json.loads(protocol.encode(MESSAGES[4])[4:])
    protocol.decode(json.dumps(frame).encode())
    frame["reading"][field] = value
    with pytest.raises(DriverError):
        protocol.decode(json.dumps(frame).encode())


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    with pytest.raises(DriverError):
        protocol.decode(data)


def test_flipped_bytes_give_a_message_or_a_protocol_error():
    chance = random.Random(7)
    whole = protocol.encode(MESSAGES[4])[4:]
    refused = 0
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(3):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            assert isinstance(protocol.decode(bytes(data)), tuple(type(message) for message in MESSAGES))
        except DriverError:
            refused += 1
    assert refused > 1000


def test_long_texts_are_cut():
    (frame,) = protocol.FrameBuffer().feed(protocol.encode(protocol.DriverFailed(reason="x", message="x" * 10_000)))
    assert len(protocol.decode(frame).message) == 512
