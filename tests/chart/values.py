"""The values that the tests render the chart with."""

from __future__ import annotations

from typing import Any

POSTGRES: dict[str, Any] = {"replicas": 2, "database": {"existingSecret": "countersign-database"}}

# Everything that can be switched on. The witness and the certificates are filled in by those who
# start it.
EVERYTHING: dict[str, Any] = {
    "replicas": 3,
    "image": {"repository": "registry.example.com/countersign", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": ["registry"],
    "database": {"existingSecret": "countersign-database", "key": "address"},
    "data": {"size": "1Gi", "storageClass": "fast", "accessMode": "ReadWriteOncePod"},
    "keys": {"storageClass": "shared", "size": "1Gi"},
    "publicUrl": "https://countersign.example.com",
    "instanceName": "example",
    "trustedProxies": ["10.0.0.0/8", "fd00::/8"],
    "publicRate": 0,
    "failureRate": 2.5,
    "webhooksAllowPrivate": True,
    "logLevel": "debug",
    "logFormat": "text",
    "otlpEndpoint": "http://127.0.0.1:1",
    "mail": {"existingSecret": "countersign-mail"},
    "sso": {
        "issuer": "https://id.example.com",
        "clientId": "countersign",
        "existingSecret": "countersign-sso",
        "key": "secret",
        "claim": "sub",
        "name": "Example",
    },
    "slack": {
        "existingSecret": "countersign-slack",
        "tokenKey": "bot",
        "signingSecretKey": "secret",
    },
    "witnesses": ["witness.example.com/w1+00000000+AAAA=https://witness.example.com"],
    "anchors": {
        "tsaUrl": "http://127.0.0.1:1/tsa",
        "tsaRootsConfigMap": "authority",
        "tsaRootsKey": "ca.crt",
        "tsaPolicy": "1.2.3.4",
        "otsCalendars": ["http://127.0.0.1:1/calendar"],
        "bitcoinHeaders": "rpc+http://127.0.0.1:1?cookie=/data/cookie",
    },
    "prices": {"existingConfigMap": "prices", "key": "table.json"},
    "tls": {"existingSecret": "countersign-tls"},
    "extraArgs": ["--log-level=warn"],
    "extraEnv": [
        {"name": "GOGC", "value": "200"},
        {"name": "EXTRA", "valueFrom": {"secretKeyRef": {"name": "extra", "key": "text"}}},
    ],
    "extraVolumes": [{"name": "extra", "configMap": {"name": "extra"}}],
    "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
    "service": {"type": "LoadBalancer", "port": 443, "annotations": {"example.com/a": "b"}},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "countersign.example.com",
        "tlsSecret": "countersign-ingress",
        "annotations": {"nginx.ingress.kubernetes.io/proxy-read-timeout": "75"},
    },
    "metrics": {
        "enabled": True,
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        "egress": [{"ports": [{"port": 5432}]}],
    },
    "topologySpread": {"whenUnsatisfiable": "DoNotSchedule"},
    "serviceAccountName": "countersign",
    "podAnnotations": {"example.com/a": "b"},
    "podLabels": {"team": "agents"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
}

SETS: dict[str, dict[str, Any]] = {
    "default": {},
    "embedded": {
        "metrics": {"enabled": True},
        "mail": {"existingSecret": "mail"},
        "logLevel": "warn",
    },
    "stopped": {"replicas": 0},
    "postgres": POSTGRES,
    "one on postgres": {**POSTGRES, "replicas": 1, "keys": {"existingClaim": "countersign-keys"}},
    "everything": EVERYTHING,
}
