"""Nobody can be recognised by what is written to disk: the same thing always gets the same made-up name.

Replaced are UUIDs of cards and instances, serial numbers, the host's name, the home folder, and process ids.
Addresses on the PCI bus, versions and names of products stay: without them a report is of no use.
"""

from __future__ import annotations

import os
import re
import socket
from typing import Any

_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_FIRST_SERIAL, _FIRST_PID = 1000000000000, 1001
_CLUSTER = "clusterUuid"  # of a rack's fabric


class Disguise:
    """Gives made-up names in the order in which things are first met: begin with the cards by index."""

    def __init__(self) -> None:
        self._uuids: dict[str, str] = {}
        self._words: dict[str, str] = {}
        self._pids: dict[int, int] = {}
        self._serials = 0
        name = socket.gethostname()
        for name_part in (name, name.partition(".")[0], os.environ.get("NODE_NAME", "")):
            # A host may be called "gpu": as a mere word it is replaced where it is a label's value, and only there.
            if name_part not in {"", "localhost", "node"}:
                self._words |= {f'"{name_part}"': '"node"'} if name_part.isalpha() else {name_part: "node"}
        home = os.path.expanduser("~")
        if len(home) > 2:
            self._words[home] = "~"

    def meet(self, uuid: str, serial: str = "") -> None:
        """Return a card its names."""
        self._uuid(uuid)
        if len(serial) > 2 and serial not in self._words:
            self._words[serial] = str(_FIRST_SERIAL + self._serials)
            self._serials += 1

    def _uuid(self, uuid: str) -> str:
        if uuid in self._uuids.values():
            return uuid  # made up by us
        if uuid not in self._uuids:
            kind = uuid[:3]
            number = sum(known.startswith(kind) for known in self._uuids)
            self._uuids[uuid] = f"{kind}-00000000-0000-0000-0000-{number:012x}"
        return self._uuids[uuid]

    def text(self, text: str) -> str:
        """Return a text in which everything known is replaced; a UUID never met before as well."""
        text = _UUID.sub(lambda match: self._uuid(match[0]), text)
        for name_part in sorted(self._words, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(name_part)}(?!\w)", self._words[name_part], text)
        return text

    def pid(self, pid: int) -> int:
        """Return a made-up process id."""
        return self._pids.setdefault(pid, _FIRST_PID + len(self._pids))

    def tree(self, document: Any) -> Any:
        """Return the same for a value that becomes JSON."""
        if isinstance(document, str):
            return self.text(document)
        if isinstance(document, list | tuple):
            return [self.tree(item) for item in document]
        if isinstance(document, dict):
            return {key: self._part(key, value) for key, value in document.items()}
        return document

    def _part(self, key: str, value: Any) -> Any:
        if key == "pid" and isinstance(value, int):
            return self.pid(value)
        return None if key == _CLUSTER else self.tree(value)
