"""Renders the chart, and starts what it renders without a cluster."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "chart"
BINARY = os.environ["COUNTERSIGN_TEST_BINARY"]
HELM = os.environ["COUNTERSIGN_TEST_HELM"]

Object = dict[str, Any]


class Refused(Exception):
    """Helm refused the values."""


def helm(*args: str) -> str:
    run = subprocess.run([HELM, *args], capture_output=True, text=True, check=False)
    if run.returncode:
        raise Refused(run.stderr)
    return run.stdout


def render(values: Object, chart: Path = CHART) -> list[Object]:
    """The objects of a release that is called countersign."""
    run = subprocess.run(
        [HELM, "template", "countersign", str(chart), "--namespace", "agents", "--values", "-"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise Refused(run.stderr)
    return [document for document in yaml.safe_load_all(run.stdout) if document]


def pick(objects: list[Object], kind: str, name: str = "countersign") -> Object:
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def image() -> tuple[list[str], dict[str, str]]:
    """The entry point and the variables of the image."""
    text = (ROOT / "deploy" / "Containerfile").read_text()
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    variables = re.search(r"^ENV (.*)$", text, re.MULTILINE)
    assert entry
    assert variables
    pairs = (pair.partition("=") for pair in shlex.split(variables[1]))
    return json.loads(entry[1]), {name: value for name, _, value in pairs}


class Cluster:
    """What a cluster does for the pods of the StatefulSet, as far as files, variables, arguments
    and probes go. Paths in the container are folders here, ports are free ones."""

    def __init__(self, home: Path, values: Object) -> None:
        self.home = home
        self.objects = render(values)
        self.secrets: dict[str, dict[str, str]] = {}
        self.config_maps: dict[str, dict[str, str]] = {
            o["metadata"]["name"]: o["data"] for o in self.objects if o["kind"] == "ConfigMap"
        }
        self.pods: list[Pod] = []

    @property
    def spec(self) -> Object:
        spec: Object = pick(self.objects, "StatefulSet")["spec"]
        return spec

    def start(self, ordinal: int) -> Pod:
        pod = Pod(self, ordinal)
        self.pods.append(pod)
        return pod

    def stop(self) -> None:
        for pod in self.pods:
            pod.stop()


class Pod:
    def __init__(self, cluster: Cluster, ordinal: int) -> None:
        self.cluster = cluster
        self.home = cluster.home / f"pod-{ordinal}"
        self.home.mkdir(exist_ok=True)
        self.ordinal = ordinal
        spec = cluster.spec["template"]["spec"]
        (self.container,) = spec["containers"]
        self.ports = {p["name"]: (p["containerPort"], free_port()) for p in self.container["ports"]}
        self.folders: dict[str, Path] = {}
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for mount in self.container["volumeMounts"]:
            self.folders[mount["mountPath"]] = self.volume(mount["name"], volumes)
        for folder in self.folders.values():
            for file in folder.glob("countersign.yaml"):
                file.write_text(self.here(file.read_text()))
        entry, variables = image()
        for variable in self.container.get("env", []):
            variables[variable["name"]] = self.value(variable)
        self.env = {name: self.here(value) for name, value in variables.items()}
        assert entry == ["/countersign"]
        args = [self.here(arg) for arg in self.container["args"]]
        self.command = [BINARY, *args]
        self.log = (self.home / "log").open("ab+")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, env=self.env, stdout=self.log, stderr=self.log, cwd=self.home
        )

    def volume(self, name: str, volumes: dict[str, Object]) -> Path:
        """The folder that stands for a volume, with what the kubelet puts there."""
        volume = volumes.get(name)
        if volume is None:
            assert name in [
                c["metadata"]["name"] for c in self.cluster.spec["volumeClaimTemplates"]
            ]
            return self.folder(self.home / name)
        if claim := volume.get("persistentVolumeClaim"):
            return self.folder(self.cluster.home / claim["claimName"])
        folder = self.folder(self.home / name)
        if source := volume.get("configMap"):
            contents, mode = self.cluster.config_maps[source["name"]], 0o644
        else:
            source = volume["secret"]
            contents, mode = self.cluster.secrets[source["secretName"]], source["defaultMode"]
        items = source.get("items") or [{"key": key, "path": key} for key in contents]
        for item in items:
            file = folder / item["path"]
            file.unlink(missing_ok=True)
            file.write_text(contents[item["key"]])
            file.chmod(mode)
        return folder

    @staticmethod
    def folder(path: Path) -> Path:
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def value(self, variable: Object) -> str:
        if "value" in variable:
            return str(variable["value"])
        reference = variable["valueFrom"]["secretKeyRef"]
        return self.cluster.secrets[reference["name"]][reference["key"]]

    def here(self, text: str) -> str:
        """The text with the paths and ports of this machine."""
        for path, folder in self.folders.items():
            text = re.sub(rf"(?<![\w/.]){re.escape(path)}(?=/|$)", str(folder), text)
        for inside, outside in self.ports.values():
            text = text.replace(f"0.0.0.0:{inside}", f"127.0.0.1:{outside}")
        return text

    def url(self, port: str = "http", scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.ports[port][1]}"

    def probe(self, kind: str) -> int:
        """The status that a probe of the container gets, or 0 if nobody answers. Like the kubelet
        it does not verify certificates."""
        request = self.container[kind]["httpGet"]
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        url = self.url(request["port"], request["scheme"].lower()) + request["path"]
        try:
            with urllib.request.urlopen(url, timeout=5, context=unverified) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def wait(self, kind: str, status: int = 200, restarts: int = 0) -> None:
        """Waits for a status of a probe. A server that ends is started again, as often
        as allowed."""
        deadline = time.monotonic() + 30
        while (got := self.probe(kind)) != status:
            if self.process.poll() is not None:
                assert restarts, self.output()
                restarts -= 1
                self.start()
            assert time.monotonic() < deadline, f"{kind} gets {got}: {self.output()}"
            time.sleep(0.1)

    def run(self, *args: str, stdin: str = "") -> str:
        """What kubectl exec does: a command with the variables of the container."""
        run = subprocess.run(
            [BINARY, *args], env=self.env, input=stdin, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def output(self) -> str:
        return (self.home / "log").read_text()

    def call(self, key: str, method: str, path: str, body: Object | None = None) -> Object:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url() + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            decoded: Object = json.load(answer)
        return decoded

    def seal(self, key: str) -> str:
        """The id of the receipt of a chain with one action."""
        chain = self.call(key, "POST", "/v1/chains", {"name": "chart"})["id"]
        action: Object = {"agent_name": "clerk", "action_type": "tool_call", "action_name": "look"}
        action["payload"] = {"order": 7}
        self.call(key, "POST", f"/v1/chains/{chain}/events", action)
        done = self.call(key, "POST", f"/v1/chains/{chain}/complete")
        return str(done["receipt"]["receipt_id"])

    def first_key(self) -> str:
        found = re.search(r"csk_\w+", self.output())
        assert found, self.output()
        return found[0]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        self.log.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[Object], Cluster]]:
    clusters: list[Cluster] = []

    def make(values: Object) -> Cluster:
        clusters.append(Cluster(tmp_path, values))
        return clusters[-1]

    yield make
    for made in clusters:
        made.stop()


@pytest.fixture
def notes(tmp_path: Path) -> Callable[[Object], str]:
    """The text that Helm shows after an installation. It shows it only with a cluster, so a
    template of a copy of the chart takes its place."""

    def read(values: Object) -> str:
        copy = tmp_path / "chart"
        shutil.copytree(CHART, copy)
        text = (copy / "templates" / "NOTES.txt").read_text()
        (copy / "templates" / "NOTES.txt").unlink()
        (copy / "templates" / "notes.yaml").write_text(
            f'{{{{- define "notes" }}}}{text}{{{{ end -}}}}\n'
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: notes\n"
            'data:\n  text: {{ include "notes" . | toJson }}\n'
        )
        return str(pick(render(values, copy), "ConfigMap", "notes")["data"]["text"])

    return read
