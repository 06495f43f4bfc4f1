"""A server on the loopback device that answers by a function; and what embedding APIs answer."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

Reply = tuple[int, Any, dict[str, str]]  # status, body, headers
DIM = 16


class Server:
    """Replies by a function of the request's body; remembers requests and how many at a time."""

    def __init__(self, reply: Callable[[dict[str, Any]], Reply | Any]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.most = self._now = 0
        lock, server = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    server.requests.append(body)
                    server.headers.append(dict(self.headers))
                    server.paths.append(self.path)
                    server._now += 1
                    server.most = max(server.most, server._now)
                try:
                    try:
                        found = reply(body)
                    finally:  # before the client knows, who then asks again
                        with lock:
                            server._now -= 1
                    status, content, headers = (
                        found if isinstance(found, tuple) else (200, found, {})
                    )
                    data = content if isinstance(content, bytes) else json.dumps(content).encode()
                    self.send_response(status)
                    for name, value in {"Content-Length": str(len(data)), **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # the client gave up

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def vector(text: str, dim: int = DIM) -> list[float]:
    """A vector of a text's words, not of length 1."""
    total = np.zeros(dim)
    for word in text.lower().split():
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
        total += np.random.default_rng(seed).normal(size=dim)
    return [float(value) for value in total]


def overlap(query: str, text: str) -> float:
    """The share of a query's words that a text has."""
    words = query.lower().split()
    return sum(word in text.lower().split() for word in words) / len(words)


def openai(body: dict[str, Any]) -> Any:
    texts, dim = body["input"], body.get("dimensions", DIM)
    assert body["encoding_format"] == "float"
    data = [{"index": i, "embedding": vector(text, dim)} for i, text in enumerate(texts)]
    tokens = sum(len(text.split()) for text in texts)
    return {"data": data[::-1], "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def cohere(body: dict[str, Any]) -> Any:
    if "query" in body:
        scores = [overlap(body["query"], text) for text in body["documents"]]
        assert body["top_n"] == len(scores)
        best = sorted(range(len(scores)), key=lambda place: -scores[place])
        return {
            "results": [{"index": i, "relevance_score": scores[i]} for i in best],
            "meta": {"billed_units": {"search_units": 1}},
        }
    mark = {"search_query": "", "search_document": ""}[body["input_type"]]
    vectors = [vector(mark + text, body.get("output_dimension", DIM)) for text in body["texts"]]
    units = {"input_tokens": sum(len(text.split()) for text in body["texts"])}
    return {"embeddings": {"float": vectors}, "meta": {"billed_units": units}}


def tei(body: dict[str, Any]) -> Any:
    if "query" in body:
        scores = [overlap(body["query"], text) for text in body["texts"]]
        return [{"index": i, "score": score} for i, score in enumerate(scores)][::-1]
    return [vector(text) for text in body["inputs"]]
