"""A server of files on the loopback address."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and notes what is requested."""

    def do_GET(self) -> None:
        self.server.requested.append(self.path.removeprefix("/"))
        stops = self.server.stops
        if stops is None or not self.path.endswith(stops):
            super().do_GET()
            return
        size = Path(self.translate_path(self.path)).stat().st_size
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(b"x" * (size // 2))
        self.server.silence.wait(20)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Keeps standard error clean."""


class Server:
    """A server on the loopback address.

    Attributes:
        folder: The folder that is served.
        requested: Paths of the files that were requested.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        handler = functools.partial(Handler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.requested = self.server.requested = []
        self.server.stops, self.server.silence = None, threading.Event()
        self.address = f"http://127.0.0.1:{self.server.server_port}/posts"

    def stop_at(self, name: str | None, *, silent: bool = False) -> None:
        """From now on, the server breaks off, or falls silent, in the middle of such files."""
        self.server.stops = name
        self.server.silence.clear() if silent else self.server.silence.set()

    def shards(self) -> set[str]:
        """Names of the shards with a requested file; the list of requests starts anew."""
        found = {name for path in self.requested for name in re.findall(r"shard-\d+", path)}
        self.requested.clear()
        return found


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Context with a server of a folder."""
    server = Server(folder)
    thread = threading.Thread(target=server.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.stop_at(None)
        server.server.shutdown()
        thread.join()
        server.server.server_close()
