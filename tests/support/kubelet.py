"""Kubelet's pod-resources socket, served by gRPC's own library, and its messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from exporter.sources.discovery.pod_resources import METHOD


def field(number: int, value: int | str | bytes) -> bytes:
    """Return a field of protobuf: a text, a message, or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*data, value))


def pod(name: str | bytes, namespace: str, **containers: list[str]) -> bytes:
    """Return a PodResources message; containers: name → ids of devices."""
    found = b"".join(
        field(
            3,
            field(1, of)
            + field(2, field(1, "nvidia.com/gpu") + b"".join(field(2, each) for each in ids))
            + field(3, 7),
        )
        for of, ids in containers.items()
    )
    return field(1, field(1, name) + field(2, namespace) + found)


@contextlib.contextmanager
def kubelet(path: str, answer: Callable[[Any], bytes], method: str = METHOD) -> Iterator[None]:
    """Serve a method with the library of gRPC itself."""
    service, _, name = method.strip("/").partition("/")
    handler = grpc.unary_unary_rpc_method_handler(lambda _, context: answer(context))
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()
