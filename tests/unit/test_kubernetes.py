"""``deploy/kubernetes`` and ``docker-compose.yml``: they fit their schemas, and their parts agree with each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nexus_tasks.monitoring.definitions import METRICS
from nexus_tasks.settings import Settings

kubernetes_validate = pytest.importorskip("kubernetes_validate")
compose_spec = pytest.importorskip("compose_spec")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
SERVED = 35  # seconds: NEXUS_SHUTDOWN_GRACE, and 10 s in which the process ends
OF_ANOTHER_SCHEMA = {"Kustomization", "ScaledObject"}  # kustomize's and KEDA's


def documents() -> list[dict[str, Any]]:
    return [one for path in sorted(FOLDER.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())]


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [one for one in documents() if one["kind"] in kinds]


PODS = {one["metadata"]["name"]: one["spec"]["template"] for one in of_kind("Deployment", "Job")}


@pytest.mark.parametrize("version", ["1.29.0", "1.37.0"])
def test_every_manifest_fits_its_schema(version: str) -> None:
    for one in documents():
        if one["kind"] not in OF_ANOTHER_SCHEMA:
            kubernetes_validate.validate(one, version, strict=True)


def test_the_validator_refuses_a_field_that_kubernetes_does_not_know() -> None:
    [wrong] = [one for one in of_kind("Deployment") if one["metadata"]["name"] == "nexus-worker"]
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37.0", strict=True)


def test_every_file_is_applied_but_that_of_keda() -> None:
    [kustomization] = of_kind("Kustomization")
    files = {path.name for path in FOLDER.glob("*.yaml")}
    assert set(kustomization["resources"]) == files - {"kustomization.yaml", "scaling.yaml"}


@pytest.mark.parametrize("name", PODS)
def test_no_container_may_do_more_than_it_must(name: str) -> None:
    spec = PODS[name]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert container["image"] == "nexus-tasks"


def test_a_worker_has_time_to_give_its_runs_back() -> None:
    assert PODS["nexus-worker"]["spec"]["terminationGracePeriodSeconds"] > SERVED
    assert Settings.model_fields["shutdown_grace"].default + 10 == SERVED


@pytest.mark.parametrize("name", [name for name in PODS if name != "nexus-migration"])
def test_probes_ask_ports_that_are_served_and_a_restart_waits_for_no_server(name: str) -> None:
    [container] = PODS[name]["spec"]["containers"]
    ports = {one["name"] for one in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe].get("httpGet") or container[probe]["tcpSocket"]
        assert asked["port"] in ports
        asks_servers = probe == "readinessProbe" and name in ("nexus-worker", "nexus-beat")
        assert asked.get("path") in ({"/readyz"} if asks_servers else {None, "/livez"})


def test_a_service_has_pods_while_redis_or_postgres_is_away() -> None:
    """While a server is away, the API and MCP take messages. A pod whose readiness asks the server gets no request."""
    served = [service["metadata"]["name"] for service in of_kind("Service")]
    assert served
    for name in served:
        [container] = PODS[name]["spec"]["containers"]
        assert container["readinessProbe"].get("httpGet", {}).get("path") != "/readyz"


def test_selectors_find_their_pods() -> None:
    labels = [pod["metadata"]["labels"].items() for pod in PODS.values()]
    for one in of_kind("Deployment", "PodDisruptionBudget"):
        wanted = one["spec"]["selector"]["matchLabels"].items()
        assert any(wanted <= have for have in labels), one["metadata"]["name"]
    for one in of_kind("Service"):
        assert any(one["spec"]["selector"].items() <= have for have in labels)


def test_the_settings_exist() -> None:
    [config] = of_kind("ConfigMap")
    names = {f"NEXUS_{name.upper()}" for name in Settings.model_fields}
    assert set(config["data"]) <= names
    said = set(re.findall(r"NEXUS_\w+", (FOLDER / "settings.yaml").read_text()))
    assert said <= names


def test_scaling_asks_for_figures_that_exist_and_scales_the_workers() -> None:
    [scaled] = of_kind("ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] in PODS
    page = (ROOT / "docs" / "scaling.md").read_text()
    for trigger in scaled["spec"]["triggers"]:
        assert f"```promql\n{trigger['metadata']['query']}\n```" in page, "a test runs the page's queries"
        assert set(re.findall(r"nexus_\w+", trigger["metadata"]["query"])) <= METRICS.keys()


# --- Docker Compose ---------------------------------------------------------------------------------------------------
def check_compose(text: str) -> None:
    compose_spec.PyCompose.from_yaml(yaml.safe_dump(yaml.safe_load(text))).validate()  # without the merges of YAML


def test_the_compose_file_fits_its_schema() -> None:
    check_compose((ROOT / "docker-compose.yml").read_text())


def test_the_schema_of_compose_refuses_a_misspelt_key() -> None:
    text = (ROOT / "docker-compose.yml").read_text().replace("healthcheck:", "healthchek:")
    with pytest.raises(ValueError, match="healthchek"):
        check_compose(text)
