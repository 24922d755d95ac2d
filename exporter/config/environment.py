"""Environment variables that override scalars; their names are derived from the section and listed nowhere else.

``gpu.interval`` is overridden by ``SHARDWATCH_GPU_INTERVAL``; a list of scalars is separated by commas.  Keys inside
lists (``engines``) have no variable.  An unknown variable with the prefix is refused: it is a typing error, and would
otherwise be found during an incident.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from exporter.config.document import Node, plain
from exporter.config.reader import Item, ListOf, Report, Scalar, join
from exporter.config.section import Section
from exporter.config.suggest import nearest

PREFIX = "SHARDWATCH"

# Kubernetes sets these in every pod beside a Service named shardwatch or shardwatch-something; nobody wrote them.
_SERVICE_LINK = re.compile(
    rf"{PREFIX}_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)", re.ASCII
)
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")


def variables(section: Section, prefix: str = PREFIX, path: str = "") -> dict[str, str]:
    """Return the environment variables of a section: name → dotted path of the scalar that it overrides."""
    names = {}
    for name, key in section.keys.items():
        variable, dotted, reader = f"{prefix}_{name.upper()}", join(path, name), key.reader
        if isinstance(reader, Section):
            names.update(variables(reader, variable, dotted))
        elif isinstance(reader, Scalar) or (isinstance(reader, ListOf) and isinstance(reader.item, Scalar)):
            names[variable] = dotted
    return names


def overrides(section: Section, environ: Mapping[str, str], report: Report) -> dict[str, Item]:
    """Return what an environment overrides, by path; unknown and empty variables are problems."""
    known = variables(section)
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
            report.add(item, "unknown variable; name the configuration with --config FILE")
        elif not _is_service_link(variable, text):
            report.add(item, _unknown(variable, known))
    return found


def _unknown(variable: str, known: Mapping[str, str]) -> str:
    names = [name.removeprefix(f"{PREFIX}_") for name in known]  # every name has the prefix, which resembles itself
    meant = nearest(variable.removeprefix(f"{PREFIX}_"), names)
    hint = f"did you mean {PREFIX}_{meant}?" if meant else f"{PREFIX}_ is followed by one of: {', '.join(names)}"
    return f"unknown variable; {hint}"


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
