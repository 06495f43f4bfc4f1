"""Posts JSON over HTTP and retries failed requests where that may help."""

from __future__ import annotations

import http.client
import io
import json
import logging
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number

log = logging.getLogger("sluice")
Answered = TypeVar("Answered")

TRIED_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
LONGEST_WAIT = 60.0  # seconds between two tries, whatever the server asks for
LONGEST = 86_400  # seconds of a request
MOST = 1_000  # retries
MOST_A_MINUTE = 1_000_000  # requests
LONGEST_KEY = 8_192  # bytes
LARGEST = 16 * 1024 * 1024  # bytes of an answer
SHOWN = 200  # characters of a server's message


class HttpJson:
    """Posts JSON to one address and reads JSON.

    A request is given up after ``timeout_s`` seconds, its answer included. It is sent again up to
    ``retries`` times after timeouts, broken connections, answers that cannot be read, and the
    statuses 408, 429 and 5xx: after ``backoff_s`` seconds, twice as many each further time, or as
    many as a ``Retry-After`` asks for. The key is read from the environment variable
    ``api_key_env``, or from the file ``api_key_file``, each time and is in no message. Redirects
    are not followed: they could carry it elsewhere. Proxies are those of the environment. With
    ``requests_per_minute`` requests of all threads begin at least so far apart.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key_env: str | None = None,
        api_key_file: str | None = None,
        requests_per_minute: float | None = None,
        timeout_s: float = 60.0,
        retries: int = 4,
        backoff_s: float = 1.0,
    ) -> None:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except (AttributeError, ValueError):  # not text, an incomplete address, an invalid port
            good = False
        if not good:
            raise ConfigError(f"url: {url!r}; expected one like https://host/v1")
        if parts.username or parts.password or parts.query:
            raise ConfigError(
                "url: contains a user, a password or a query; put the key into the "
                "environment variable that api_key_env names"
            )
        if not 0 < timeout_s <= LONGEST or not backoff_s >= 0 or not 0 <= retries <= MOST:
            raise ConfigError(
                f"timeout_s {timeout_s}, backoff_s {backoff_s}, retries {retries}: expected a time "
                f"above 0 and up to {LONGEST:,}, 0 or more, and 0 to {MOST}"
            )
        if api_key_env is not None and api_key_file is not None:
            raise ConfigError("api_key_file: beside api_key_env; give one of them")
        if requests_per_minute is not None and not 0 < requests_per_minute <= MOST_A_MINUTE:
            raise ConfigError(
                f"requests_per_minute: {requests_per_minute}; expected above 0 and up to "
                f"{MOST_A_MINUTE:,}"
            )
        self.url = url
        self.api_key_env = api_key_env
        self.api_key_file = api_key_file
        self._pause = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._next, self._turn = 0.0, threading.Lock()
        self.timeout_s = timeout_s
        self.retries = whole_number(retries, "retries", 0)
        self.backoff_s = backoff_s
        self._opener = urllib.request.build_opener(_NoRedirect, _TimedHandler)
        self._key()

    def post(self, body: Any, check: Any = None, stop: threading.Event | None = None) -> Any:
        """Return the answer to ``body``; ``ModelError`` if there is none after all retries.

        ``check`` is called with the answer and raises ``ValueError`` for an invalid one.
        ``stop``, once set, ends the waiting between tries.
        """
        waiting = stop or threading.Event()
        for left in range(self.retries, -1, -1):
            self._wait_for_turn(waiting)
            try:
                answer = self._sent(body)
                return answer if check is None else check(answer)
            except urllib.error.HTTPError as error:
                reason, asked = self._status(error)
            except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
                reason, asked = f"{type(error).__name__}: {self._safe(str(error))}", None
            if left == 0 or waiting.is_set():
                break
            wait = self.backoff_s * 2 ** (self.retries - left) if asked is None else asked
            log.info("%s: %s; retrying, at most %d more times", self.url, reason, left)
            waiting.wait(min(wait, LONGEST_WAIT))
        raise ModelError(
            f"{self.url}: {reason} ({self.retries + 1} tries of {self.timeout_s:g} s); check the "
            "address and the server, or raise retries or timeout_s"
        )

    def _wait_for_turn(self, waiting: threading.Event) -> None:
        if self._pause:
            with self._turn:
                begins = max(time.monotonic(), self._next)
                self._next = begins + self._pause
            waiting.wait(max(begins - time.monotonic(), 0.0))

    def _sent(self, body: Any) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        key = self._key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url, data, headers)
        with self._opener.open(request, timeout=self.timeout_s) as response:
            return json.loads(_read(response))

    def _status(self, error: urllib.error.HTTPError) -> tuple[str, float | None]:
        """Return the reason of a refusal and the seconds to wait; raise if a retry cannot help."""
        with error:
            try:
                message = error.read(4 * SHOWN).decode("utf-8", "replace")
            except (OSError, http.client.HTTPException):
                message = ""
            asked = error.headers.get("Retry-After", "") if error.headers else ""
        reason = f"status {error.code} {self._safe(message)}".strip()
        if error.code not in TRIED_AGAIN and error.code < 500:
            hint = "; check api_key_env or api_key_file" if error.code in (401, 403) else ""
            raise ModelError(f"{self.url}: {reason}{hint}")
        return reason, float(asked) if asked.strip().isdecimal() else None

    def _key(self) -> str:
        if self.api_key_env is None and self.api_key_file is None:
            return ""
        key = self._found_key()
        if not key or not key.isascii() or not key.isprintable():
            if self.api_key_file is not None:
                raise ConfigError(f"api_key_file: {self.api_key_file} holds no key in one line")
            raise ConfigError(
                f"api_key_env: the environment variable {self.api_key_env} is not set to a key"
            )
        return key

    def _found_key(self) -> str:
        if self.api_key_file is None:
            return os.environ.get(self.api_key_env or "", "").strip()
        try:
            with expanded(self.api_key_file).open("rb") as file:
                return file.read(LONGEST_KEY).decode("ascii", "replace").strip()
        except OSError as error:
            raise ConfigError(
                f"api_key_file: {self.api_key_file}: {error.strerror or error}"
            ) from None

    def _safe(self, text: str) -> str:
        """Return a message in one line, without the key."""
        try:
            key = self._key()
        except ConfigError:  # gone meanwhile
            key = ""
        text = text.replace(key, "***") if key else text
        return " ".join(text.split())[:SHOWN]


def in_threads(
    ask: Callable[..., Answered], calls: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[Answered]:
    """Yield ``ask(*call, stop)`` of each call, in order; an error sets ``stop`` and ends others."""
    stop = threading.Event()
    with ThreadPoolExecutor(workers, thread_name_prefix="sluice-http") as pool:
        waiting = [pool.submit(ask, *call, stop) for call in calls]
        try:
            for each in waiting:
                yield each.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class _InTime(io.RawIOBase):
    """What a server sends, drop by drop perhaps, until ``ends``."""

    def __init__(self, stream: Any, sock: socket.socket, ends: float) -> None:
        self._stream, self._sock, self._ends = stream, sock, ends

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer took too long")
        self._sock.settimeout(left)
        return self._stream.readinto(buffer)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._stream.close()
        super().close()


class _TimedHandler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens addresses; the timeout is for all of an answer, not for each part of it."""

    def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
        ends = time.monotonic() + req.timeout

        def answer(sock: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
            response: Any = http.client.HTTPResponse(sock, *args, **options)
            response.fp = io.BufferedReader(_InTime(response.fp.detach(), sock, ends))
            return response  # type: ignore[no-any-return]

        def connection(*args: Any, **options: Any) -> Any:
            made = http_class(*args, **options)
            made.response_class = answer
            return made

        return super().do_open(connection, req, **options)


def _read(response: IO[bytes]) -> bytes:
    """Read an answer of a bounded size."""
    parts, size = list[bytes](), 0
    read = getattr(response, "read1", response.read)
    while part := read(65_536):
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            raise ValueError(f"an answer of more than {LARGEST:,} bytes")
    return b"".join(parts)
