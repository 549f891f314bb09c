"""The real service, started for the tests, and a network that can fail."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import countersign
from countersign import _client, _scope
from countersign.testing import FakeService
from faults import FaultProxy
from server import Server

pytest_plugins = ["pytester"]

# A busy machine is no defect: what is slow is measured, and never by a timed test.
# The environments of the adapters have no hypothesis, and no test that needs it.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("countersign", deadline=None)
    settings.load_profile("countersign")

# httpcore looks for it whenever it makes a lock, and Python searches every folder again for a
# module that it did not find: a third of what an asynchronous request takes.
if importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]

REPOSITORY = Path(__file__).parents[3]
POSTGRES = os.environ.get("COUNTERSIGN_TEST_POSTGRES", "")
STORES = ["sqlite", *(["postgres"] if POSTGRES else [])]


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The service's program: the one named by the environment, else a fresh build."""
    if named := os.environ.get("COUNTERSIGN_TEST_BINARY"):
        return named
    path = tmp_path_factory.mktemp("bin") / "countersign"
    command = ["go", "build", "-o", str(path), "./cmd/countersign"]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=600)
    return str(path)


def _database(store: str) -> Iterator[str | None]:
    if store == "sqlite":
        yield None
        return
    name = f"py_{uuid.uuid4().hex}"
    _psql(f"CREATE DATABASE {name}")
    yield POSTGRES.replace("/postgres?", f"/{name}?")
    _psql(f"DROP DATABASE {name} WITH (FORCE)")


def _psql(statement: str) -> None:
    address = urlsplit(POSTGRES)
    user, _, host = address.netloc.rpartition("@")
    server = address._replace(netloc=f"{user.partition(':')[0]}@{host}").geturl()
    # Every process can read a command line.
    password = {"PGPASSWORD": unquote(address.password or "")}
    subprocess.run(["psql", "-q", server, "-c", statement], env=os.environ | password, check=True)


@pytest.fixture(scope="session", params=STORES)
def shared_server(
    request: pytest.FixtureRequest, binary: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    for database in _database(request.param):
        server = Server(binary, tmp_path_factory.mktemp("data"), database)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@pytest.fixture
def server(shared_server: Server) -> Server:
    """A running service on each of the stores, shared by the tests."""
    return shared_server


@pytest.fixture(params=STORES)
def own_server(request: pytest.FixtureRequest, binary: str, tmp_path: Path) -> Iterator[Server]:
    """A running service on each of the stores for one test, which may kill it."""
    for database in _database(request.param):
        server = Server(binary, tmp_path / "data", database)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    """A network to the shared service that can fail."""
    with FaultProxy(server.port) as between:
        yield between


@pytest.fixture
def fake() -> Iterator[FakeService]:
    with FakeService() as service:
        yield service


@pytest.fixture(autouse=True)
def _forget_configuration(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("COUNTERSIGN_API_KEY", "COUNTERSIGN_BACKEND_URL", "COUNTERSIGN_URL"):
        monkeypatch.delenv(name, raising=False)
    yield
    _client._default = None
    _scope._SCOPE.set(None)  # some tests leave a chain open


def configure(service: FakeService, **settings: Any) -> countersign.ChainConfig:
    return countersign.init(**{**service.settings(), **settings})
