"""Several test processes in a fresh clone compile each kernel once, not once each."""

from __future__ import annotations

import fcntl
import functools
import gc
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def share_compiling() -> None:
    """Let a process that needs a kernel wait for another that is compiling it, and load that one.

    numba looks into its cache before it compiles; processes that begin at once all find nothing.
    """
    if "numba" not in sys.modules:
        return
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    compile_it = Dispatcher.compile
    place = Path(tempfile.gettempdir(), f"sluice-kernels-{os.getuid()}")
    place.mkdir(exist_ok=True)
    held: set[str] = set()

    @functools.wraps(compile_it)
    def compile_once(dispatcher: Any, signature: Any) -> Any:
        cache = getattr(dispatcher._cache, "cache_path", None)
        name = f"{cache} {dispatcher.py_func.__module__} {dispatcher.py_func.__qualname__}"
        if cache is None or name in held:  # a kernel that calls itself
            return compile_it(dispatcher, signature)
        file = place / hashlib.sha256(name.encode()).hexdigest()[:16]
        # numba's lock first: a thread that has the file may not wait for one that wants it.
        with global_compiler_lock, file.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            held.add(name)
            collecting = gc.isenabled()
            gc.disable()  # compiling makes millions of objects: a tenth of its time
            try:
                return compile_it(dispatcher, signature)
            finally:
                held.remove(name)
                if collecting:
                    gc.enable()

    Dispatcher.compile = compile_once
