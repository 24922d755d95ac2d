"""Environment variables that override scalars follow from the record of the settings and are listed nowhere else.

``gpu.interval`` is overridden by ``SHARDWATCH_GPU_INTERVAL``; a list of scalars is written with commas.  Keys inside
lists (``engines``) have no variable.  A variable with the prefix that means nothing is refused: it is a slip, and
would otherwise be found out in an incident.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from exporter.config.document import Node, plain
from exporter.config.schema import Item, Listed, Report, Scalar, Section, did_you_mean, fields_of, join

PREFIX = "SHARDWATCH"

# Kubernetes sets these in every pod beside a Service named shardwatch or shardwatch-something; nobody wrote them.
_SERVICE_LINK = re.compile(
    rf"{PREFIX}_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)", re.ASCII
)
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")


def variables(cls: type[Any], prefix: str = PREFIX, path: str = "") -> dict[str, str]:
    """Derive from a record the environment variables that exist: name → dotted path of the scalar it overrides."""
    names = {}
    for name, reader in fields_of(cls).items():
        variable, dotted = f"{prefix}_{name.upper()}", join(path, name)
        if isinstance(reader, Section):
            names.update(variables(reader.cls, variable, dotted))
        elif isinstance(reader, Scalar) or (isinstance(reader, Listed) and isinstance(reader.item, Scalar)):
            names[variable] = dotted
    return names


def overrides(cls: type[Any], environ: Mapping[str, str], report: Report) -> dict[str, Item]:
    """Pick what overrides the record's scalars out of an environment; unknown and empty variables are problems."""
    known = variables(cls)
    found = {}
    for variable in sorted(name for name in environ if name.startswith(f"{PREFIX}_")):
        text = environ[variable]
        shown = "$" + variable.encode("ascii", "replace").decode()[:80]
        item = Item(path=shown, node=Node(value=plain(text), text=text), loose=True)
        if variable in known:
            if not text.strip():
                report.add(item, "is set but empty; unset it or give it a value")
            elif not _is_text(text):
                report.add(item, "is not UTF-8 text")
            else:
                found[known[variable]] = item
        elif variable == f"{PREFIX}_CONFIG":
            report.add(item, "no such variable is read; name the configuration with --config FILE")
        elif not _is_service_link(variable, text):
            report.add(item, did_you_mean(variable, list(known), "no such variable is read"))
    return found


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_service_link(variable: str, text: str) -> bool:
    if _SERVICE_LINK.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and _SERVICE_URL.match(text) is not None
