"""The components that overlays take in: what they change is there, and what they set are settings."""

import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.unit.deploy.configs import CONFIGS
from tests.unit.deploy.manifests import BASE, NAME, VERSION, WORKLOADS, container, environment, load, pod


def test_the_model_volume_patches_what_exists() -> None:
    for generated in component("model-volume")["configMapGenerator"]:
        for literal in generated["literals"]:
            assert literal.split("=")[0] in environment(generated["name"])
    (patch,) = component("model-volume")["patches"]
    for name in patch["target"]["name"].split("|"):
        assert WORKLOADS[name]["kind"] in patch["target"]["kind"].split("|")


def component(name: str) -> dict[str, Any]:
    (found,) = load(BASE / name / "kustomization.yaml")
    assert found["kind"] == "Component"
    return found


def with_component(service: str, *names: str) -> dict[str, str]:
    """Returns a service's settings with what components merge into them."""
    values = environment(service)
    for name in names:
        for generated in component(name).get("configMapGenerator", []):
            assert generated["behavior"] == "merge"
            if generated["name"] == service:
                values |= dict(literal.split("=", 1) for literal in generated["literals"])
    return values


def operations(name: str) -> list[dict[str, Any]]:
    """Returns what a component does to the worker."""
    (patch,) = component(name)["patches"]
    assert (patch["target"]["kind"], patch["target"]["name"]) == (WORKLOADS["worker"]["kind"], "worker")
    return yaml.safe_load(patch["patch"])


def place_of(path: str) -> Any:
    """Returns what holds the last part of a path into the worker's manifest."""
    place: Any = WORKLOADS["worker"]
    for key in path.strip("/").split("/")[:-1]:
        place = place[int(key)] if isinstance(place, list) else place[key]
    return place


def test_the_gpu_component_gives_the_worker_a_gpu_and_settings_that_exist() -> None:
    assert CONFIGS["worker"].from_env(with_component("worker", "gpu")).device == "cuda"
    (operation,) = operations("gpu")
    assert "memory" in place_of(operation["path"])
    assert (operation["path"].rpartition("/")[2], operation["value"]) == ("nvidia.com~1gpu", "1")


def test_the_ranks_component_gives_each_rank_a_gpu_and_all_of_them_shared_memory() -> None:
    group = CONFIGS["worker"].from_env(with_component("worker", "gpu", "ranks")).group
    gpus, volume, mount = operations("ranks")
    assert (gpus["op"], gpus["path"]) == ("replace", operations("gpu")[0]["path"])
    assert int(gpus["value"]) == group.num_ranks
    assert place_of(volume["path"]) is pod("worker")["volumes"]
    assert place_of(mount["path"]) is container("worker")["volumeMounts"]
    assert volume["value"]["emptyDir"]["medium"] == "Memory"
    assert mount["value"] == {"name": volume["value"]["name"], "mountPath": "/dev/shm"}


def test_the_pairs_component_has_as_many_of_both_and_names_every_scheduler() -> None:
    counts = {item["name"]: item["count"] for item in component("pairs")["replicas"]}
    assert counts.keys() == {"scheduler", "worker"}
    assert counts["scheduler"] == counts["worker"] > 1
    gateway = CONFIGS["gateway"].from_env(with_component("gateway", "pairs"))
    assert gateway.schedulers == tuple(
        f"scheduler-{number}.scheduler:50052" for number in range(counts["scheduler"])
    )


def test_nodes_are_drained_of_one_pair_at_a_time() -> None:
    (budget,) = load(BASE / "pairs" / "budgets.yaml")
    kubernetes_validate.validate(budget, VERSION, strict=True)
    assert budget["spec"]["maxUnavailable"] == 1
    (selected,) = budget["spec"]["selector"]["matchExpressions"]
    assert (selected["key"], selected["operator"]) == (NAME, "In")
    assert sorted(selected["values"]) == ["scheduler", "worker"]


(GROUP,) = load(BASE / "nodes" / "worker.yaml")
TEMPLATE = GROUP["spec"]["leaderWorkerTemplate"]["workerTemplate"]


def of_node(node: int) -> dict[str, str]:
    """Returns the settings of a node, with what a LeaderWorkerSet tells its pods put in."""
    (only,) = TEMPLATE["spec"]["containers"]
    given = {"$(LWS_WORKER_INDEX)": str(node), "$(LWS_LEADER_ADDRESS)": "worker-0.worker.outrider"}
    values = with_component("worker", "model-volume", "gpu", "nodes")
    for variable in only["env"]:
        value = variable["value"]
        for name, known in given.items():
            value = value.replace(name, known)
        values[variable["name"]] = value
    return values


def test_a_group_on_several_nodes_is_made_anew_as_one() -> None:
    assert GROUP["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    patch = yaml.safe_load(component("nodes")["patches"][0]["patch"])
    # It takes the place of the base's workload, under whose name the scheduler finds rank 0.
    assert (patch["$patch"], patch["kind"]) == ("delete", WORKLOADS["worker"]["kind"])
    assert GROUP["metadata"]["name"] == patch["metadata"]["name"] == "worker"
    assert GROUP["spec"]["replicas"] == WORKLOADS["scheduler"]["spec"]["replicas"]


def test_a_pod_of_a_group_on_several_nodes_is_the_bases_but_for_what_nodes_need() -> None:
    wrapped = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker-0"}, "spec": TEMPLATE["spec"]}
    kubernetes_validate.validate(wrapped, VERSION, strict=True)
    (only,) = TEMPLATE["spec"]["containers"]
    same = "image", "envFrom", "ports", "securityContext"
    assert {key: only[key] for key in same} == {key: container("worker")[key] for key in same}
    differs = "containers", "volumes"
    assert {key: value for key, value in TEMPLATE["spec"].items() if key not in differs} == {
        key: value for key, value in pod("worker").items() if key not in differs
    }


def test_ranks_and_gpus_of_all_nodes_are_as_many() -> None:
    groups = [CONFIGS["worker"].from_env(of_node(node)).group for node in range(2)]
    assert [group.node for group in groups] == [0, 1]
    assert {group.num_nodes for group in groups} == {GROUP["spec"]["leaderWorkerTemplate"]["size"]} == {2}
    assert groups[1].rendezvous == "worker-0.worker.outrider:29500"
    num_gpus = int(TEMPLATE["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    assert groups[0].num_ranks == 2 * num_gpus


@pytest.mark.parametrize(("node", "port"), [(0, 50053), (1, 50053 + 8 * 10)])
@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_a_node_is_asked_where_its_first_rank_listens(node: int, port: int, probe: str) -> None:
    *shell, script = TEMPLATE["spec"]["containers"][0][probe]["exec"]["command"]
    said = subprocess.run(
        [*shell, script.replace("exec python", "echo")],
        env=of_node(node),
        capture_output=True,
        text=True,
        check=True,
    )
    liveness = ["--service", "liveness"] if probe == "livenessProbe" else []
    assert said.stdout.split() == ["-m", "outrider.rpc.probe", *liveness, f"127.0.0.1:{port}"]


def test_ranks_of_several_nodes_may_talk_to_each_other_alone() -> None:
    (policy,) = load(BASE / "nodes" / "network-policy.yaml")
    kubernetes_validate.validate(policy, VERSION, strict=True)
    only_workers = {"podSelector": {"matchLabels": {NAME: "worker"}}}
    assert policy["spec"] == only_workers | {
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [only_workers]}],
        "egress": [{"to": [only_workers]}],
    }


def test_every_file_of_a_component_is_listed() -> None:
    for path in BASE.glob("*/kustomization.yaml"):
        listed = component(path.parent.name)
        files = {*listed.get("resources", []), *listed.get("configurations", []), path.name}
        assert {file.name for file in path.parent.iterdir()} == files
