"""The whole system as a user starts it: four real processes on the embedded model."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import AsyncClient, Client
from outrider.client import Answer, ClientTls, Stream
from services.local.settings import DEFAULT_MODEL
from tests.faults import Proxy
from tests.stack import ANYWHERE, ROOT, SERVICES, RunningStack, running_stack, wait_until_gone

# Long enough to be under way when something dies; the end tokens are ordinary ones, so it is never shorter.
LONG = {"seed": 11, "temperature": 1.0, "max_tokens": 240, "ignore_eos": True, "timeout": 200.0}
QUESTION = "What is 17 + 25?"


@pytest.fixture(scope="module")
def client(stack: RunningStack) -> Iterator[Client]:
    with Client(stack.target) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(client: Client) -> Answer:
    return client.chat(QUESTION, **LONG).result()


def after_some_tokens(stream: Stream, num_tokens: int) -> Stream:
    """Reads until the answer is under way."""
    num_seen = 0
    for delta in stream:
        num_seen += len(delta.token_ids)
        if num_seen >= num_tokens:
            break
    return stream


def same_answer(answer: Answer) -> tuple:
    return (answer.token_ids, answer.text, answer.reasoning, answer.finish_reason, answer.seed)


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def outrider(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("outrider.cli", *arguments)


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("services", *ANYWHERE, *arguments)


def test_a_question_is_answered_with_its_account(undisturbed: Answer) -> None:
    assert len(undisturbed.token_ids) == undisturbed.usage.completion_tokens == 240
    assert undisturbed.finish_reason == "length"
    assert undisturbed.seed == 11
    assert undisturbed.stats.num_steps > 0
    assert undisturbed.numerics_id


def test_drafts_do_not_change_the_answer(client: Client, undisturbed: Answer) -> None:
    without = client.chat(QUESTION, **LONG, speculation=False).result()
    assert without.stats.num_draft_tokens == 0
    assert same_answer(without) == same_answer(undisturbed)


def test_the_models_and_the_load_are_shown(client: Client) -> None:
    (model,) = client.models()
    assert model.name == "tiny"
    (scheduler,) = client.stats()
    assert scheduler.connected
    assert scheduler.numerics_id == model.numerics_id


def test_the_command_streams_deltas_that_add_up_to_its_last_line(
    stack: RunningStack, undisturbed: Answer
) -> None:
    options = ["--seed", "3", "--max-tokens", "20", "--json"]
    result = outrider("generate", "--prompt", "1 + 1", "--target", stack.target, *options)
    assert result.returncode == 0, result.stderr
    *deltas, last = map(json.loads, result.stdout.splitlines())
    assert [token for delta in deltas for token in delta["delta"].get("token_ids", [])] == last["token_ids"]
    assert "".join(delta["delta"].get("text", "") for delta in deltas) == last["text"]
    assert last["usage"]["completion_tokens"] >= len(last["token_ids"]) > 0
    assert last["numerics_id"] == undisturbed.numerics_id


def test_the_command_names_the_field_at_fault(stack: RunningStack) -> None:
    result = outrider("chat", "hi", "--temperature", "-1", "--target", stack.target)
    assert result.returncode == 1
    assert result.stderr.startswith("outrider: INVALID_ARGUMENT: field sampling.temperature: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("service", SERVICES)
def test_an_answer_under_way_survives_the_death_of_any_process(
    stack: RunningStack, client: Client, undisturbed: Answer, service: str
) -> None:
    stream = after_some_tokens(client.chat(QUESTION, **LONG), 20)
    stack.restart(service, number=signal.SIGKILL)
    assert same_answer(stream.result()) == same_answer(undisturbed)


def test_an_answer_goes_on_over_connections_that_are_cut(stack: RunningStack, undisturbed: Answer) -> None:
    with Proxy(stack.target) as proxy, Client(proxy.address) as client:
        stream = client.chat(QUESTION, **LONG)
        for _ in range(3):
            after_some_tokens(stream, 20)
            proxy.reset()
        assert same_answer(stream.result()) == same_answer(undisturbed)


def test_ctrl_c_stops_everything_and_leaves_nothing() -> None:
    with running_stack("--drafter", "none") as running:
        processes = running.pids()
        assert processes.keys() == {"worker", "scheduler", "gateway"}
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) == 0
        wait_until_gone(processes)


async def test_an_asyncio_client_goes_on_over_connections_that_are_cut(
    stack: RunningStack, undisturbed: Answer
) -> None:
    with Proxy(stack.target) as proxy:
        num_cuts = 0
        async with AsyncClient(proxy.address) as client, client.chat(QUESTION, **LONG) as stream:
            num_tokens = 0
            async for delta in stream:
                num_tokens += len(delta.token_ids)
                if num_tokens > 60 * (num_cuts + 1) and num_cuts < 3:
                    proxy.reset()
                    num_cuts += 1
            assert num_cuts == 3
            assert same_answer(await stream.result()) == same_answer(undisturbed)


def test_a_stream_that_is_left_ends_its_request(stack: RunningStack, client: Client) -> None:
    with client.chat(QUESTION, **LONG) as stream:
        after_some_tokens(stream, 5)
    while client.stats()[0].load.num_requests_running:
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_a_killed_stack_leaves_no_process_behind() -> None:
    with running_stack() as running:
        processes = running.pids()
        assert processes.keys() == set(SERVICES)
        running.process.kill()
        running.process.wait(60)
        wait_until_gone(processes)


@pytest.mark.parametrize("option", ["--grpc-port", "--http-port"])
def test_a_port_in_use_is_one_line_and_status_2(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = start(option, port)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"outrider: {option} {port}: Address already in use\n"


def test_a_directory_without_a_model_is_one_line_and_status_2(tmp_path: Path) -> None:
    result = start("--model", str(tmp_path))
    assert (result.returncode, result.stderr) == (2, f"outrider: --model {tmp_path}: no config.json in it\n")


def test_a_model_that_does_not_load_ends_the_start_with_the_reason(tmp_path: Path) -> None:
    for file in filter(Path.is_file, DEFAULT_MODEL.iterdir()):
        end = -1000 if file.suffix == ".safetensors" else None
        (tmp_path / file.name).write_bytes(file.read_bytes()[:end])
    result = start("--model", str(tmp_path))
    assert result.returncode == 2
    assert [line for line in result.stderr.splitlines() if "safetensors" in line] == [
        result.stderr.splitlines()[-1]
    ]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to issue a certificate")
def test_a_gateway_that_asks_for_certificates_is_found_to_serve(tmp_path: Path) -> None:
    issue = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=gateway"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run([*issue.split(), *names], cwd=tmp_path, check=True, capture_output=True)
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    variables = {"TLS_CERTIFICATE": certificate, "TLS_KEY": key, "TLS_CLIENT_CA": certificate, "HTTP_TLS": 1}
    environment = {f"OUTRIDER_GATEWAY_{name}": str(value) for name, value in variables.items()}
    tls = ClientTls(ca=certificate, certificate=certificate, key=key)
    with (
        running_stack("--drafter", "none", environment=environment) as running,
        Client(running.target, tls=tls) as client,
    ):
        assert [model.name for model in client.models()] == ["tiny"]


def until_logged(stack: RunningStack, service: str, event: str) -> dict[str, Any]:
    """Returns the latest such line that a service has logged; the test's own limit ends the wait."""
    while True:
        lines = [line for line in stack.log(service).splitlines() if line.startswith("{") and event in line]
        if lines:
            return json.loads(lines[-1])
        time.sleep(0.1)


def test_what_was_learnt_outlives_its_process_unless_it_is_damaged(tmp_path: Path) -> None:
    question = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
    with running_stack("--state", str(tmp_path)) as running, Client(running.target) as client:
        first = client.chat(QUESTION, **question).result()
        running.restart("drafter")
        assert until_logged(running, "drafter", "snapshot_restored")["num_texts"] == 1
        (snapshot,) = (tmp_path / "drafter" / "tiny").iterdir()
        assert snapshot.stat().st_mode & 0o777 == 0o600
        running.restart("scheduler")
        until_logged(running, "scheduler", "controller_state_restored")
        assert same_answer(client.chat(QUESTION, **question, seed=first.seed).result()) == same_answer(first)
        snapshot.write_bytes(snapshot.read_bytes()[:-1])
        running.restart("drafter", number=signal.SIGKILL)
        assert "digest" in until_logged(running, "drafter", "snapshot_refused")["reason"]
        assert same_answer(client.chat(QUESTION, **question, seed=first.seed).result()) == same_answer(first)
