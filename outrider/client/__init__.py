"""The client: questions in, streams of answers out, each of them whole even if a gateway dies under it."""

from outrider.client.aio import AsyncClient, AsyncStream
from outrider.client.answer import Answer, Delta, SourceStatistics, Statistics, ToolCall, ToolCallDelta, Usage
from outrider.client.channel import ClientTls
from outrider.client.question import Message, Options, Tool
from outrider.client.sync import Client, Stream

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "ClientTls",
    "Delta",
    "Message",
    "Options",
    "SourceStatistics",
    "Statistics",
    "Stream",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
]
