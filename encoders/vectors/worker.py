"""A process of an ``EncodingPool``: opens the encoder and encodes the texts it receives."""

from __future__ import annotations

import inspect
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.foundation.measured import arithmetic
from sluice.encoders.foundation.processes import describe_error
from sluice.encoders.foundation.progress import counted_by
from sluice.encoders.foundation.tokens import TokenCounts, counting_tokens
from sluice.encoders.model_files.registry import kind_of, open_encoder
from sluice.encoders.table import ENCODERS


def serve(channel: Connection) -> None:
    """Answer lists of texts with ("advance", count)s and a last ("vectors", (vectors, counts)).

    ``counts`` are the arrays of ``TokenCounts``, or None. The first message is (folder, own class,
    options); its answer is the fingerprint. The answer to anything that fails is ("error", (name
    of the exception, message)).
    """
    try:
        encoder = reopened(*channel.recv())
        channel.send(("ready", str(encoder.fingerprint)))
        while True:
            texts = channel.recv()
            advance = counted_by(lambda amount=1: channel.send(("advance", amount)))
            with advance, counting_tokens() as counts:
                vectors = encoder.encode_documents(texts)
            joined = TokenCounts.joined(counts, len(texts))
            channel.send(("vectors", (vectors, None if joined is None else tuple(joined))))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
    except Exception as error:
        channel.send(("error", describe_error(error)))


def reopened(folder: str, own: str, options: dict[str, Any]) -> Any:
    """Open a saved encoder with the options that its type takes."""
    make = resolve(own).from_pretrained if own else open_encoder
    takes = inspect.signature(_factory(folder) if not own else make).parameters
    chosen = {name: value for name, value in options.items() if name in takes}
    with arithmetic(str(options.get("dtype", ""))):  # as in the process that it comes from
        return make(Path(folder), **chosen)


def _factory(folder: str) -> Any:
    kind = kind_of(Path(folder))
    if kind not in ENCODERS:
        raise ModelError(f"{folder}: saved by an encoder of type {kind!r}, which is not built in")
    return resolve(ENCODERS[kind])


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
