"""A process that searches shards: it answers the frames of a socket until that is closed.

A frame is the number of a request, its length and its bytes. Number 0 is answered at once.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

FRAME: Final = struct.Struct("<QQ")  # the number of a request, and the bytes that follow
TOGETHER = 8  # requests at a time


def read_frame(stream: socket.socket) -> tuple[int, bytearray] | None:
    """Return the next frame; None where the stream has ended."""
    head = _read(stream, FRAME.size)
    if head is None:
        return None
    number, length = FRAME.unpack(head)
    body = _read(stream, length)
    return None if body is None else (number, body)


def _read(stream: socket.socket, length: int) -> bytearray | None:
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        try:
            count = stream.recv_into(view[filled:])
        except OSError:
            return None
        if not count:
            return None
        filled += count
    return data


def write_frame(stream: socket.socket, number: int, body: bytes) -> None:
    """Write a frame; the caller lets no other write meanwhile."""
    stream.sendall(FRAME.pack(number, len(body)) + body)


def serve(stream: socket.socket) -> None:
    """Answer requests until the stream ends; then the process ends too."""
    from sluice.retrieval.retrievers.shards.workers.crew import ShardSearcher

    searcher, writing = ShardSearcher(), threading.Lock()

    def send(number: int, body: bytes) -> None:
        try:
            with writing:
                write_frame(stream, number, body)
        except OSError:
            os._exit(0)  # nobody reads it

    def work(number: int, request: bytearray) -> None:
        send(number, searcher.answer(bytes(request)))

    pool = ThreadPoolExecutor(TOGETHER, thread_name_prefix="search")
    send(0, b"")
    while (frame := read_frame(stream)) is not None:
        number, request = frame
        if number:
            pool.submit(work, number, request)
        else:
            send(0, b"")
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
