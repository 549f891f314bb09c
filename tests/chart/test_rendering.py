"""What the chart renders, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from conftest import CHART, ROOT, Object, Refused, helm, pick, render
from values import EVERYTHING, POSTGRES, SETS

each_set = pytest.mark.parametrize("values", SETS.values(), ids=SETS.keys())


def oldest_kubernetes() -> str:
    wanted = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    found = re.fullmatch(r">=(\d+\.\d+)\.0-0", wanted)
    assert found
    return found[1]


def service_monitor_schema() -> Object:
    """The schema of the operator's own definition, which refuses what it does not know."""
    folder = Path(os.environ["COUNTERSIGN_TEST_OPERATOR"]) / "example" / "prometheus-operator-crd"
    text = (folder / "monitoring.coreos.com_servicemonitors.yaml").read_text()
    (version,) = yaml.safe_load(text)["spec"]["versions"]
    schema: Object = version["schema"]["openAPIV3Schema"]

    def close(part: Any) -> None:
        if isinstance(part, dict):
            if "properties" in part:
                part.setdefault("additionalProperties", False)
            for below in part.values():
                close(below)

    for name, part in schema["properties"].items():
        if name != "metadata":
            close(part)
    return schema


# Every object that the chart renders is one that Kubernetes accepts, without a member that it
# would ignore: the oldest version that the chart promises, and the newest that there is.
@each_set
def test_objects_fit_their_schemas(values: Object) -> None:
    for rendered in render(values):
        if rendered["kind"] == "ServiceMonitor":
            jsonschema.validate(rendered, service_monitor_schema())
            continue
        for version in (oldest_kubernetes(), kubernetes_validate.latest_version()):
            kubernetes_validate.validate(rendered, version, strict=True)


# The validators of the test above refuse what is wrong: a misspelt member, a wrong type.
def test_schemas_refuse_what_is_wrong() -> None:
    objects = render(EVERYTHING)
    pod = pick(objects, "StatefulSet")
    pod["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    monitor = pick(objects, "ServiceMonitor")
    monitor["spec"]["endpoints"][0]["intervall"] = "30s"
    with pytest.raises(jsonschema.ValidationError, match="intervall"):
        jsonschema.validate(monitor, service_monitor_schema())


# What refers to something else in the release refers to something that is there.
@each_set
def test_objects_fit_together(values: Object) -> None:
    objects = render(values)
    workload = pick(objects, "StatefulSet")["spec"]
    template = workload["template"]
    labels, spec = template["metadata"]["labels"], template["spec"]
    (container,) = spec["containers"]
    for rendered in objects:
        if rendered["kind"] == "ServiceMonitor":
            wanted = rendered["spec"]["selector"]["matchLabels"].items()
            (service,) = [
                o
                for o in objects
                if o["kind"] == "Service" and wanted <= o["metadata"]["labels"].items()
            ]
            (port,) = service["spec"]["ports"]
            assert [e["port"] for e in rendered["spec"]["endpoints"]] == [port["name"]]
            continue
        body = rendered.get("spec", {})
        selector = body.get("selector") or body.get("podSelector") or {}
        assert selector.get("matchLabels", selector).items() <= labels.items()
    ports = {port["name"] for port in container["ports"]}
    for service in (o for o in objects if o["kind"] == "Service"):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for ingress in (o for o in objects if o["kind"] == "Ingress"):
        (rule,) = ingress["spec"]["rules"]
        (path,) = rule["http"]["paths"]
        served = pick(objects, "Service", path["backend"]["service"]["name"])["spec"]["ports"]
        assert path["backend"]["service"]["port"]["number"] in [p["port"] for p in served]
    volumes = [v["name"] for v in spec.get("volumes", [])]
    volumes += [c["metadata"]["name"] for c in workload["volumeClaimTemplates"]]
    assert sorted(volumes) == sorted(m["name"] for m in container["volumeMounts"])
    assert len(set(volumes)) == len(volumes)
    for name in [o["metadata"]["name"] for o in objects] + list(labels.values()):
        assert len(name) <= 63


# Whatever the values are, the server runs as nobody in particular, with a read-only root, without
# rights and without a token, and the kubelet leaves its key file alone.
@each_set
def test_pods_have_no_rights(values: Object) -> None:
    spec = pick(render(values), "StatefulSet")["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


# No Secret is rendered, and no secret is a value: what holds one is only referred to.
@each_set
def test_no_secret_is_rendered(values: Object) -> None:
    objects = render(values)
    assert "Secret" not in [o["kind"] for o in objects]
    (container,) = pick(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    for variable in container.get("env", []):
        if variable["name"] in ("COUNTERSIGN_DATABASE", "COUNTERSIGN_SMTP_URL"):
            assert list(variable["valueFrom"]) == ["secretKeyRef"]


# With PostgreSQL, all replicas have one key file on a volume that several nodes can mount and that
# an uninstallation leaves alone, and each has a heads file on a volume of its own.
def test_replicas_share_keys_and_not_heads() -> None:
    objects = render(POSTGRES)
    workload = pick(objects, "StatefulSet")["spec"]
    (container,) = workload["template"]["spec"]["containers"]
    variables = {v["name"]: v.get("value") for v in container["env"]}
    assert variables["COUNTERSIGN_KEYS"] == "/keys/keys.json"
    assert variables["COUNTERSIGN_HEADS"] == "/data/heads.json"
    mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
    (keys,) = [v for v in workload["template"]["spec"]["volumes"] if v["name"] == mounts["/keys"]]
    claim = pick(objects, "PersistentVolumeClaim", keys["persistentVolumeClaim"]["claimName"])
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert mounts["/data"] in [c["metadata"]["name"] for c in workload["volumeClaimTemplates"]]


# The client's secret of single sign-on comes as a file from the key of the Secret that the values
# name, closed to other users, as the server demands.
def test_client_secret_is_a_file() -> None:
    objects = render({"sso": SSO, "publicUrl": "https://countersign.example.com"})
    config = yaml.safe_load(pick(objects, "ConfigMap")["data"]["countersign.yaml"])
    assert config["oidc-client-secret-file"] == "/etc/countersign/sso/client-secret"
    spec = pick(objects, "StatefulSet")["spec"]["template"]["spec"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == "sso"]
    assert volume["secret"] == {
        "secretName": "sso",
        "defaultMode": 0o440,
        "items": [{"key": "client-secret", "path": "client-secret"}],
    }


# So do the token and the signing secret of a Slack app.
def test_secrets_of_slack_are_files() -> None:
    slack = {"existingSecret": "slack"}
    objects = render({"slack": slack, "publicUrl": "https://countersign.example.com"})
    config = yaml.safe_load(pick(objects, "ConfigMap")["data"]["countersign.yaml"])
    assert config["slack-token-file"] == "/etc/countersign/slack/token"
    assert config["slack-signing-secret-file"] == "/etc/countersign/slack/signing-secret"
    spec = pick(objects, "StatefulSet")["spec"]["template"]["spec"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == "slack"]
    assert volume["secret"] == {
        "secretName": "slack",
        "defaultMode": 0o440,
        "items": [
            {"key": "token", "path": "token"},
            {"key": "signing-secret", "path": "signing-secret"},
        ],
    }


# One replica has no disruption budget, which could only block a node; several have one.
def test_disruption_budget() -> None:
    assert "PodDisruptionBudget" not in [o["kind"] for o in render({})]
    budget = pick(render(POSTGRES), "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


# Pods restart when a setting has changed, and do not when only the number of replicas has.
def test_changed_settings_restart_pods() -> None:
    def pod(values: Object) -> Object:
        template: Object = pick(render(values), "StatefulSet")["spec"]["template"]
        return template

    assert pod({"logLevel": "warn"}) != pod({"logLevel": "error"})
    assert pod({**POSTGRES, "replicas": 1}) == pod({**POSTGRES, "replicas": 5})


# What was applied with an earlier deploy/kubernetes.yaml can be replaced with the one of today:
# Kubernetes refuses to change these members.
def test_what_cannot_be_changed_has_not_changed() -> None:
    spec = pick(render({}), "StatefulSet")["spec"]
    assert spec["serviceName"] == "countersign"
    assert "podManagementPolicy" not in spec
    assert spec["selector"] == {"matchLabels": {"app.kubernetes.io/name": "countersign"}}
    assert spec["volumeClaimTemplates"] == [
        {
            "metadata": {"name": "data"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "10Gi"}},
            },
        }
    ]


SSO = {"issuer": "https://id.example.com", "clientId": "a", "existingSecret": "sso"}

# values and what the refusal says.
WRONG: list[tuple[Object, str]] = [
    ({"replica": 2}, "additional properties 'replica' not allowed"),
    ({"image": {"tagg": "1"}}, "additional properties 'tagg' not allowed"),
    ({"replicas": "2"}, "/replicas"),
    ({"replicas": -1}, "/replicas"),
    ({"replicas": 2}, "database.existingSecret"),
    ({"database": {"url": "postgres://user:password@host/database"}}, "'url' not allowed"),
    ({"database": {"existingSecret": "postgres://host/database"}}, "/database/existingSecret"),
    ({"data": {"accessMode": "ReadWriteMany"}}, "/data/accessMode"),
    ({"data": {"size": "10"}}, "/data/size"),
    ({"keys": {"existingSecret": "keys"}}, "'existingSecret' not allowed"),
    ({"image": {"tag": 1.0}}, "/image/tag"),
    ({"image": {"digest": "0" * 64}}, "/image/digest"),
    ({"logLevel": "loud"}, "/logLevel"),
    ({"publicUrl": "countersign.example.com"}, "/publicUrl"),
    ({"publicRate": -1}, "/publicRate"),
    ({"trustedProxies": ["10.0.0.1"]}, "/trustedProxies/0"),
    ({"sso": {"issuer": "id.example.com"}}, "/sso/issuer"),
    ({"sso": {"issuer": "https://id.example.com"}}, "sso.clientId and sso.existingSecret"),
    ({"sso": SSO}, "an ingress, or a publicUrl with https"),
    ({"sso": SSO, "publicUrl": "http://a.example.com"}, "an ingress, or a publicUrl with https"),
    ({"sso": {"clientId": "countersign"}}, "need sso.issuer"),
    ({"sso": {"clientSecret": "secret"}}, "'clientSecret' not allowed"),
    ({"extraVolumes": [{"name": "sso", "emptyDir": {}}]}, "/extraVolumes/0"),
    ({"slack": {"existingSecret": "slack"}}, "an ingress, or a publicUrl with https"),
    ({"slack": {"token": "secret"}}, "'token' not allowed"),
    ({"witnesses": ["https://witness.example.com"]}, "/witnesses/0"),
    ({"anchors": {"tsaUrl": "https://tsa.example.com"}}, "tsaRootsConfigMap"),
    ({"anchors": {"tsaUrl": "https://user:password@tsa.example.com"}}, "/anchors/tsaUrl"),
    ({"anchors": {"bitcoinHeaders": "esplora+https://b.example.com/api"}}, "otsCalendars"),
    ({"ingress": {"enabled": True, "host": "a.example.com"}}, "tlsSecret"),
    (
        {"ingress": {"enabled": True, "host": "a.example.com", "tlsSecret": "tls"}},
        "trustedProxies",
    ),
    ({"metrics": {"serviceMonitor": {"enabled": True}}}, "metrics.enabled"),
    ({"metrics": {"enabled": True, "port": 8080}}, "metrics.port"),
    ({"networkPolicy": {"from": []}}, "/networkPolicy/from"),
    ({**POSTGRES, "networkPolicy": {"enabled": True}}, "networkPolicy.egress"),
    ({"extraArgs": ["--database=postgres://host/database"]}, "/extraArgs/0"),
    ({"extraArgs": ["--smtp-url", "smtp://host"]}, "/extraArgs/0"),
    ({"extraEnv": [{"name": "COUNTERSIGN_DATABASE", "value": "x"}]}, "/extraEnv/0/name"),
    ({"extraEnv": [{"name": "A"}]}, "/extraEnv/0"),
    ({"extraVolumes": [{"name": "keys", "emptyDir": {}}]}, "/extraVolumes/0"),
    ({"resources": {"memory": "1Gi"}}, "'memory' not allowed"),
    ({"podLabels": {"app.kubernetes.io/name": "other"}}, "/podLabels"),
]


# A value that is unknown, wrong or dangerous is refused, and the refusal names it.
@pytest.mark.parametrize(("values", "says"), WRONG, ids=[json.dumps(w[0])[:60] for w in WRONG])
def test_wrong_values_are_refused(values: Object, says: str) -> None:
    with pytest.raises(Refused) as refused:
        render(values)
    assert says in str(refused.value)


def paths(values: Any, of: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{of}{name}"
        if isinstance(value, dict):
            yield from paths(value, f"{of}{name}.")


def schema_paths(schema: Object, of: str = "") -> Iterator[str]:
    for name, part in schema.get("properties", {}).items():
        if part is False:
            continue
        yield f"{of}{name}"
        yield from schema_paths(part, f"{of}{name}.")


# The schema knows the values of values.yaml and no others, so each is explained there.
def test_schema_and_values_agree() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    free = ("podAnnotations.", "resources.requests.", "resources.limits.")
    known = {path for path in paths(values) if not path.startswith(free)}
    assert set(schema_paths(schema)) - {"global"} == known


# Helm's own linter has nothing to say.
@each_set
def test_lint(values: Object, tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    helm("lint", "--strict", "--quiet", str(CHART), "--values", str(file))


# The chart and the client have one version, which is that of the image.
def test_versions_agree() -> None:
    text = (ROOT / "sdk/python/src/countersign/_version.py").read_text()
    found = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    assert found
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == found[1]
    (container,) = pick(render({}), "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"localhost/countersign:{found[1]}"


# deploy/kubernetes.yaml is what the chart renders today.
def test_manifest_is_current() -> None:
    made = subprocess.run(
        [ROOT / "scripts/manifest", "--print"], capture_output=True, text=True, check=True
    )
    assert (ROOT / "deploy/kubernetes.yaml").read_text() == made.stdout


# The values that docs/deploying.md shows are accepted, and make what it says.
def test_documented_values() -> None:
    text = (ROOT / "docs/deploying.md").read_text()
    (shown,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    objects = render(yaml.safe_load(shown))
    assert pick(objects, "StatefulSet")["spec"]["replicas"] == 2
    assert pick(objects, "Ingress")["spec"]["tls"][0]["secretName"] == "countersign-tls"
    config = yaml.safe_load(pick(objects, "ConfigMap")["data"]["countersign.yaml"])
    assert config["public-url"] == "https://countersign.example.com"


# The values for single sign-on that docs/sso.md shows are accepted beside those of
# docs/deploying.md, and become settings of the server.
def test_documented_values_for_single_sign_on() -> None:
    values = {}
    for document in ("docs/deploying.md", "docs/sso.md"):
        (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
        values |= yaml.safe_load(shown)
    config = yaml.safe_load(pick(render(values), "ConfigMap")["data"]["countersign.yaml"])
    assert config["oidc-issuer"] == "https://id.example.com"
    assert config["oidc-client-id"] == "countersign"


# The notes after an installation say where the key file is, and what a later replica needs.
def test_notes(notes: Callable[[Object], str]) -> None:
    text = notes(POSTGRES)
    assert "keys.json on the claim countersign-keys" in text
    assert "kubectl -n agents exec countersign-0 -- /countersign heads export |" in text


# They also say which addresses others must be given.
def test_notes_with_addresses(notes: Callable[[Object], str]) -> None:
    address = "https://countersign.example.com"
    text = notes({"publicUrl": address, "sso": SSO, "slack": {"existingSecret": "slack"}})
    assert address + "/sign-in/sso/callback" in text
    assert address + "/v1/slack/interactions" in text
