from outrider.client import Delta, ToolCall, ToolCallDelta
from outrider.client.answer import gather
from outrider.v1 import gateway_pb2 as pb

STARTED = pb.Started(request_id="r", seed=3, model="tiny", numerics_id="n")


def test_pieces_of_several_tool_calls_come_together_in_their_order() -> None:
    pieces = [
        ToolCallDelta(index=0, id="functions.f:0", name="f"),
        ToolCallDelta(index=0, arguments='{"a"'),
        ToolCallDelta(index=1, id="functions.g:1", name="g", arguments="{}"),
        ToolCallDelta(index=0, arguments=": 1}"),
    ]
    deltas = [Delta(tool_calls=(piece,)) for piece in pieces]
    answer = gather(deltas, STARTED, pb.Finished(reason=pb.FINISH_REASON_TOOL_CALLS))
    assert answer.tool_calls == (
        ToolCall(id="functions.f:0", name="f", arguments='{"a": 1}'),
        ToolCall(id="functions.g:1", name="g", arguments="{}"),
    )
    assert answer.finish_reason == "tool_calls"


def test_text_thinking_and_tokens_are_joined_and_an_unset_stop_is_none() -> None:
    deltas = [Delta(reasoning="a", token_ids=(1,)), Delta(reasoning="b", text="c", token_ids=(2, 3))]
    answer = gather(deltas, STARTED, pb.Finished(reason=pb.FINISH_REASON_STOP, stop_token_id=0))
    assert (answer.reasoning, answer.text, answer.token_ids) == ("ab", "c", (1, 2, 3))
    assert (answer.stop_string, answer.stop_token_id, answer.seed) == (None, 0, 3)
