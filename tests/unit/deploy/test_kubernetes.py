"""The Kubernetes manifests: valid, hardened, true to the call graph and to the services' settings."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.unit.deploy.configs import CONFIGS
from tests.unit.deploy.manifests import (
    BASE,
    CALLS,
    KUSTOMIZATION,
    MANIFESTS,
    NAME,
    VERSION,
    WORKLOADS,
    container,
    environment,
    manifests,
    pod,
)


def identity(manifest: dict[str, Any]) -> str:
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


@pytest.mark.parametrize("manifest", MANIFESTS, ids=identity)
def test_every_manifest_keeps_to_its_schema(manifest) -> None:
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_a_field_that_does_not_exist_would_be_noticed() -> None:
    wrong = yaml.safe_load(yaml.safe_dump(WORKLOADS["gateway"]))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_every_file_is_listed() -> None:
    assert {path.name for path in BASE.glob("*.yaml")} == {"kustomization.yaml", *KUSTOMIZATION["resources"]}


def test_there_is_a_workload_an_account_and_an_image_for_each_service() -> None:
    assert WORKLOADS.keys() == CONFIGS.keys() == manifests("ServiceAccount").keys()
    assert {container(service)["image"] for service in CONFIGS} == {
        item["name"] for item in KUSTOMIZATION["images"]
    }


@pytest.mark.parametrize("service", CONFIGS)
def test_the_settings_are_settings_of_the_service(service) -> None:
    config = CONFIGS[service].from_env(environment(service))
    assert config.listen.host == "0.0.0.0"
    ports = {port["name"]: port["containerPort"] for port in container(service)["ports"]}
    assert ports == {"grpc": config.listen.grpc_port, "http": config.listen.http_port}


def test_a_drafter_that_may_come_to_the_workers_node_counts_as_sharing_its_cores() -> None:
    assert "affinity" not in pod("drafter")
    assert CONFIGS["scheduler"].from_env(environment("scheduler")).drafter_shares_cores


@pytest.mark.parametrize("service", CONFIGS)
def test_a_pod_is_given_longer_than_its_service_drains(service) -> None:
    pause = container(service).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    drain = CONFIGS[service].from_env(environment(service)).listen.drain_seconds
    assert pod(service)["terminationGracePeriodSeconds"] >= pause + drain + 5


@pytest.mark.parametrize("service", CONFIGS)
def test_a_pod_may_do_nothing_that_it_need_not(service) -> None:
    spec, security = pod(service), container(service)["securityContext"]
    assert spec["automountServiceAccountToken"] is False
    assert manifests("ServiceAccount")[service]["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert container(service)["resources"]["limits"]["memory"]


@pytest.mark.parametrize(
    ("service", "variable"),
    [("drafter", "OUTRIDER_DRAFTER_SNAPSHOT_DIR"), ("scheduler", "OUTRIDER_SCHEDULER_STATE_DIR")],
)
def test_what_is_learnt_lies_on_a_volume_of_its_pod(service, variable) -> None:
    mounts = {mount["mountPath"]: mount for mount in container(service)["volumeMounts"]}
    mount = mounts[environment(service)[variable]]
    claims = {claim["metadata"]["name"] for claim in WORKLOADS[service]["spec"]["volumeClaimTemplates"]}
    assert mount["name"] in claims
    assert not mount.get("readOnly")
    # Else every start gives the group the right to read what only the owner should.
    assert pod(service)["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize("service", CONFIGS)
def test_only_readiness_depends_on_peers(service) -> None:
    probes = container(service)
    port = next(port["containerPort"] for port in probes["ports"] if port["name"] == "grpc")
    assert probes["readinessProbe"]["grpc"] == {"port": port}
    assert probes["livenessProbe"]["grpc"] == {"port": port, "service": "liveness"}
    # A worker waits for nobody, and its weights take as long as they take.
    assert probes["startupProbe"]["grpc"].get("service", "") == ("" if service == "worker" else "liveness")


@pytest.mark.parametrize(("caller", "callee"), sorted(CALLS))
def test_a_callee_has_a_name_that_stays_while_it_is_not_ready(caller, callee) -> None:
    service = manifests("Service")[callee]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    (port,) = service["spec"]["ports"]
    addresses = " ".join(environment(caller).values())
    assert f"{callee}-0.{WORKLOADS[callee]['spec']['serviceName']}:{port['port']}" in addresses


def test_as_many_workers_as_schedulers_and_every_scheduler_is_known_to_the_gateways() -> None:
    num_pairs = WORKLOADS["scheduler"]["spec"]["replicas"]
    assert WORKLOADS["worker"]["spec"]["replicas"] == num_pairs
    known = environment("gateway")["OUTRIDER_GATEWAY_SCHEDULERS"].split(",")
    assert known == [f"scheduler-{number}.scheduler:50052" for number in range(num_pairs)]


def peers(rules: list[dict[str, Any]], side: str) -> set[tuple[str, int]]:
    return {
        (peer["podSelector"]["matchLabels"][NAME], port["port"])
        for rule in rules
        for peer in rule.get(side, [])
        for port in rule["ports"]
    }


def test_the_network_allows_the_call_graph_and_nothing_else() -> None:
    policies = manifests("NetworkPolicy")
    assert policies["deny-all"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert policies.keys() == {"deny-all", "names", *CONFIGS}
    ports = {service: manifests("Service")[service]["spec"]["ports"][0]["port"] for service in CONFIGS}
    for service in CONFIGS:
        spec = policies[service]["spec"]
        assert spec["podSelector"] == {"matchLabels": {NAME: service}}
        expected = {(callee, ports[callee]) for caller, callee in CALLS if caller == service}
        assert peers(spec.get("egress", []), "to") == expected
        callers = {(caller, ports[service]) for caller, callee in CALLS if callee == service}
        assert peers(spec["ingress"], "from") == callers


def test_nobody_asks_for_more_than_names_outside_the_call_graph() -> None:
    (rule,) = manifests("NetworkPolicy")["names"]["spec"]["egress"]
    assert {(port["protocol"], port["port"]) for port in rule["ports"]} == {("UDP", 53), ("TCP", 53)}
    assert len(rule["to"]) == 1


def test_a_gateway_stays_while_nodes_are_drained() -> None:
    budget = manifests("PodDisruptionBudget")["gateway"]["spec"]
    assert budget["selector"]["matchLabels"] == {NAME: "gateway"}
    assert budget["minAvailable"] < WORKLOADS["gateway"]["spec"]["replicas"]
