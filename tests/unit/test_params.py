"""The parameters that decide tokens survive the wire and are checked by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.params import Grammar, ReasoningLimit, SamplingParams, SequenceParams
from outrider.rpc.errors import InvalidArgument
from outrider.v1 import sampling_pb2 as pb

FLOATS = st.floats(0, 100, width=32)
TEMPERATURES = st.just(0.0) | st.floats(2.0**-16, 100, width=32)
IDS = st.integers(0, 999)

sampling = st.builds(
    SamplingParams,
    temperature=TEMPERATURES,
    top_k=IDS,
    top_p=st.floats(0.125, 1, width=32),
    min_p=st.floats(0, 1, width=32),
    repetition_penalty=st.floats(0.5, 2, width=32),
    presence_penalty=FLOATS,
    frequency_penalty=FLOATS,
    logit_bias=st.dictionaries(IDS, FLOATS, max_size=3),
    bad_words=st.lists(st.lists(IDS, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    min_tokens=st.integers(0, 5),
    max_tokens=st.none() | st.integers(5, 500),
    stop_token_ids=st.lists(IDS, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    max_reasoning_tokens=st.none() | IDS,
    num_logprobs=st.none() | st.integers(0, 20),
)
params = st.builds(
    SequenceParams,
    sampling=sampling,
    seed=st.integers(0, 2**64 - 1),
    choice=IDS,
    reasoning_limit=st.none() | st.builds(ReasoningLimit, max_tokens=IDS, end_token_id=IDS),
    grammar=st.none()
    | st.builds(Grammar, language=st.sampled_from(["json_schema", "regex", "lark"]), text=st.text()),
)


@given(params)
def test_parameters_survive_the_wire(value: SequenceParams) -> None:
    wire = value.to_proto().SerializeToString()
    assert SequenceParams.from_proto(type(value.to_proto()).FromString(wire)) == value


@given(sampling)
def test_parameters_in_range_pass(value: SamplingParams) -> None:
    value.check(vocab_size=1000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-39),
        ("temperature", 9.9e-6),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", -1.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("-inf")),
        ("frequency_penalty", 1e9),
        ("max_tokens", 0),
        ("num_logprobs", 21),
        ("logit_bias", {1000: 1.0}),
        ("logit_bias", {1: float("nan")}),
        ("stop_token_ids", (1000,)),
        ("bad_words", ((1, 1000),)),
        ("bad_words", ((),)),
        ("bad_words", ((1,),) * 1025),
        ("bad_words", ((1,) * 33,)),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
        ("stop_token_ids", (1,) * 257),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SamplingParams(**{field: value}).check(vocab_size=1000)  # type: ignore[arg-type]
    assert caught.value.field == f"sampling.{field}"


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("bad_words", pb.SamplingParams(bad_words=[pb.TokenIds(ids=[1])] * 1025)),
        ("bad_words", pb.SamplingParams(bad_words=[pb.TokenIds(ids=[1] * 33)])),
        ("logit_bias", pb.SamplingParams(logit_bias=dict.fromkeys(range(1025), 1.0))),
        ("stop_token_ids", pb.SamplingParams(stop_token_ids=[1] * 257)),
    ],
)
def test_a_message_with_too_much_is_refused_before_it_is_read(field: str, message: pb.SamplingParams) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SamplingParams.from_proto(message)
    assert caught.value.field == f"sampling.{field}"


def test_as_much_as_is_allowed_passes() -> None:
    value = SamplingParams(
        temperature=1e-5,
        bad_words=((1,) * 32,) * 1024,
        logit_bias=dict.fromkeys(range(1024), 1.0),
        stop_token_ids=(1,) * 256,
    )
    SamplingParams.from_proto(value.to_proto()).check(vocab_size=2000)


def test_more_minimum_than_maximum_tokens_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="above max_tokens 3"):
        SamplingParams(min_tokens=4, max_tokens=3).check(vocab_size=10)


def test_an_unset_field_takes_the_given_default_and_a_zero_stays_zero() -> None:
    defaults = {"temperature": 0.6, "top_p": 0.95}
    assert SamplingParams.from_proto(pb.SamplingParams(), defaults).temperature == 0.6
    assert SamplingParams.from_proto(pb.SamplingParams(temperature=0), defaults).temperature == 0
    assert SamplingParams.from_proto(pb.SamplingParams()).temperature == 1
