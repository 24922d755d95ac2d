"""Schemas of Kubernetes objects: Kubernetes' own of several versions, and ours for what it does not know."""

from __future__ import annotations

import json
import pathlib

import jsonschema
import kubernetes_validate

VERSIONS = ("1.29", "1.31", "1.33", "1.35", "1.37")
MOST_ANNOTATION = 262_144  # bytes, all of an object's annotations together
CRDS = {path.stem: json.loads(path.read_text()) for path in (pathlib.Path(__file__).parent / "crds").glob("*.json")}


def validated(manifest, version=VERSIONS[-1]):
    """Raise the validator's error if an object does not fit its schema."""
    schema = CRDS.get(manifest["kind"].lower())
    if schema is not None:
        jsonschema.Draft202012Validator(schema).validate(manifest)
    else:
        kubernetes_validate.validate(manifest, version, strict=True)
