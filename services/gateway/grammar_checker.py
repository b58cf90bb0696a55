"""Validates grammars, in a process of their own."""

import asyncio
import json
import sys
from collections import OrderedDict
from datetime import timedelta

from outrider.params import Grammar
from outrider.rpc.errors import InvalidArgument, ResourceExhausted

_MAX_NUM_WAITING = 32
_MAX_NUM_KNOWN = 256


class GrammarChecker:
    """Refuses grammars that do not compile within the limits.

    Compiling cannot be interrupted, so it happens in a process that is killed when it takes too long. One at
    a time: what compiles slowly delays other grammars, and nothing else.
    """

    def __init__(self, *, max_num_bytes: int, max_seconds: float) -> None:
        self._max_num_bytes = max_num_bytes
        self._max_seconds = max_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._num_waiting = 0
        # Grammars found good lately, the oldest first.
        self._known: OrderedDict[Grammar, None] = OrderedDict()

    async def check(self, grammar: Grammar, *, field: str) -> None:
        """Raises InvalidArgument naming `field` for a grammar that is too large, too slow or wrong."""
        if len(grammar.text.encode()) > self._max_num_bytes:
            raise InvalidArgument(f"longer than {self._max_num_bytes} bytes", field=field)
        if grammar in self._known:
            self._known.move_to_end(grammar)
            return
        if error := await self._ask_in_turn(grammar, field):
            raise InvalidArgument(error, field=field)
        self._known[grammar] = None
        if len(self._known) > _MAX_NUM_KNOWN:
            self._known.popitem(last=False)

    async def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def _ask_in_turn(self, grammar: Grammar, field: str) -> str:
        if self._num_waiting >= _MAX_NUM_WAITING:
            raise ResourceExhausted("too many grammars to compile", retry_delay=timedelta(seconds=1))
        self._num_waiting += 1
        try:
            async with self._lock:
                return await self._ask(grammar, field)
        finally:
            self._num_waiting -= 1

    async def _ask(self, grammar: Grammar, field: str) -> str:
        """Returns the error, or nothing."""
        answered = False
        try:
            async with asyncio.timeout(self._max_seconds):
                answer = await self._exchange(grammar)
            answered = bool(answer)
            return json.loads(answer)["error"] if answer else "too large to compile"
        except ConnectionError:
            return "too large to compile"
        except TimeoutError:
            raise InvalidArgument(f"does not compile within {self._max_seconds:g} s", field=field) from None
        finally:
            # A process that has not answered would answer the next question wrongly.
            if not answered:
                await self.close()

    async def _exchange(self, grammar: Grammar) -> bytes:
        """Returns a line of JSON, or nothing if the process ran out of memory."""
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.gateway.grammar_process",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([grammar.language, grammar.text]).encode() + b"\n")
        await self._process.stdin.drain()
        return await self._process.stdout.readline()
