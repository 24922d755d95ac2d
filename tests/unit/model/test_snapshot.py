"""A snapshot holds values and nothing that is computed, or can change, when somebody reads it."""

from __future__ import annotations

import array
from enum import Enum
from types import MappingProxyType

from msgspec import Struct

from tests.support.virtual_node import VirtualNode

PLAIN = (type(None), bool, int, float, str, Enum)


def parts(value, path):
    """Walk everything that a record holds, with the way to it."""
    yield path, value
    if isinstance(value, Struct):
        for name in value.__struct_fields__:
            yield from parts(getattr(value, name), f"{path}.{name}")
    elif type(value) in (dict, MappingProxyType):
        for key, inner in value.items():
            yield from parts(inner, f"{path}[{key!r}]")
    elif isinstance(value, tuple):
        for place, inner in enumerate(value):
            yield from parts(inner, f"{path}[{place}]")


def test_a_snapshot_is_made_of_frozen_records_and_plain_values():
    node = VirtualNode("healthy", seed=1)
    values = list(parts(node.live_until(70.0), "snapshot"))
    assert any(".latency" in path and path.endswith("quantiles[0.5]") for path, _ in values)
    odd = [
        (path, type(value).__name__)
        for path, value in values
        if not isinstance(value, (*PLAIN, tuple, frozenset))
        and type(value) not in (dict, MappingProxyType)
        and not (isinstance(value, Struct) and value.__struct_config__.frozen)
    ]
    assert odd == []


def test_no_record_keeps_a_buffer_that_is_still_written_to():
    node = VirtualNode("healthy", seed=1)
    assert not [
        path for path, value in parts(node.live_until(30.0), "snapshot") if isinstance(value, (list, array.array))
    ]
