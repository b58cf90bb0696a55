"""The Kubernetes manifests, as tests read them."""

from pathlib import Path
from typing import Any

import yaml

BASE = Path(__file__).parents[3] / "deploy" / "kubernetes"
VERSION = "1.34"
CALLS = {("gateway", "scheduler"), ("scheduler", "worker"), ("scheduler", "drafter")}
NAME = "app.kubernetes.io/name"


def load(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


KUSTOMIZATION = load(BASE / "kustomization.yaml")[0]
MANIFESTS = [manifest for name in KUSTOMIZATION["resources"] for manifest in load(BASE / name)]
WORKLOADS = {
    manifest["metadata"]["name"]: manifest
    for manifest in MANIFESTS
    if manifest["kind"] in ("Deployment", "StatefulSet")
}


def manifests(kind: str) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in MANIFESTS if item["kind"] == kind}


def pod(service: str) -> dict[str, Any]:
    return WORKLOADS[service]["spec"]["template"]["spec"]


def container(service: str) -> dict[str, Any]:
    (only,) = pod(service)["containers"]
    return only


def environment(service: str) -> dict[str, str]:
    """Returns what the service's settings are read from, with the pod's own index put in."""
    literals = {item["name"]: item["literals"] for item in KUSTOMIZATION["configMapGenerator"]}
    values = dict(literal.split("=", 1) for literal in literals[service])
    for variable in container(service).get("env", []):
        if "value" in variable:
            values[variable["name"]] = variable["value"].replace("$(POD_INDEX)", "0")
    return values
