#!/usr/bin/env python
"""A decision model behind HTTP, on the loopback: a language model's choice with its probability.

    python scripts/decision_server.py MODEL [--port 0]

Prints its address and answers ``POST /v1/chat/completions`` as an endpoint with structured output
does: ``response_format`` is a JSON schema whose ``choice`` is an enum, the answer
``{"choice": ..., "probability": ...}``. The choice is the likeliest of them by the model's next
token, and its probability that token's share among them. One prompt is read at a time.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from harness import options

from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.rerankers.language_model import Prompt
from sluice.encoders.rerankers.local_language_model import LocalLanguageModel


def decision(model: LocalLanguageModel, body: dict[str, Any]) -> str:
    """Return the JSON that the schema of a request asks for; ``KeyError`` if it has none."""
    schema = body["response_format"]["json_schema"]["schema"]
    choices = schema["properties"]["choice"]["enum"]
    prompt = Prompt((body["messages"][-1]["content"],), ())
    (shares,) = np.exp(model.answers([prompt], choices))
    best = int(shares.argmax())
    return json.dumps({"choice": choices[best], "probability": round(float(shares[best]), 6)})


def server(model: LocalLanguageModel, port: int) -> ThreadingHTTPServer:
    """Return a server on the loopback; port 0 takes any that is free."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                with lock:
                    text = decision(model, json.loads(raw))
                message = {"role": "assistant", "content": text}
                status, said = 200, {"choices": [{"index": 0, "message": message}]}
            except (KeyError, TypeError, IndexError, ValueError) as error:
                wanted = "expected messages, and a response_format whose choice is an enum"
                status, said = 400, {"error": {"message": f"{error}; {wanted}"}}
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    arguments = options(__doc__, {"model": "a language model", "--port": 0})
    model = LocalLanguageModel.from_pretrained(model_folder(arguments.model), dtype="auto")
    listening = server(model, arguments.port)
    print(f"http://127.0.0.1:{listening.server_address[1]}/v1", flush=True)
    listening.serve_forever()


if __name__ == "__main__":
    main()
