"""Validates grammars, in a process of their own."""

import asyncio
import json
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from outrider.params import Grammar
from outrider.rpc.errors import InvalidArgument
from services.gateway.places import Places

_MAX_NUM_WAITING = 32
_MAX_NUM_KNOWN = 256


class GrammarChecker:
    """Refuses grammars that do not compile within the limits.

    Compiling cannot be interrupted, so it happens in a process that is killed when it takes too long. One
    request at a time, tenants by turns: what compiles slowly delays other grammars, and nothing else.
    """

    def __init__(self, *, max_num_bytes: int, max_seconds: float, num_tenants: int = 1) -> None:
        self._max_num_bytes = max_num_bytes
        self._max_seconds = max_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._places = Places(_MAX_NUM_WAITING, noun="grammars to compile", num_tenants=num_tenants)
        self._lock = asyncio.Lock()
        # One of a tenant at a time waits for the process. Bounded by the tenants that have keys.
        self._tenant_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # Grammars found good lately, the oldest first.
        self._known: OrderedDict[Grammar, None] = OrderedDict()

    async def check(self, grammars: Mapping[str, Grammar], *, tenant: str) -> None:
        """Raises InvalidArgument naming the field of the first that is too large, too slow or wrong.

        All grammars of a request share one time limit.
        """
        for field, grammar in grammars.items():
            if len(grammar.text.encode()) > self._max_num_bytes:
                raise InvalidArgument(f"longer than {self._max_num_bytes} bytes", field=field)
        unknown = {field: grammar for field, grammar in grammars.items() if grammar not in self._known}
        if unknown:
            with self._places.one(tenant):
                async with self._tenant_locks[tenant], self._lock:
                    await self._ask(unknown)
        self._remember(grammars.values())

    async def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    def _remember(self, grammars: Iterable[Grammar]) -> None:
        for grammar in grammars:
            self._known[grammar] = None
            self._known.move_to_end(grammar)
        while len(self._known) > _MAX_NUM_KNOWN:
            self._known.popitem(last=False)

    async def _ask(self, grammars: Mapping[str, Grammar]) -> None:
        """Raises what `check` raises. The process answers a line for each grammar up to the first error."""
        field, answered = next(iter(grammars)), False
        try:
            async with asyncio.timeout(self._max_seconds):
                answers = await self._write(list(grammars.values()))
                for field in grammars:
                    # A line of JSON, or nothing if the process ran out of memory.
                    answer = await answers.readline()
                    error = json.loads(answer)["error"] if answer else "too large to compile"
                    if error:
                        answered = bool(answer)
                        raise InvalidArgument(error, field=field)
            answered = True
        except ConnectionError:
            raise InvalidArgument("too large to compile", field=field) from None
        except TimeoutError:
            raise InvalidArgument(f"does not compile within {self._max_seconds:g} s", field=field) from None
        finally:
            # A process that has not answered would answer the next question wrongly.
            if not answered:
                await self.close()

    async def _write(self, grammars: Sequence[Grammar]) -> asyncio.StreamReader:
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
        asked = [[grammar.language, grammar.text] for grammar in grammars]
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        await self._process.stdin.drain()
        return self._process.stdout
