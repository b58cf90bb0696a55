"""How the stack asks a service over HTTP, again and again."""

import asyncio
import re
import ssl


class HttpLine:
    """One HTTP connection, made when there is something to ask and kept for the next question."""

    def __init__(self, url: str) -> None:
        scheme, _, self._address = url.partition("://")
        self._tls: ssl.SSLContext | None = None
        if scheme == "https":
            # Whose the certificate is does not matter here, and no service wants to see one.
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def status_of(self, path: str) -> int | None:
        """Returns the status that a GET is answered with; None if nobody listens or the connection breaks."""
        try:
            if self._streams is None:
                host, _, port = self._address.rpartition(":")
                self._streams = await asyncio.open_connection(host, int(port), ssl=self._tls)
            return await self._ask(path, *self._streams)
        except (OSError, EOFError, ValueError):
            self.close()
            return None

    async def _ask(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {self._address}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?im)^content-length: *(\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        return int(head.split()[1])

    def close(self) -> None:
        """Ends the connection, if there is one."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
