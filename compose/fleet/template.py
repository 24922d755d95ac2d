"""One daemon's page as the page of any node: what identifies a node is marked once, and filled in per request.

Marked are the GPUs' UUIDs and serial numbers and the replicas' names, so that no two nodes share a series.  Bus
addresses stay: machines of one make have the same.  Filling in costs three replacements in a hundred kilobytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UUID = re.compile(rb"(?<=GPU-)[0-9a-f]{8}(?=-)")
_SERIAL = re.compile(rb'(?<=serial=")[0-9]{6}')
_REPLICA = re.compile(rb'[{,]replica="([^"\\]+)"')
# A byte that a page cannot hold (it is text) makes the marks unmistakable.
_CARD_MARK, _SERIAL_MARK, _REPLICA_MARK = b"\x00card", b"\x00serial", b"\x00replica"
MOST_NODES = 1_000_000  # digits in the serial numbers


@dataclass(frozen=True, slots=True)
class Template:
    """A page with marks in the places of a node's identity."""

    marked: bytes

    def page(self, node: int) -> bytes:
        """Return the page of a node, 0 to MOST_NODES − 1.

        Two nodes have no series in common but those without a GPU and a replica.
        """
        if not 0 <= node < MOST_NODES:
            raise ValueError(f"node {node} is not in 0 to {MOST_NODES - 1}")
        # An odd factor spreads neighbours over the whole range, as random identifiers are, and keeps them apart.
        spread = (node * 2_654_435_761) & 0xFFFFFFFF
        return (
            self.marked.replace(_CARD_MARK, b"%08x" % spread)
            .replace(_SERIAL_MARK, b"%06d" % node)
            .replace(_REPLICA_MARK, b"-%d" % node)
        )


def template(page: bytes) -> Template:
    """Mark what identifies the node in a page of text format 0.0.4."""
    marked = _SERIAL.sub(_SERIAL_MARK, _UUID.sub(_CARD_MARK, page))
    names = sorted(set(_REPLICA.findall(page)), key=len, reverse=True)
    for name in names:
        marked = marked.replace(b'"%s"' % name, b'"%s%s"' % (name, _REPLICA_MARK))
        marked = marked.replace(b':%s"' % name, b':%s%s"' % (name, _REPLICA_MARK))
    return Template(marked)
