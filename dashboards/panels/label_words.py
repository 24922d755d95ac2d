"""The words that a table shows for the values of a label: classes, actions and meanings of XIDs, and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alerts import words
from dashboards.panels.panel import Colour
from exporter.diagnosis.xid_meanings import CHINESE
from exporter.model.text import Language, Text
from exporter.model.xid_catalog import Class, describe

Json = dict[str, Any]

_CLASSES = {
    Class.APPLICATION: (Text("application", "应用"), Colour.WARNING),
    Class.RESET_CARD: (Text("GPU unusable", "卡不可用"), Colour.CRITICAL),
    Class.RESET_NODE: (Text("node unusable", "节点不可用"), Colour.CRITICAL),
    Class.INSPECT: (Text("inspect", "需人工检查"), Colour.WARNING),
    Class.INFORMATIONAL: (Text("informational", "提示"), Colour.OFF),
    Class.UNKNOWN: (Text("unknown", "未知"), Colour.OFF),
}
_VERDICTS = {"drain": Colour.WARNING, "eject": Colour.CRITICAL, "unknown": Colour.OFF}
_MEANINGS = {describe(code).meaning: Text(describe(code).meaning, zh) for code, zh in CHINESE.items()}


def properties(label: str, language: Language) -> list[Json]:
    """Return the properties of a label's column that show its values as words; none for a label that has none."""
    if label == "class":
        return _coloured({kind.value: said for kind, said in _CLASSES.items()}, language)
    if label == "state":
        return _coloured({state: (words.VERDICTS[state], colour) for state, colour in _VERDICTS.items()}, language)
    if label == "action":
        return [_mappings({value: {"text": text.in_(language)} for value, text in words.ACTIONS.items()})]
    if label == "meaning":
        return [_mappings({value: {"text": text.in_(language)} for value, text in _MEANINGS.items()})]
    return []


def _coloured(said: Mapping[str, tuple[Text, Colour]], language: Language) -> list[Json]:
    options = {value: {"text": text.in_(language), "color": colour.value} for value, (text, colour) in said.items()}
    return [_mappings(options), {"id": "custom.cellOptions", "value": {"type": "color-text"}}]


def _mappings(options: Mapping[str, Json]) -> Json:
    placed = {value: {**result, "index": place} for place, (value, result) in enumerate(options.items())}
    return {"id": "mappings", "value": [{"type": "value", "options": placed}]}
