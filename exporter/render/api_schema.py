"""``python -m exporter.render.api_schema``: print the JSON Schema of /api/v1, which is committed and served."""

from __future__ import annotations

import sys

import msgspec

from exporter.render.api import schema


def text() -> str:
    """Return the schema as it is committed."""
    return msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
