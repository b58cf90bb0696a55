import io
import json
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from outrider.cli import main
from outrider.cli.bench import summary
from outrider.cli.main import describe
from outrider.cli.render import Terminal, answer_json, delta_json
from outrider.client import Answer, Delta, ToolCallDelta
from outrider.client.answer import gather
from outrider.rpc.errors import InvalidArgument, ResourceExhausted
from outrider.v1 import gateway_pb2 as pb

DELTAS = [
    Delta(reasoning="add", token_ids=(1,)),
    Delta(text="42", token_ids=(2, 3)),
    Delta(tool_calls=(ToolCallDelta(index=0, id="functions.f:0", name="f", arguments="{}"),)),
]


def answer() -> Answer:
    statistics = pb.Statistics(
        ttft_ms=12, tokens_per_second=50, num_steps=2, num_draft_tokens=4, num_accepted_tokens=1,
        sources=[pb.SourceStatistics(source="suffix", num_draft_tokens=4, num_accepted_tokens=1)],
    )  # fmt: skip
    finished = pb.Finished(
        reason=pb.FINISH_REASON_STOP,
        usage=pb.Usage(prompt_tokens=5, completion_tokens=3),
        statistics=statistics,
    )
    return gather(DELTAS, pb.Started(seed=9, numerics_id="n"), finished)


def test_the_json_of_an_answer_has_the_documented_keys() -> None:
    found = json.loads(json.dumps(answer_json(answer())))
    assert list(found) == [
        "text", "reasoning", "tool_calls", "token_ids", "finish_reason",
        "seed", "usage", "stats", "numerics_id",
    ]  # fmt: skip
    assert found["usage"].keys() == {
        "prompt_tokens",
        "cached_tokens",
        "reasoning_tokens",
        "completion_tokens",
    }
    assert found["stats"].keys() == {
        "ttft_ms", "time_to_first_answer_token_ms", "tokens_per_second",
        "num_steps", "num_draft_tokens", "num_accepted_tokens", "sources",
    }  # fmt: skip
    assert found["stats"]["sources"] == [
        {"source": "suffix", "num_draft_tokens": 4, "num_accepted_tokens": 1}
    ]
    assert found["tool_calls"] == [{"id": "functions.f:0", "name": "f", "arguments": "{}"}]


def test_the_json_of_a_delta_leaves_out_what_is_empty() -> None:
    assert delta_json(DELTAS[1]) == {"text": "42", "token_ids": (2, 3)}


def test_people_see_thinking_answer_calls_and_statistics_in_that_order() -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    for delta in DELTAS:
        terminal.show(delta)
    terminal.finish(answer())
    assert out.getvalue().startswith("add\n\n42\nf {}\n[stop: 5 + 3 tokens, first after 12 ms, 50 tokens/s")
    assert "1 of 4 drafts accepted" in out.getvalue()


def test_an_answer_that_breaks_off_ends_its_line_if_it_has_one() -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.break_off()
    assert out.getvalue() == ""
    terminal.show(DELTAS[0])
    terminal.break_off()
    assert out.getvalue() == "add\n"


def test_errors_name_code_field_and_when_to_try_again() -> None:
    assert describe(InvalidArgument("is 3", field="options.sampling.top_p")) == (
        "INVALID_ARGUMENT: field sampling.top_p: is 3"
    )
    retry = ResourceExhausted("two\nlines", retry_delay=timedelta(seconds=1.5))
    assert describe(retry) == "RESOURCE_EXHAUSTED: two lines (try again in 1.5 s)"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["chat"],
        ["generate"],
        ["sing"],
        ["chat", "hi", "--max-tokens", "many"],
        ["bench", "--concurrency", "0"],
    ],
)
def test_a_wrong_command_line_ends_with_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text("{}")
    for file, reason in ((tools, "must be a list of objects"), (tmp_path / "none.json", "No such file")):
        assert main(["chat", "hi", "--tools", str(file)]) == 2
        assert capsys.readouterr().err.startswith(f"outrider: {file}: {reason}")


def test_a_gateway_that_is_not_there_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        target = f"127.0.0.1:{free.getsockname()[1]}"
    assert main(["models", "--target", target]) == 1
    error = capsys.readouterr().err
    assert error.startswith("outrider: UNAVAILABLE: ")
    assert target in error
    assert error.count("\n") == 1


def test_a_benchmark_counts_tokens_per_step_over_all_requests() -> None:
    report = summary([answer(), answer()], seconds=2.0)
    assert (report["num_output_tokens"], report["tokens_per_second"], report["tokens_per_step"]) == (
        6,
        3.0,
        1.5,
    )
