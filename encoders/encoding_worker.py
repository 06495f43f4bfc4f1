"""One process of an ``EncodingPool``: opens the encoder, then encodes what it is sent."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from encoders.encoding_pool import opened_again
from encoders.progress import counted_by


def serve(channel: Connection) -> None:
    """Answer lists of texts with ("advance", count)s and ("vectors", vectors), until the end.

    The first message is (folder, own class, options); its answer is the fingerprint. Anything that
    fails is answered with ("error", (name of the exception, message)).
    """
    try:
        encoder = opened_again(*channel.recv())
        channel.send(("ready", str(encoder.fingerprint)))
        while True:
            texts = channel.recv()
            with counted_by(lambda amount=1: channel.send(("advance", amount))):
                vectors = encoder.encode_documents(texts)
            channel.send(("vectors", vectors))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
    except Exception as error:
        channel.send(("error", (type(error).__name__, str(error))))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
