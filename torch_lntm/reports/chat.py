"""ChatServer: a language model behind the usual interface of chat completions."""

from __future__ import annotations

import ipaddress
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from torch_lntm.errors import ConfigError, require, require_whole

#: Path of the interface, and maximum number of characters of a server's message in an error.
_PATH, _EXCERPT = "/chat/completions", 200
#: Maximum number of tokens of an answer. Models that think first need many.
_TOKENS = 2000


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: texts go to the user's address only."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """No request: the redirect becomes an error."""


@dataclass(frozen=True)
class ChatServer:
    """A language model behind the usual interface of chat completions, as a function of a prompt.

    Many programs offer the interface on your machine or in a network. The prompt is sent to
    ``url`` only: redirects are refused, and no proxy is used for an address of this machine.

    Args:
        url: Address of the interface, such as ``"http://localhost:11434/v1"``.
        model: Name of the language model at the server.
        key: Key of the server, sent as a bearer token. Defaults to no key.
        timeout: Maximum number of seconds for an answer.
        max_bytes: Maximum size of a response.

    Raises:
        ConfigError: The address is not of HTTP, or a number is not positive.

    Example:
        >>> ask = lntm.reports.chat.ChatServer("http://localhost:11434/v1", "llama3")
        >>> ask
        ChatServer(url='http://localhost:11434/v1', model='llama3', timeout=60.0, ...)
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout: float = 60.0
    max_bytes: int = 1_000_000

    def __post_init__(self) -> None:
        """Check the settings."""
        try:
            parts = urllib.parse.urlsplit(self.url)
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
            is_valid = is_valid and parts.port != 0 and not set(self.url) & set(" \r\n\t")
        except (ValueError, AttributeError, TypeError):
            is_valid = False
        if not is_valid:
            raise ConfigError(
                f"the address of a language model is {self.url!r:.100}; expected one such as "
                "http://localhost:11434/v1"
            )
        if parts.username or parts.password:
            raise ConfigError("the address of a language model holds a password; give it as key")
        if not isinstance(self.model, str) or not self.model.strip():
            raise ConfigError(
                f"the name of the language model is {self.model!r:.60}; expected text, such as "
                "llama3"
            )
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError("the key of the language model has characters that do not print")
        require(0.001, timeout=self.timeout)
        require_whole(1, max_bytes=self.max_bytes)

    def __call__(self, prompt: str) -> str:
        """The answer to a prompt.

        Raises:
            ConfigError: The server cannot be reached, answers with an error, too late, too much, or
                in another form. The message names the address.
        """
        address = self.url.rstrip("/")
        address = address if address.endswith(_PATH) else address + _PATH
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": _TOKENS,
            "stream": False,
        }
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers)
        try:
            content = self._send(request)
        except urllib.error.HTTPError as error:
            with error:
                raise self._error(f"answers {error.code} ({_excerpt(error)})") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, TimeoutError):
                raise self._error(f"gives no answer within {self.timeout:g} seconds") from None
            raise self._error(f"cannot be reached ({str(reason)[:_EXCERPT]})") from None
        answer = None
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            answer = json.loads(content)["choices"][0]["message"]["content"]
        if not isinstance(answer, str):
            raise self._error("gives no chat completion; is it the address of that interface?")
        return answer

    def _send(self, request: urllib.request.Request) -> bytes:
        """The response, read until the time is up."""
        deadline = time.monotonic() + self.timeout
        handlers: list[Any] = [_NoRedirects()]
        if _is_this_machine(urllib.parse.urlsplit(self.url).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))
        opener = urllib.request.build_opener(*handlers)
        content = bytearray()
        with opener.open(request, timeout=self.timeout) as response:
            # The time limit of a socket is for each read, and a server may send byte by byte.
            while piece := response.read1(65_536):
                content += piece
                if len(content) > self.max_bytes:
                    raise self._error(f"sends more than {self.max_bytes} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError
        return bytes(content)

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.url}: the server of the language model {problem}")


def _excerpt(error: urllib.error.HTTPError) -> str:
    """The beginning of an error's text, printable and in one line."""
    try:
        text = error.read(4 * _EXCERPT).decode("utf-8", "replace")
    except (OSError, HTTPException):
        text = ""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text[:_EXCERPT] or str(error.reason)[:_EXCERPT]


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
