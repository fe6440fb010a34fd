"""A language model behind the usual interface of chat completions, as a function of a prompt."""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from torch_lntm.errors import ConfigError

#: Path of the interface, most tokens of an answer (models that think first need many), most bytes
#: of a response, and most characters of a server's message in an error.
_PATH, _TOKENS, _BYTES, _EXCERPT = "/chat/completions", 2000, 1_000_000, 200


@dataclass(frozen=True)
class ChatServer:
    """A language model behind the usual interface of chat completions, as a function of a prompt.

    Many programs offer the interface on your machine or in a network. The prompt is sent to
    ``url`` only, without redirects and proxies, and no message shows the key.

    Args:
        url: Address of the interface, such as ``"http://localhost:11434/v1"``.
        model: Name of the language model at the server.
        key: Key of the server, sent as a bearer token. Defaults to no key.
        timeout: Maximum number of seconds for a whole answer.

    Raises:
        ConfigError: The address is not of HTTP or holds a password.

    Example:
        >>> from torch_lntm.reports.chat import ChatServer
        >>> ChatServer("http://localhost:11434/v1", "llama3")
        ChatServer(url='http://localhost:11434/v1', model='llama3', timeout=60.0)
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout: float = 60.0

    def __post_init__(self) -> None:
        """Check the settings."""
        if not re.fullmatch(r"https?://[^\s/?#@]+(/\S*)?", str(self.url)):
            shown = re.sub("//.*@", "//…@", str(self.url))  # a password
            raise ConfigError(f"{shown!r:.99}; expected one such as http://localhost:11434/v1")

    def __call__(self, prompt: str) -> str:
        """The answer to a prompt.

        Raises:
            ConfigError: The server cannot be reached, answers with an error, too late, too much, or
                in another form. The message names the address.
        """
        found: list[Any] = []
        # The limit of a socket is for each read, and a server may send byte by byte for ever.
        talk = threading.Thread(target=self._talk, args=(prompt, found), daemon=True)
        talk.start()
        talk.join(self.timeout)
        problem = "gives no chat completion; is it the address of that interface?"
        if talk.is_alive():
            with suppress(OSError, LookupError):
                found[0].shutdown(socket.SHUT_RDWR)
            problem = f"gives no answer within {self.timeout:g} seconds"
        elif found[-1][0] == "answers 200":
            with suppress(ValueError, LookupError, TypeError, RecursionError):
                answer = json.loads(found[-1][1])["choices"][0]["message"]["content"]
                if isinstance(answer, str) and (self.key or "\0") not in answer:
                    return answer
        else:
            problem = f"{found[-1][0]} ({self._shown(found[-1][1])})"
        raise ConfigError(f"{self.url}: the server of the language model {problem}")

    def _talk(self, prompt: str, found: list[Any]) -> None:
        """Append the socket, then what the server did, and the content."""
        parts, body = urlsplit(self.url), {"model": self.model, "max_tokens": _TOKENS}
        body |= {"temperature": 0, "messages": [{"role": "user", "content": prompt}]}
        head = {"Content-Type": "application/json"}
        head |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        try:
            with closing(kind(parts.netloc, timeout=self.timeout + 1)) as connection:
                connection.connect()
                found.append(connection.sock)
                path = parts.path.rstrip("/").removesuffix(_PATH) + _PATH
                connection.request("POST", path, json.dumps(body), head)
                response = connection.getresponse()
                found.append((f"answers {response.status}", response.read(_BYTES)))
        except (OSError, HTTPException, ValueError) as error:
            found.append(("cannot be reached", str(error).encode()))

    def _shown(self, content: bytes) -> str:
        """The beginning of a server's text in a line; nothing if it holds a part of the key."""
        key, text = self.key or "\0", content[: 4 * _EXCERPT].decode("utf-8", "replace")
        if any(key[i : i + 6] in text for i in range(max(1, len(key) - 5))):
            return "…"
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_EXCERPT]
