from __future__ import annotations

import pytest

import exporter.http.client.session  # noqa: F401 - both clients load theirs late, and some tests measure memory
from exporter.http.client.client import HttpClient, SessionClient
from tests.support import endpoint_probe


@pytest.fixture(params=[HttpClient, SessionClient])
def either_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test once over ``http.client`` and once over ``requests``."""
    monkeypatch.setattr(endpoint_probe, "HttpClient", request.param)
    monkeypatch.setattr(request.module, "HttpClient", request.param)
