"""The Helm chart: rendered by Helm, checked against the schemas of Kubernetes, and against what the image offers. No cluster is needed."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.running import ROOT
from tests.packaging.test_dockerfile import last_stage

CHART = ROOT / "deploy" / "chart" / "moongate"
SCHEMAS = "1.34"
"""The version of Kubernetes whose schemas check the rendered chart."""

SEVERAL: dict[str, Any] = {
    "autoscaling": {"enabled": True},
    "config": {
        "storage": {"url": "postgresql://moongate:${DATABASE_PASSWORD}@db/moongate", "installationKey": "${INSTALLATION_KEY}"},
        "tasks": {"engine": "temporal", "temporal": {"address": "temporal-frontend.temporal:7233", "taskQueue": "hub"}},
    },
    "env": {
        "DATABASE_PASSWORD": {"secret": "database", "key": "password"},
        "INSTALLATION_KEY": {"secret": "moongate", "key": "installation-key"},
    },
    "plainEnv": {"ENABLE_INSTRUMENTATION": True},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "hub-tls"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "podAnnotations": {"note": "x"},
}


METRICS: dict[str, Any] = {
    "metrics": {
        "enabled": True,
        "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "config": {"server": {"name": "kept"}},
}


def helm() -> str | None:
    """The path of Helm: where `tests/packaging/setup.sh` installs it, or on PATH."""
    home = Path(os.environ.get("PACKAGING_HOME", Path.home() / ".cache" / "moongate-packaging"))
    installed = home / "helm" / "helm"
    return str(installed) if installed.exists() else shutil.which("helm")


needs_helm = pytest.mark.skipif(helm() is None, reason="Helm is missing: make packaging")
pytestmark = pytest.mark.packaging


def run(*arguments: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    given = ["--values", "-"] if values is not None else []
    argv = [str(helm()), *arguments, *given]
    return subprocess.run(argv, input=json.dumps(values or {}), capture_output=True, text=True, timeout=60, check=False)


def rendered(values: dict[str, Any] | None = None) -> dict[str, Any]:
    """The objects that Helm renders, by kind; each kind occurs once."""
    done = run("template", "hub", str(CHART), values=values or {})
    assert done.returncode == 0, done.stderr
    objects = [found for found in yaml.safe_load_all(done.stdout) if found]
    assert len({found["kind"] for found in objects}) == len(objects)
    return {found["kind"]: found for found in objects}


@needs_helm
@pytest.mark.parametrize("values", [{}, SEVERAL, METRICS, {"tlsSecret": "hub-tls"}], ids=["defaults", "several", "metrics", "tls"])
def test_linter_of_helm_finds_no_error(values: dict[str, Any]) -> None:
    done = run("lint", "--strict", str(CHART), values=values)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="kubernetes-validate is missing: make packaging")
@pytest.mark.parametrize("values", [{}, SEVERAL, METRICS, {"tlsSecret": "hub-tls"}], ids=["defaults", "several", "metrics", "tls"])
def test_rendered_objects_are_valid_in_kubernetes(values: dict[str, Any]) -> None:
    program = "import json, sys, kubernetes_validate as k; [k.validate(found, sys.argv[1], strict=True) for found in json.load(sys.stdin)]"
    found = rendered(values)
    found.pop("ServiceMonitor", None)  # Kubernetes itself has no schema for it
    objects = json.dumps(list(found.values()))
    argv = [sys.executable, "-W", "ignore", "-c", program, SCHEMAS]
    done = subprocess.run(argv, input=objects, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    broken = objects.replace('"readOnlyRootFilesystem"', '"readOnlyRootFileSystem"')
    assert subprocess.run(argv, input=broken, capture_output=True, text=True, timeout=60, check=False).returncode != 0


@needs_helm
def test_one_gateway_needs_no_disruption_budget_and_several_have_one() -> None:
    one, several = rendered(), rendered(SEVERAL)
    assert set(several) - set(one) == {"HorizontalPodAutoscaler", "PodDisruptionBudget", "Ingress"}
    assert set(one) - set(several) == {"PersistentVolumeClaim"}
    assert one["Deployment"]["spec"]["strategy"]["type"] == "Recreate" and one["Deployment"]["spec"]["replicas"] == 1
    assert several["Deployment"]["spec"]["strategy"]["type"] == "RollingUpdate" and "replicas" not in several["Deployment"]["spec"]


@needs_helm
def test_gateways_without_a_shared_installation_key_share_a_volume() -> None:
    values = {"replicas": 2, "persistence": {"accessMode": "ReadWriteMany"}, "config": {"storage": {"url": "postgresql://db/moongate"}}}
    found = rendered(values)
    (shared,) = [volume for volume in found["Deployment"]["spec"]["template"]["spec"]["volumes"] if volume["name"] == "state"]
    assert shared["persistentVolumeClaim"]["claimName"] == found["PersistentVolumeClaim"]["metadata"]["name"]
    (own,) = [volume for volume in rendered(SEVERAL)["Deployment"]["spec"]["template"]["spec"]["volumes"] if volume["name"] == "state"]
    assert own["emptyDir"] == {"sizeLimit": "1Gi"}


@needs_helm
def test_replaced_pods_leave_no_gap_and_finish_their_calls() -> None:
    spec = rendered(SEVERAL)["Deployment"]["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod = spec["template"]["spec"]
    (gateway,) = pod["containers"]
    assert "lifecycle" not in gateway, "the gateway itself waits after SIGTERM"
    http = json.loads(rendered(SEVERAL)["ConfigMap"]["data"]["gateway.json"])["server"]["http"]
    assert http["leaveSeconds"] == 5
    assert pod["terminationGracePeriodSeconds"] > http["leaveSeconds"] + 10


@needs_helm
def test_pods_run_the_image_as_its_user_without_rights() -> None:
    spec = rendered(SEVERAL)["Deployment"]["spec"]["template"]["spec"]
    image = last_stage()
    context = spec["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == image["USER"]
    assert not spec["automountServiceAccountToken"]
    containers = [*spec["initContainers"], *spec["containers"]]
    assert len(containers) == 2
    for container in containers:
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] and rights["runAsNonRoot"] and not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {image["WORKDIR"], image["VOLUME"], "/tmp"}
    (gateway,) = spec["containers"]
    assert [str(port["containerPort"]) for port in gateway["ports"]] == [image["EXPOSE"]]
    assert json.dumps(gateway["args"]) == image["CMD"]
    probes = {name: gateway[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes == {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}


@needs_helm
def test_secrets_are_references_only() -> None:
    objects = rendered(SEVERAL)
    assert "Secret" not in objects
    (gateway,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    found = {variable["name"]: variable for variable in gateway["env"]}
    assert found["DATABASE_PASSWORD"] == {
        "name": "DATABASE_PASSWORD",
        "valueFrom": {"secretKeyRef": {"name": "database", "key": "password"}},
    }
    assert found["ENABLE_INSTRUMENTATION"]["value"] == "true"
    assert "${DATABASE_PASSWORD}" in objects["ConfigMap"]["data"]["gateway.json"]


@needs_helm
def test_configuration_in_the_config_map_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    path.write_text(rendered(SEVERAL)["ConfigMap"]["data"]["gateway.json"])
    program = importlib.import_module("gateway.config.load")
    loaded = program.load_config(path, environ={"DATABASE_PASSWORD": "x", "INSTALLATION_KEY": bytes(range(32)).hex()})
    assert loaded.config.storage.url == "postgresql://moongate:x@db/moongate"


@needs_helm
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"replicas": 2}, "set config.storage.url to a PostgreSQL server"),
        ({"replicas": 2, "config": {"storage": {"url": "postgresql://db/moongate"}}}, "set config.storage.installationKey to a reference"),
        ({"config": {"server": {"http": {"drainSeconds": 60}}}}, "set terminationGracePeriodSeconds above 65"),
        ({"config": {"server": {"http": {"leaveSeconds": 20}}}}, "set terminationGracePeriodSeconds above 30"),
        (SEVERAL | {"tlsSecret": "hub-tls"}, "set ingress.tlsSecret instead of tlsSecret"),
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, "set metrics.enabled to true"),
        (METRICS | {"service": {"type": "NodePort"}}, "needs service.type ClusterIP"),
        ({"metrics": {"port": 8765}}, "/metrics/port"),
        ({"replica": 2}, "replica"),
        ({"env": {"TOKEN": "secret-text"}}, "/env/TOKEN"),
        ({"image": {"repository": ""}}, "/image/repository"),
    ],
)
def test_wrong_values_are_refused_with_their_name(values: dict[str, Any], text: str) -> None:
    done = run("template", "hub", str(CHART), values=values)
    assert done.returncode != 0 and text in done.stderr, done.stderr


@needs_helm
def test_metrics_have_a_port_and_a_monitor_only_if_enabled(tmp_path: Path) -> None:
    plain = rendered()
    assert "ServiceMonitor" not in plain and "9464" not in json.dumps(plain)
    found = rendered(METRICS)
    (gateway,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "metrics", "containerPort": 9464, "protocol": "TCP"} in gateway["ports"]
    assert {"name": "metrics", "port": 9464, "targetPort": "metrics", "protocol": "TCP"} in found["Service"]["spec"]["ports"]
    monitor = found["ServiceMonitor"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1" and monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= found["Service"]["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"] == [{"port": "metrics", "path": "/metrics", "interval": "30s"}]
    rules = found["NetworkPolicy"]["spec"]["ingress"]
    assert rules[1] == {"from": METRICS["metrics"]["from"], "ports": [{"port": "metrics", "protocol": "TCP"}]}
    assert rules[0]["ports"] == [{"port": "http", "protocol": "TCP"}]
    path = tmp_path / "gateway.json"
    path.write_text(found["ConfigMap"]["data"]["gateway.json"])
    loaded = importlib.import_module("gateway.config.load").load_config(path, environ={})
    assert loaded.config.telemetry.prometheus == "0.0.0.0:9464" and loaded.config.server.name == "kept"


@needs_helm
def test_pods_may_forward_requests_to_each_other() -> None:
    found = rendered({"networkPolicy": {"from": [{"namespaceSelector": {}}]}})
    pods = {"podSelector": {"matchLabels": found["Deployment"]["spec"]["selector"]["matchLabels"]}}
    rules, port = found["NetworkPolicy"]["spec"], [{"port": "http", "protocol": "TCP"}]
    assert rules["ingress"][0] == {"from": [{"namespaceSelector": {}}, pods], "ports": port}
    assert {"to": [pods], "ports": port} in rules["egress"]


@needs_helm
def test_probes_use_https_if_the_gateway_serves_it() -> None:
    tls = {"certificate": "/tls/tls.crt", "key": "/tls/tls.key"}
    for config, scheme in (({}, "HTTP"), ({"server": {"http": {"tls": tls}}}, "HTTPS")):
        (gateway,) = rendered({"config": config})["Deployment"]["spec"]["template"]["spec"]["containers"]
        assert {gateway[name]["httpGet"]["scheme"] for name in ("startupProbe", "livenessProbe", "readinessProbe")} == {scheme}


@needs_helm
def test_gateway_serves_https_with_the_certificate_of_a_secret(tmp_path: Path) -> None:
    found = rendered({"tlsSecret": "hub-tls", "config": {"server": {"name": "kept"}}})
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "tls"]
    assert volume["secret"] == {"secretName": "hub-tls", "defaultMode": 0o440}
    (gateway,) = pod["containers"]
    (mount,) = [mount for mount in gateway["volumeMounts"] if mount["name"] == "tls"]
    assert mount["readOnly"] and gateway["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    path = tmp_path / "gateway.json"
    path.write_text(found["ConfigMap"]["data"]["gateway.json"])
    server = importlib.import_module("gateway.config.load").load_config(path, environ={}).config.server
    assert (server.name, server.http.leave_seconds) == ("kept", 5)
    assert {server.http.tls.certificate, server.http.tls.key} == {f"{mount['mountPath']}/tls.crt", f"{mount['mountPath']}/tls.key"}


@needs_helm
def test_service_for_the_outside_does_not_publish_metrics() -> None:
    found = rendered({"metrics": {"enabled": True}, "service": {"type": "LoadBalancer"}})
    assert [port["name"] for port in found["Service"]["spec"]["ports"]] == ["http"]


def test_versions_of_chart_and_package_agree() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version[1]


def test_every_value_is_in_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) | {"global"} == set(schema["properties"])
    for name, value in values.items():
        inner = schema["properties"][name].get("properties")
        assert inner is None or set(value) == set(inner), name
