"""The client for threads."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from outrider.client.answer import Answer, Delta
from outrider.client.channel import CHANNEL_OPTIONS, DEFAULT_TARGET, ClientTls, metadata_of
from outrider.client.question import Messages, Options, Tools, chat_request, generate_request
from outrider.client.status import error_of
from outrider.client.transcript import Transcript
from outrider.v1 import gateway_pb2 as pb
from outrider.v1 import gateway_pb2_grpc


class Stream:
    """An answer as it grows: iterate it for deltas, or call `result` for the whole."""

    def __init__(self, ask: Callable[..., Any], transcript: Transcript, metadata: tuple) -> None:
        self._ask = ask
        self._transcript = transcript
        self._metadata = metadata
        self._call = self._start()
        self._deltas = self._receive()

    def _start(self) -> Any:
        transcript = self._transcript
        return self._ask(transcript.request(), timeout=transcript.time_left(), metadata=self._metadata)

    def _receive(self) -> Generator[Delta, None, None]:
        while self._transcript.finished is None:
            try:
                for response in self._call:
                    delta = self._transcript.receive(response)
                    if delta is not None:
                        yield delta
                return
            except grpc.RpcError as error:
                if self._transcript.finished is not None:
                    return
                time.sleep(self._transcript.pause_after(error))
                self._call = self._start()

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        return next(self._deltas)

    def result(self) -> Answer:
        """Waits for the end and returns the whole answer."""
        for _ in self:
            pass
        return self._transcript.answer()

    def cancel(self) -> None:
        """Ends the request; what it computed is dropped."""
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()
        self._deltas.close()


class Client:
    """Asks one gateway, from any number of threads. Errors are those of `outrider.rpc.errors`."""

    def __init__(
        self, target: str = DEFAULT_TARGET, *, key: str | None = None, tls: ClientTls | None = None
    ) -> None:
        self._metadata = metadata_of(key)
        self._channel = (
            grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
            if tls is None
            else grpc.secure_channel(target, tls.credentials(), options=CHANNEL_OPTIONS)
        )
        # gRPC gets on with a connection only while somebody waits on the channel, else once in five seconds: a
        # stream that pauses between two tries would find no gateway. Tried: up to a minute.
        self._channel.subscribe(_note_nothing)
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Stream:
        """Continues a prompt: text, or token ids."""
        request = generate_request(prompt, options)
        return Stream(self._stub.Generate, Transcript(request, options.get("timeout")), self._metadata)

    def chat(
        self,
        messages: Messages,
        *,
        tools: Tools = (),
        thinking: bool | None = None,
        template_options: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """Answers a conversation; a string is one user's turn."""
        request = chat_request(messages, tools, thinking, template_options or {}, options)
        return Stream(self._stub.Chat, Transcript(request, options.get("timeout")), self._metadata)

    def models(self, timeout: float | None = None) -> list[pb.Model]:
        """Lists the models that can be asked."""
        return list(self._unary(self._stub.ListModels, pb.ListModelsRequest(), timeout).models)

    def stats(self, timeout: float | None = None) -> list[pb.SchedulerStats]:
        """Reports the load of the schedulers behind the gateway."""
        return list(self._unary(self._stub.GetStats, pb.GetStatsRequest(), timeout).schedulers)

    def _unary(self, ask: Callable[..., Any], request: Any, timeout: float | None) -> Any:
        try:
            return ask(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise error_of(error) from None

    def close(self) -> None:
        """Closes the channel; streams that still run end as cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _note_nothing(connectivity: grpc.ChannelConnectivity) -> None:
    """Hears of the channel's state, which has gRPC attend to it."""
