"""Which pod a GPU is allocated to: kubelet's list over a socket that gRPC's own library serves, and what may go wrong."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

import grpc
import pytest

from exporter.errors import EndpointError
from exporter.http.client import grpc as client
from exporter.model import Pod
from exporter.sources.discovery import pod_resources
from exporter.sources.discovery.pod_resources import METHOD, PodResources, allocated_pods
from tests.support.kubelet import field, kubelet, pod

CHAT = pod("chat-0", "ml", vllm=["GPU-a", "GPU-b"], sidecar=[])
SHARED = pod("eval", "ml", a=["GPU-c::0"], b=["GPU-c::1", "MIG-d"])
PODS = (
    Pod(uid="", namespace="ml", name="chat-0", devices={"GPU-a": "vllm", "GPU-b": "vllm"}),
    Pod(uid="", namespace="ml", name="eval", devices={"GPU-c": "", "MIG-d": "b"}),
)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "kubelet.sock")


def test_pods_have_the_devices_that_are_allocated_to_them(path):
    provider = PodResources(path)
    with kubelet(path, lambda _: CHAT + SHARED + pod("web", "ml", nginx=[])):
        assert provider.refresh().pods == PODS
        assert provider.refresh().problem is None


def test_an_answer_larger_than_a_window_of_http_2_arrives_whole(path):
    pods = b"".join(pod(f"p{number}", "n" * 60, **{"c" * 60: [f"GPU-{number}"]}) for number in range(1000))
    assert len(pods) > 100_000
    with kubelet(path, lambda _: pods):
        assert len(PodResources(path).refresh().pods) == 1000


def test_while_kubelet_does_not_answer_the_last_list_goes_on(path):
    provider = PodResources(path)
    with kubelet(path, lambda _: CHAT):
        provider.refresh()
    result = provider.refresh()
    assert result.pods == PODS[:1] and result.problem.reason == "unreachable"


@pytest.mark.parametrize("method", [METHOD, "/v1alpha1.PodResourcesLister/List"])
def test_a_call_that_fails_is_a_problem(path, method):
    def refuse(context):
        context.abort(grpc.StatusCode.UNAVAILABLE, "not now")

    with kubelet(path, refuse, method):
        assert PodResources(path).refresh().problem.reason == "refused"


def test_a_larger_answer_than_allowed_is_refused(path, monkeypatch):
    monkeypatch.setattr(client, "_MAX_READ", 50_000)
    with kubelet(path, lambda _: CHAT * 2000):
        assert PodResources(path).refresh().problem.reason == "too_large"


MALFORMED = {
    "text": b"not protobuf",
    "a length beyond the end": b"\x0a\x7f",
    "a number without an end": b"\xff" * 20,
    "an unknown kind of field": b"\x0b",
    "a name that is no text": field(1, field(1, b"\xff\xfe") + field(2, "ml")),
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_list_of_pods_is_refused_whole(path, message):
    with kubelet(path, lambda _: CHAT + message):
        result = PodResources(path).refresh()
    assert (result.pods, result.problem.reason) == ((), "malformed")


@pytest.mark.parametrize("name", ["", "../x", "a\n", "A", "x" * 300])
def test_names_that_kubernetes_does_not_allow_are_left_out(name):
    assert allocated_pods(pod(name, "ml", c=["GPU-a"]) + pod("x", name, c=["GPU-b"])) == ()
    (read,) = allocated_pods(pod("x", "ml", **{name: ["GPU-a", "\x1b[2J", "G" * 200, "::1"]}))
    assert read.devices == {"GPU-a": ""}


def test_devices_of_a_pod_are_bounded():
    (read,) = allocated_pods(pod("x", "ml", c=[f"GPU-{number}" for number in range(1000)]))
    assert len(read.devices) == pod_resources.MAX_DEVICES


def test_devices_of_other_kinds_do_not_crowd_out_gpus():
    functions = [f"0000:3b:02.{number}" for number in range(1000)]
    (read,) = allocated_pods(pod("x", "ml", c=[*functions, "GPU-a"]))
    assert "GPU-a" in read.devices and len(read.devices) == pod_resources.MAX_DEVICES + 1


def test_of_empty_pods_no_more_are_read_than_of_others():
    empty = pod("web", "ml", nginx=[])
    assert allocated_pods(empty * pod_resources.MAX_PODS + CHAT) == ()
    assert allocated_pods(empty * (pod_resources.MAX_PODS - 1) + CHAT) == PODS[:1]


@pytest.mark.parametrize(
    "message",
    [field(2, b"") * 400_000, pod("x", "ml", c=["d"] * 400_000), field(1, field(3, b"") * 400_000)],
    ids=["fields", "devices", "containers"],
)
def test_an_answer_of_countless_fields_is_refused_before_all_are_read(message):
    with pytest.raises(ValueError, match="more fields"):
        allocated_pods(message)


def test_the_last_good_list_goes_on_for_ten_minutes(path):
    now = [0.0]
    provider = PodResources(path, lambda: now[0])
    with kubelet(path, lambda _: CHAT):
        provider.refresh()
    now[0] = 600.0
    assert provider.refresh().pods == PODS[:1]
    now[0] = 601.0
    assert provider.refresh().pods == ()


def test_a_socket_that_nobody_listens_on_is_no_matter_of_a_port(path):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path)
    problem = PodResources(path).refresh().problem
    assert (problem.reason, str(problem)) == ("refused", "nobody listens on that socket, or the file is none")


def settings(flags=0, payload=b""):
    return client._frame(4, flags, 0, payload)


def data(payload, flags=1):
    return client._frame(0, flags, 1, payload)


MESSAGE = b"\0" + len(CHAT).to_bytes(4, "big") + CHAT
ODD = {
    "nothing": (b"", "closed"),
    "HTTP/1.1": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "protocol"),
    "a stream without a message": (settings() + client._frame(1, 5, 1, b"\x88"), "refused"),
    "goodbye": (client._frame(7, 0, 0, bytes(8)), "refused"),
    "goodbye in trouble": (client._frame(7, 0, 0, (1).to_bytes(4, "big") + (2).to_bytes(4, "big")), "refused"),
    "a stream that is reset": (client._frame(3, 0, 1, bytes(4)), "refused"),
    "a compressed message": (data(b"\1" + MESSAGE[1:]), "protocol"),
    "half a message": (data(MESSAGE[:-1]), "protocol"),
    "two messages": (data(MESSAGE * 2), "protocol"),
    "padding longer than the frame": (data(b"\xff" + MESSAGE, 9), "protocol"),
    "a frame that never ends": (b"\0\0\xff\0\0\0\0\0\1", "closed"),
}


@contextlib.contextmanager
def answering(path, answer):
    """Send these bytes to the first client, then nothing; keep the connection where ``answer`` is None."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve():
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                if answer is not None:
                    peer.sendall(answer)
                    peer.shutdown(socket.SHUT_WR)
                while peer.recv(65_536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join()


@pytest.mark.parametrize("answer, reason", ODD.values(), ids=ODD)
def test_odd_answers_have_a_reason(path, answer, reason):
    with answering(path, answer), pytest.raises(EndpointError) as raised:
        client.call(path, METHOD, 10.0)
    assert raised.value.reason == reason


def test_padding_and_pings_between_are_understood(path):
    ping = client._frame(6, 0, 0, bytes(8))
    half = len(MESSAGE) // 2
    answer = settings() + data(b"\3" + MESSAGE[:half] + bytes(3), 8) + ping + settings(1) + data(MESSAGE[half:])
    with answering(path, answer):
        assert client.call(path, METHOD, 10.0) == CHAT


def test_a_server_that_says_goodbye_and_answers_first_is_understood(path):
    goodbye = client._frame(7, 0, 0, (1).to_bytes(4, "big") + bytes(4))
    with answering(path, settings() + goodbye + data(MESSAGE)):
        assert client.call(path, METHOD, 10.0) == CHAT


def test_a_server_that_says_nothing_is_left_in_time(path):
    with answering(path, None), pytest.raises(EndpointError) as raised:
        client.call(path, METHOD, 0.05)
    assert raised.value.reason == "timeout"


def test_no_descriptor_stays_open(path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        PodResources(path).refresh()
    assert len(os.listdir("/proc/self/fd")) == before
