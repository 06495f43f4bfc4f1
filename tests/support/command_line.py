"""The command ``sluice`` in this process: words in; exit code, output and errors out."""

from collections.abc import Callable

Call = Callable[..., tuple[int, str, str]]
