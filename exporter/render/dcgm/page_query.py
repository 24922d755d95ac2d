"""What a request for DCGM's names selects.  Apart from ``query``, whose tables most nodes never import (10 ms)."""

from __future__ import annotations

from msgspec import Struct


class PageQuery(Struct, frozen=True, kw_only=True):
    """A parsed query string; the values are those of the parameters."""

    dialect: str
    hostname: str
    fields: str
