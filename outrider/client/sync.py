"""The client for threads."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from outrider.client.answer import Answer, Delta
from outrider.client.channel import CHANNEL_OPTIONS, DEFAULT_TARGET, ClientTls, metadata_of
from outrider.client.gateways import Gateways
from outrider.client.question import Messages, Options, Tools, chat_request, generate_request
from outrider.client.status import error_of
from outrider.client.transcript import FIRST_PAUSE_SECONDS, Transcript
from outrider.v1 import gateway_pb2 as pb
from outrider.v1.gateway_pb2_grpc import GatewayServiceStub


class Stream:
    """An answer as it grows: iterate it for deltas, or call `result` for the whole."""

    def __init__(self, gateways: Gateways, method: str, transcript: Transcript, metadata: tuple) -> None:
        self._gateways = gateways
        self._method = method
        self._transcript = transcript
        self._metadata = metadata
        self._call = self._start()
        self._deltas = self._receive()

    def _start(self) -> Any:
        self._gateway = self._gateways.current
        ask, transcript = getattr(self._gateway.stub, self._method), self._transcript
        return ask(transcript.request(), timeout=transcript.time_left(), metadata=self._metadata)

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
                pause = self._transcript.pause_after(error)
                self._gateways.leave(self._gateway)
                _pause(pause, self._gateways.current.channel)
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
        self._transcript.cancel()
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()
        self._deltas.close()


class Client:
    """Asks gateways, from any number of threads. Errors are those of `outrider.rpc.errors`.

    `target` is HOST:PORT. Of several with commas between, another is asked where one fails. A name by which
    gRPC finds several, such as dns:///HOST:PORT, will do too.
    """

    def __init__(
        self, target: str = DEFAULT_TARGET, *, key: str | None = None, tls: ClientTls | None = None
    ) -> None:
        self._metadata = metadata_of(key)
        credentials = tls.credentials() if tls else None
        self._gateways = Gateways(target, lambda name: _channel(name, credentials), GatewayServiceStub)

    def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Stream:
        """Continues a prompt: text, or token ids."""
        request = generate_request(prompt, options)
        return Stream(self._gateways, "Generate", Transcript(request, options.get("timeout")), self._metadata)

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
        return Stream(self._gateways, "Chat", Transcript(request, options.get("timeout")), self._metadata)

    def models(self, timeout: float | None = None) -> list[pb.Model]:
        """Lists the models that can be asked."""
        return list(self._unary("ListModels", pb.ListModelsRequest(), timeout).models)

    def stats(self, timeout: float | None = None) -> list[pb.SchedulerStats]:
        """Reports the load of the schedulers behind the gateway."""
        return list(self._unary("GetStats", pb.GetStatsRequest(), timeout).schedulers)

    def _unary(self, method: str, request: Any, timeout: float | None) -> Any:
        """Asks each gateway in turn until one answers."""
        for num_left in reversed(range(len(self._gateways.all))):
            gateway = self._gateways.current
            try:
                ask = getattr(gateway.stub, method)
                return ask(request, timeout=timeout, metadata=self._metadata)
            except grpc.RpcError as error:
                failure = error_of(error)
                if failure.code is not grpc.StatusCode.UNAVAILABLE:
                    raise failure from None
                # So that the next question finds a gateway that is back.
                _pause(FIRST_PAUSE_SECONDS, gateway.channel)
                if not num_left:
                    raise failure from None
                self._gateways.leave(gateway)
        raise AssertionError("there is a gateway")

    def close(self) -> None:
        """Closes the channels; streams that still run end as cancelled."""
        for gateway in self._gateways.all:
            gateway.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _channel(name: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    if credentials is None:
        return grpc.insecure_channel(name, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(name, credentials, options=CHANNEL_OPTIONS)


def _pause(seconds: float, channel: grpc.Channel) -> None:
    """Waits, and has gRPC connect meanwhile: unless somebody asks it to, it does so every five seconds."""
    ready = grpc.channel_ready_future(channel)
    time.sleep(seconds)
    ready.cancel()
