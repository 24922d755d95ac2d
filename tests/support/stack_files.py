"""The files of compose/ as Compose and kustomize would see them: variables filled in, overlays merged.

What is built here is the part of both that compose/ uses; anything else fails loudly, so that nothing is believed
checked that is not.  Where kubectl is installed a test compares with it.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
ENV_FILES = ("demo.env", "node.env", "engines.env", "fleet.env")
_VARIABLE = re.compile(r"\$\{(?P<name>[A-Z_]+):-(?P<default>[^{}]*)\}")  # the innermost
_KNOWN = {
    "apiVersion", "kind", "namespace", "resources", "configMapGenerator", "labels", "images", "patches"
}  # fmt: skip
_QUICK = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WITHOUT_NAMESPACE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"}
_MERGE_KEYS = {"volumeMounts": "mountPath"}


def environment(name):
    """Return the variables of an env file."""
    lines = (COMPOSE / name).read_text().splitlines()
    pairs = (line.split("#")[0].strip().partition("=") for line in lines)
    return {key: value for key, mark, value in pairs if mark}


def interpolated(text, values):
    """Fill in ``${NAME:-default}``, the one form that compose.yaml uses."""
    filled, before = text, ""
    while filled != before:
        filled, before = _VARIABLE.sub(lambda match: values.get(match["name"]) or match["default"], filled), filled
    assert "${" not in filled, "only ${NAME:-default} is understood here, and works for every profile"
    return filled


def compose(name=None, **more):
    """Return compose.yaml as one env file, and more variables, make it; anchors and merge keys resolved."""
    values = {**(environment(name) if name else {}), **more}
    text = (COMPOSE / "compose.yaml").read_text()
    body = "\n".join(line.partition("  #")[0] for line in text.splitlines() if not line.lstrip().startswith("#"))
    return yaml.safe_load(interpolated(body, values))


def started(name):
    """Return the services that an env file starts."""
    profiles = set(environment(name)["COMPOSE_PROFILES"].split(","))
    return {key: service for key, service in compose(name)["services"].items() if profiles & set(service["profiles"])}


def rendered(folder):
    """Return the objects that ``kubectl kustomize`` makes of a folder; generated names keep no hash."""
    folder = Path(folder)
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = set(kustomization) - _KNOWN
    assert not unknown, f"{folder}: {unknown} is not understood here"
    assert kustomization["kind"] == "Kustomization"
    objects = []
    for entry in kustomization.get("resources", ()):
        objects += _resource(folder, entry)
    objects += [_config_map(folder, wanted) for wanted in kustomization.get("configMapGenerator", ())]
    for patch in kustomization.get("patches", ()):
        _patch(objects, patch)
    for manifest in objects:
        _set_namespace(manifest, kustomization.get("namespace"))
        for labels in kustomization.get("labels", ()):
            _label(manifest, labels)
        for image in kustomization.get("images", ()):
            _set_image(manifest, image)
    return objects


def _resource(folder, entry):
    place = (folder / entry).resolve()
    assert place.exists(), f"{folder}/kustomization.yaml: there is no {entry}"
    if place.is_dir():
        return rendered(place)
    assert place.is_relative_to(folder.resolve()), f"{folder}: kustomize refuses files from outside: {entry}"
    return [
        manifest for manifest in yaml.load_all(place.read_text(), Loader=_QUICK) if manifest
    ]  # dashboards are long


def _config_map(folder, wanted):
    data = {}
    for name in wanted["files"]:
        assert (folder / name).is_file(), f"{folder}: there is no {name}"
        data[name] = (folder / name).read_text()
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": wanted["name"]}, "data": data}


def _patch(objects, patch):
    wanted = patch["target"]
    hit = [
        manifest
        for manifest in objects
        if manifest["kind"] == wanted["kind"] and manifest["metadata"]["name"] == wanted["name"]
    ]
    assert len(hit) == 1, f"the patch's target {wanted} is met {len(hit)} times"
    change = yaml.safe_load(patch["patch"])
    if change.get("$patch") == "delete":
        objects.remove(hit[0])
        return
    merged = _merge(hit[0], change, "")
    hit[0].clear()
    hit[0].update(merged)


def _merge(old, new, key):
    if isinstance(old, dict) and isinstance(new, dict):
        if new.get("$patch") == "replace":
            return {name: value for name, value in new.items() if name != "$patch"}
        return {**old, **{name: _merge(old.get(name), value, name) for name, value in new.items()}}
    by = _MERGE_KEYS.get(key, "name")
    if (
        isinstance(old, list)
        and isinstance(new, list)
        and all(isinstance(item, dict) and by in item for item in old + new)
    ):
        by_key = {item[by]: item for item in old}
        added = [item for item in new if item[by] not in by_key]
        changed = {item[by]: _merge(by_key[item[by]], item, "") for item in new if item[by] in by_key}
        return added + [changed.get(item[by], item) for item in old]
    return copy.deepcopy(new)


def _set_namespace(manifest, namespace):
    if not namespace:
        return
    if manifest["kind"] == "Namespace":
        manifest["metadata"]["name"] = namespace
    elif manifest["kind"] not in _WITHOUT_NAMESPACE:
        manifest["metadata"]["namespace"] = namespace


def _label(manifest, wanted):
    manifest["metadata"].setdefault("labels", {}).update(wanted["pairs"])
    if not wanted.get("includeSelectors"):
        return
    spec = manifest.get("spec", {})
    if manifest["kind"] in {"Deployment", "DaemonSet"}:
        spec.setdefault("selector", {}).setdefault("matchLabels", {}).update(wanted["pairs"])
        spec["template"].setdefault("metadata", {}).setdefault("labels", {}).update(wanted["pairs"])
    elif manifest["kind"] == "Service":
        spec.setdefault("selector", {}).update(wanted["pairs"])
    elif manifest["kind"] == "PodDisruptionBudget":
        spec["selector"]["matchLabels"].update(wanted["pairs"])


def _set_image(manifest, wanted):
    template = manifest.get("spec", {}).get("template", {}) if manifest["kind"] in {"Deployment", "DaemonSet"} else {}
    for container in template.get("spec", {}).get("containers", ()):
        if container["image"].split(":")[0] == wanted["name"]:
            container["image"] = f"{wanted['newName']}:{wanted['newTag']}"
