"""Starts the servers that the chart renders: the program with exactly the arguments, variables and
files of the container, without a cluster."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from conftest import BINARY, Cluster, Object
from values import EVERYTHING, POSTGRES

PRICES = {
    "effective": "2026-08-05",
    "currency": "USD",
    "models": [{"model": "m", "input_per_million": "2.50", "output_per_million": "10.00"}],
}

MakeCluster = Callable[[Object], Cluster]


@pytest.fixture
def database() -> Iterator[str]:
    """The address of an empty database. It must be asked for before the cluster that uses it."""
    address = urlsplit(os.environ["COUNTERSIGN_TEST_POSTGRES"])
    name = f"chart_{os.getpid()}"
    user, _, host = address.netloc.rpartition("@")
    admin = address._replace(netloc=f"{user.partition(':')[0]}@{host}").geturl()

    def psql(statement: str) -> None:
        # Not on the command line, which every process can read.
        env = {**os.environ, "PGPASSWORD": unquote(address.password or "")}
        subprocess.run(["psql", "--quiet", admin, "--command", statement], env=env, check=True)

    psql(f"CREATE DATABASE {name}")
    yield address._replace(path=f"/{name}").geturl()
    psql(f"DROP DATABASE {name}")


# With the chart's own values the server starts, is ready and governs. Commands in its pod find its
# store, and a restarted pod goes on with it.
def test_embedded(cluster: MakeCluster) -> None:
    one = cluster({})
    pod = one.start(0)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        pod.wait(probe)
    key = pod.first_key()
    receipt = pod.seal(key)
    pod.run("doctor")
    assert (pod.folders["/data"] / "keys.json").stat().st_mode & 0o777 == 0o600
    pod.stop()
    again = one.start(0)
    again.wait("readinessProbe")
    assert again.call(key, "GET", f"/v1/receipts/{receipt}/verify")["valid"] is True


# Two replicas on one PostgreSQL confirm each other's receipts with one key file. A third one that
# is added later is not ready until it has the heads of another, by the commands of the notes.
def test_replicas(database: str, cluster: MakeCluster) -> None:
    several = cluster(POSTGRES)
    several.secrets["countersign-database"] = {"url": database}
    first = several.start(0)
    first.wait("readinessProbe")
    second = several.start(1)
    second.wait("readinessProbe")
    key = first.first_key()
    receipt = first.seal(key)
    assert second.call(key, "GET", f"/v1/receipts/{receipt}/verify")["valid"] is True
    second.seal(key)
    assert first.folders["/keys"] == second.folders["/keys"]
    assert sorted(p.name for p in first.folders["/keys"].glob("*.json")) == ["keys.json"]
    for replica in (first, second):
        assert (replica.folders["/data"] / "heads.json").exists()
        replica.run("doctor")

    third = several.start(2)
    third.wait("startupProbe")
    third.wait("readinessProbe", 503)
    third.run("heads", "import", "-", stdin=first.run("heads", "export"))
    third.wait("readinessProbe")
    third.seal(key)
    third.run("audit")


# Kubernetes starts all replicas of a new release at once. One of them makes the key file and the
# first key; another that meant to make the same is restarted once, and goes on with them.
def test_all_replicas_at_once(database: str, cluster: MakeCluster) -> None:
    several = cluster({**POSTGRES, "replicas": 3})
    several.secrets["countersign-database"] = {"url": database}
    pods = [several.start(ordinal) for ordinal in range(3)]
    for pod in pods:
        pod.wait("readinessProbe", restarts=1)
    keys = [key for pod in pods for key in re.findall(r"csk_\w+", pod.output())]
    assert len(keys) == 1
    for pod in pods:
        receipt = pod.seal(keys[0])
        for other in pods:
            assert other.call(keys[0], "GET", f"/v1/receipts/{receipt}/verify")["valid"] is True
    pods[0].run("audit")


# Each value that becomes a setting becomes one that the server takes: with all of them it starts,
# speaks TLS, offers single sign-on, listens to Slack and serves its metrics on their own port.
def test_everything(database: str, cluster: MakeCluster, tmp_path: Path) -> None:
    certificate, private = tmp_path / "tls.crt", tmp_path / "tls.key"
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        f"-subj /CN=countersign.example.com -keyout {private} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    made = subprocess.run(
        [BINARY, "witness", "init", "--state", tmp_path / "witness", "--name", "example.com/w1"],
        check=True,
        capture_output=True,
        text=True,
    )
    verifier = next(word for word in made.stdout.split() if word.startswith("example.com/w1+"))
    everything = cluster({**EVERYTHING, "witnesses": [f"{verifier}=http://127.0.0.1:1"]})
    everything.secrets |= {
        "countersign-database": {"address": database},
        "countersign-mail": {"url": "smtp://127.0.0.1:1?from=countersign@example.com"},
        "countersign-tls": {"tls.crt": certificate.read_text(), "tls.key": private.read_text()},
        "countersign-sso": {"secret": "client secret\n"},
        "countersign-slack": {"bot": "bot-token\n", "secret": "signing-secret\n"},
        "extra": {"text": "extra"},
    }
    everything.config_maps |= {
        "authority": {"ca.crt": certificate.read_text()},
        "prices": {"table.json": json.dumps(PRICES)},
        "extra": {},
    }
    pod = everything.start(0)
    pod.wait("readinessProbe")
    with urllib.request.urlopen(pod.url("metrics") + "/metrics", timeout=5) as answer:
        assert "countersign_" in answer.read().decode()
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    page = pod.url(scheme="https") + "/sign-in"
    with urllib.request.urlopen(page, timeout=5, context=unverified) as answer:
        assert "Sign in with Example" in answer.read().decode()
    pressed = pod.url(scheme="https") + "/v1/slack/interactions"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(pressed, b"payload={}", timeout=5, context=unverified)
    assert "https://countersign.example.com/sign-in#" in pod.output()
    assert "https://countersign.example.com/sign-in#" in pod.run("keys", "sign-in")
