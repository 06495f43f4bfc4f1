"""Pipelines written as text: ``(bm25 | dense) % 200 >> cross(depth=50)``, parsed safely.

The grammar is Python's, read by ``ast`` and never executed: names, ``|``, ``%`` and ``>>``, and
calls with constants. Nothing else is understood.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from encoders.errors import ConfigError, suggest
from retrieval.fuse import METHODS, Fuse
from retrieval.rerank import Rerank
from retrieval.stage import Cut, Stage

Make = Callable[[], Any]  # opens the stage or scorer a name stands for

NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"  # what a retriever, a reranker or a pipeline may be called
MAX_PARTS = 200  # operators, calls and names in one expression


def names_in(text: str, *, where: str) -> Iterator[str]:
    """Yield the names of retrievers and rerankers an expression uses, once each."""
    nodes = list(ast.walk(_tree(text, where)))
    methods = {id(n.func) for n in nodes if isinstance(n, ast.Call) and _method(n.func)}
    names = [n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in methods]
    yield from dict.fromkeys(map(_spelled, names))


def parse(text: str, names: Mapping[str, Make], *, where: str = "pipeline") -> Stage:
    """Return the stage an expression describes.

    ``names`` opens retrievers, pipelines (a ``Stage``) and scorers by name; a scorer called with
    ``depth`` is a ``Rerank``. Raises ``ConfigError`` for anything else, with the nearest name.
    """
    return _Reader(text, names, where).stage(_tree(text, where))


def _tree(text: str, where: str) -> ast.expr:
    try:
        tree = ast.parse(_joined(text.strip()), mode="eval").body
    except (RecursionError, MemoryError):
        raise ConfigError(f"{where}: a pipeline this long or deep is not understood") from None
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{where}: {text!r} is not a pipeline ({getattr(error, 'msg', error)}); expected names "
            "joined by |, % and >>, as in (bm25 | dense) % 200 >> cross(depth=50)"
        ) from None
    parts = sum(isinstance(node, (ast.Name, ast.Call, ast.BinOp)) for node in ast.walk(tree))
    if parts > MAX_PARTS:
        raise ConfigError(f"{where}: {parts:,} names and operators; expected {MAX_PARTS} or fewer")
    return tree


def _method(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in METHODS


_HYPHEN, _DOT = "ー", "〆"  # letters to Python, and in nobody's name
_TOKENS = re.compile(
    rf"""'[^']*' | "[^"]*" | \d[\w.]*(?:(?<=[eE])[-+]\d+)? | ({NAME})""", re.VERBOSE
)


def _joined(text: str) -> str:
    """Make names with hyphens and dots (``dense-zero-shot``) names to Python."""

    def replaced(token: re.Match[str]) -> str:
        return token[0].replace("-", _HYPHEN).replace(".", _DOT) if token[1] else token[0]

    return _TOKENS.sub(replaced, text)


def _spelled(name: str) -> str:
    return name.replace(_HYPHEN, "-").replace(_DOT, ".")


class _Reader:
    def __init__(self, text: str, names: Mapping[str, Make], where: str) -> None:
        self.text, self.names, self.where = text, names, where

    def fail(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.where}: {reason} in {self.text!r}")

    def stage(self, node: ast.expr) -> Stage:
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        if isinstance(node, ast.Name):
            return self._named(node.id, {})
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node, node.func.id)
        raise self.fail(f"{_spelled(ast.unparse(node))!r} is not a name, a call, |, % or >>")

    def _operation(self, node: ast.BinOp) -> Stage:
        if isinstance(node.op, ast.Mod):
            return self._made(Cut, self.stage(node.left), self._constant(node.right))
        if isinstance(node.op, ast.RShift):
            return self.stage(node.left) >> self.stage(node.right)
        if isinstance(node.op, ast.BitOr):
            return self.stage(node.left) | self.stage(node.right)
        raise self.fail(f"operator {type(node.op).__name__} has no meaning")

    def _call(self, node: ast.Call, name: str) -> Stage:
        options = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.fail("** has no meaning")
            options[keyword.arg] = self._constant(keyword.value)
        if name in METHODS:
            parts = [self.stage(argument) for argument in node.args]
            if len(parts) < 2:
                raise self.fail(f"{name}(...) fuses two stages or more")
            self._check(options, ("rank_constant", "weights", "normalise"), name)
            return self._made(Fuse, parts, method=name, **options)
        if node.args:
            raise self.fail(f"{_spelled(name)} takes named arguments only, as in depth=50")
        return self._named(name, options)

    def _named(self, name: str, options: dict[str, Any]) -> Stage:
        name = _spelled(name)
        if name not in self.names:
            known = ", ".join(sorted(self.names)) or "none are defined"
            raise self.fail(f"unknown name {name!r} (known: {known}{suggest(name, self.names)})")
        made = self.names[name]()
        if isinstance(made, Stage):
            self._check(options, (), name)
            return made
        self._check(options, ("depth", "interpolate"), name)
        given = {"depth": 100, **options}
        shown = ", ".join(f"{key}={value}" for key, value in given.items())
        return self._made(Rerank, made, **given, name=f"{name}({shown})")

    def _made(self, kind: Callable[..., Stage], *parts: Any, **options: Any) -> Stage:
        try:
            return kind(*parts, **options)
        except (ConfigError, TypeError, ValueError) as error:
            raise self.fail(str(error)) from None

    def _check(self, options: Mapping[str, Any], known: tuple[str, ...], name: str) -> None:
        for key in options:
            if key not in known:
                takes = f"takes {', '.join(known)}" if known else "takes no arguments"
                raise self.fail(f"{name} {takes}, not {key!r}{suggest(key, known)}")

    def _constant(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError):
            raise self.fail(f"{_spelled(ast.unparse(node))!r} is not a constant") from None
