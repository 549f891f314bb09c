"""The pytest plugin, which pytest finds if the library is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import countersign
from countersign import _client
from countersign.testing import FakeService

__all__ = ["countersign_service"]


@pytest.fixture
def countersign_service() -> Iterator[FakeService]:
    """A fake service for this test, with ``countersign.init`` called on it."""
    before = _client._default
    with FakeService() as service:
        countersign.init(**service.settings())
        yield service
    _client._default = before
