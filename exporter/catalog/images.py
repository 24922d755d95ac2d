"""Metrics of the replicas' container images."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import REPLICA, Metric, Sample
from exporter.model import Snapshot


def _images(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        if replica.image and replica.reading is not None:
            image, _, digest = replica.image.partition("@")
            yield (*replica.labels, image, digest), 1.0


IMAGES: tuple[Metric, ...] = (
    REPLICA.info(
        "image",
        _images,
        "The container image of a replica, as reported by Kubernetes, a file_sd list or the configuration; "
        "the digest is empty if only the name is known.",
        "image",
        "digest",
    ),
)
