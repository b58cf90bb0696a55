"""Records what every source would draft at every position of real answers, for `benchmarks.regret`.

    python -m benchmarks.record_drafts drafts.jsonl [--num-answers 12] [--num-sessions 2]

First the answers are written by the local stack: tasks, the agent's conversations, and answers at temperature
1.5. A relay between scheduler and group notes their tokens and parameters. Then, one answer after another and
token by token, a drafter of its own is told what was written and asked for drafts behind every token, as a
scheduler would that verifies none. The draft head is told the hidden vectors that one pass of the model over
the whole text makes. The agent's conversations are shown to the memory once before they are recorded; of the
other answers it knows those that were recorded before.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count, takewhile
from operator import eq
from pathlib import Path
from typing import Any

import grpc

from benchmarks.edits import tokenizer
from benchmarks.progress import Progress
from benchmarks.stacks import stack
from benchmarks.texts import Text, with_features, write
from outrider.rpc.channel import connect
from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import drafter_pb2_grpc
from services.local.settings import DRAFT_SOURCES

MAX_NUM_DRAFT_TOKENS = 8
SOURCES: Mapping[int, str] = {
    pb.DRAFT_SOURCE_SUFFIX: "suffix",
    pb.DRAFT_SOURCE_MODEL: "model",
    pb.DRAFT_SOURCE_HEAD: "head",
}
MARKS = {"<think>": "thinking", "</think>": "answer", "<|tool_call_argument_begin|>": "tool_arguments"}


class Asker:
    """Plays a scheduler that tells a drafter of texts, asks at every position and verifies nothing."""

    def __init__(self, drafter: grpc.aio.Channel) -> None:
        self._call = drafter_pb2_grpc.DrafterServiceStub(drafter).Propose()
        self._request_ids = count(1)
        self._sequence_ids = count(1)

    async def begin(self) -> None:
        """Reads the first response, which answers nothing."""
        await self._call.read()

    async def show(self, text: Text) -> None:
        """Lets the memory see a text, and asks for nothing."""
        id_ = next(self._sequence_ids)
        opened = self._opened(id_, text.token_ids, text)
        await self._call.write(pb.ProposeRequest(opened=[opened], request_id=next(self._request_ids)))
        await self._close(id_)

    async def ask(self, text: Text) -> AsyncIterator[tuple[int, pb.Draft]]:
        """Yields the drafts of all sources at every position of the output."""
        id_ = next(self._sequence_ids)
        token_ids, num_prompt_tokens = text.token_ids, len(text.written.prompt)
        message = pb.ProposeRequest(opened=[self._opened(id_, text.written.prompt, text)])
        num_told = 0
        for position in range(len(text.written.output)):
            base_length = num_prompt_tokens + position
            if position:
                token_id = token_ids[base_length - 1]
                message.committed.add(sequence_id=id_, offset=base_length - 1, token_ids=[token_id])
            message.wanted.add(sequence_id=id_, base_length=base_length, max_num_tokens=MAX_NUM_DRAFT_TOKENS)
            _add_features(message, id_, text, num_told, base_length - 1)
            num_told = base_length - 1
            for draft in await self._answers(message):
                yield position, draft
            message = pb.ProposeRequest()
        message.committed.add(sequence_id=id_, offset=len(token_ids) - 1, token_ids=token_ids[-1:])
        await self._close(id_, message)

    async def _answers(self, message: pb.ProposeRequest) -> list[pb.Draft]:
        message.request_id = next(self._request_ids)
        await self._call.write(message)
        drafts: list[pb.Draft] = []
        while True:
            response = await self._call.read()
            assert isinstance(response, pb.ProposeResponse)
            if response.request_id == message.request_id:
                drafts += response.drafts
                if response.complete:
                    return drafts

    async def _close(self, id_: int, message: pb.ProposeRequest | None = None) -> None:
        message = message or pb.ProposeRequest()
        message.closed.add(sequence_id=id_, finished=True)
        message.request_id = next(self._request_ids)
        await self._call.write(message)

    def _opened(self, id_: int, token_ids: Sequence[int], text: Text) -> pb.DraftSequenceOpened:
        return pb.DraftSequenceOpened(
            sequence_id=id_,
            token_ids=token_ids,
            num_prompt_tokens=len(text.written.prompt),
            params=text.written.params,
        )


def _add_features(message: pb.ProposeRequest, id_: int, text: Text, start: int, end: int) -> None:
    if text.features and start < end:
        row_bytes = len(text.features) // (len(text.token_ids) - 1)
        rows = text.features[start * row_bytes : end * row_bytes]
        message.features.add(sequence_id=id_, offset=start, rows=rows)


def line(name: str, text: Text, drafts: Sequence[tuple[int, pb.Draft]]) -> dict[str, Any]:
    """Returns a text in the form that `benchmarks.regret` reads."""
    output, phases = text.written.output, _phases(text)
    return {
        "text": name,
        "kind": text.kind,
        "num_prompt_tokens": len(text.written.prompt),
        "num_output_tokens": len(output),
        "drafts": [
            {
                "position": position,
                "source": SOURCES[draft.source],
                "phase": phases[position],
                "match_length": draft.match_length,
                "confidences": [round(confidence, 4) for confidence in draft.confidences],
                "num_right": _num_right(draft.token_ids, output[position:]),
            }
            for position, draft in drafts
            if draft.token_ids
        ],
    }


def _num_right(draft: Sequence[int], came: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(bool, map(eq, draft, came)))


def _phases(text: Text) -> list[str]:
    """Returns the phase of every output token."""
    marks = {tokenizer().token_to_id(name): phase for name, phase in MARKS.items()}
    phases, phase = [], "text"
    for token_id in text.token_ids:
        phases.append(phase)
        phase = marks.get(token_id, phase)
    return phases[len(text.written.prompt) :]


async def record(texts: Sequence[Text], sources: tuple[str, ...]) -> AsyncIterator[dict[str, Any]]:
    """Yields a line per text, asking a drafter that has learnt nothing."""
    progress = Progress(len(texts))
    async with (
        stack(drafter=sources) as running,
        connect(running.children["drafter"].program.address) as channel,
    ):
        asking = Asker(channel)
        await asking.begin()
        for text in texts:
            if text.kind == "repetitive":
                await asking.show(text)
        for number, text in enumerate(texts):
            drafts = [item async for item in asking.ask(text)]
            progress.step(f"{text.kind}, {len(text.written.output)} tokens, {len(drafts)} drafts")
            yield line(f"{text.kind}-{number}", text, drafts)


async def run(path: Path, num_answers: int, num_sessions: int, sources: tuple[str, ...]) -> None:
    """Writes the recording."""
    texts = await write(num_answers, num_sessions, sources)
    if "head" in sources:
        texts = await asyncio.to_thread(with_features, texts)
    with path.open("w", encoding="utf-8") as lines:
        async for item in record(texts, sources):
            lines.write(json.dumps(item) + "\n")


def main() -> None:
    """Writes the file that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--num-answers", type=int, default=12, help="of the tasks, and as many at 1.5")
    parser.add_argument("--num-sessions", type=int, default=2, help="the agent's conversations")
    parser.add_argument("--drafter", default=",".join(DRAFT_SOURCES), help="the sources, by commas")
    arguments = parser.parse_args()
    sources = tuple(arguments.drafter.split(","))
    asyncio.run(run(arguments.path, arguments.num_answers, arguments.num_sessions, sources))


if __name__ == "__main__":
    main()
