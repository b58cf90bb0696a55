"""Real answers of the three kinds, as the local stack wrote them, and what the draft head sees of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from benchmarks.agent import Conversation, sessions
from benchmarks.answers import Meter, asker
from benchmarks.relay import StepRelay, Written, watched_stack
from benchmarks.workloads import HOT, MAX_NUM_TOKENS, Place, problems
from outrider import AsyncClient
from outrider.params import SamplingParams, SequenceParams
from services.local.settings import DEFAULT_MODEL, Settings
from services.worker.config import Config
from services.worker.load import load
from services.worker.messages import Batch, SequenceStart, SequenceStep

NUM_HOT_TOKENS = 160


@dataclass(frozen=True, kw_only=True)
class Text:
    """An answer of one kind, with the model's hidden vectors of all its tokens but the last."""

    kind: str
    written: Written
    features: bytes = b""

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output."""
        return [*self.written.prompt, *self.written.output]


async def write(num_answers: int, num_sessions: int, sources: tuple[str, ...]) -> list[Text]:
    """Has the local stack write all texts."""
    texts: list[Text] = []
    async with (
        watched_stack(drafter=sources) as (running, relay),
        AsyncClient(running.grpc_address) as client,
    ):
        ask = asker(client, Meter(), speculation=True)
        for problem in _first_problems(num_answers, seed=0):
            await ask(problem, temperature=0.0, max_tokens=MAX_NUM_TOKENS)
        texts += _taken(relay, "predictable")
        for session in sessions(num_sessions):
            await Conversation(ask).play(session)
        texts += _taken(relay, "repetitive")
        for seed, problem in enumerate(_first_problems(num_answers, seed=1)):
            await ask(problem, temperature=HOT, seed=seed, ignore_eos=True, max_tokens=NUM_HOT_TOKENS)
        texts += _taken(relay, "unpredictable")
    return texts


def _first_problems(num_answers: int, *, seed: int) -> list[str]:
    place = Place(stream=seed)
    return [problem.question for problem in islice(problems(place), num_answers)]


def _taken(relay: StepRelay, kind: str) -> list[Text]:
    return [Text(kind=kind, written=written) for written in relay.take()]


class Reader:
    """The model, reading texts to see its hidden vectors."""

    def __init__(self, head: Path) -> None:
        self._stepper = load(Config(model_dir=DEFAULT_MODEL, head_dir=head), lambda: False)

    def read(self, text: Text) -> Text:
        """Returns the text with the vectors of all its tokens but the last."""
        token_ids = text.token_ids
        params = SequenceParams(sampling=SamplingParams(temperature=0.0)).to_proto()
        num_blocks = -(-len(token_ids) // self._stepper.facts.block_size)
        step = SequenceStep(
            sequence_id=0,
            start=SequenceStart(token_ids=token_ids, num_prompt_tokens=len(token_ids), params=params),
            num_computed_tokens=0,
            num_new_tokens=len(token_ids) - 1,
            draft_token_ids=[],
            new_block_ids=list(range(num_blocks)),
            wants_features=True,
        )
        (features,) = self._stepper.run(Batch(step_id=0, steps=[step])).features
        self._stepper.forget_all()
        return replace(text, features=bytes(features.rows))


def with_features(texts: Sequence[Text]) -> list[Text]:
    """Returns the texts with what the model's draft head would be sent of them."""
    head = Settings(drafter=("head",)).draft_head_directory
    assert head is not None
    reader = Reader(head)
    return [reader.read(text) for text in texts]
