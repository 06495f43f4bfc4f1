"""Cuts the text of a source file into its functions and classes, or else into paragraphs.

Python is read by its own parser, other languages by tree-sitter where it and the language's grammar
are installed. Nothing of the code is run.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from sluice.encoders.foundation.build import resolve

PYTHON = "python"
_ENDINGS = {
    PYTHON: "py pyi pyw", "javascript": "js mjs cjs jsx", "typescript": "ts tsx", "java": "java",
    "c": "c h", "cpp": "cc cpp cxx hh hpp cu", "c_sharp": "cs", "go": "go", "rust": "rs",
    "ruby": "rb", "php": "php", "scala": "scala", "kotlin": "kt", "swift": "swift", "perl": "pl pm",
    "bash": "sh bash", "lua": "lua", "r": "r", "julia": "jl", "sql": "sql", "elixir": "ex exs",
    "erlang": "erl", "haskell": "hs", "ocaml": "ml", "clojure": "clj", "objc": "m",
    "proto": "proto", "fortran": "f90", "zig": "zig",
}  # fmt: skip
LANGUAGES = {f".{end}": name for name, ends in _ENDINGS.items() for end in ends.split()}


class Definition(NamedTuple):
    """A part of a file: its first and last line, from 1, and the text of its own lines.

    ``name`` is qualified by the classes around it, "" for what is left of the file; ``within`` is
    the number of what it stands in, whose text lacks its lines.
    """

    name: str
    kind: str
    first: int
    last: int
    signature: str = ""
    docstring: str = ""
    within: int = 0
    text: str = ""


def definitions(text: str, language: str) -> tuple[list[Definition], bool]:
    """Return the parts of a source text in their order, and whether its parser took it."""
    lines = re.split(r"\r\n?|\n", text)
    if language == PYTHON:
        try:
            return _cut(lines, _of_python(text, lines)), True
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return paragraphs(lines), False
    parse = _parser(language)
    if parse is None:
        return paragraphs(lines), True
    return _cut(lines, _of_tree(parse(text.encode()), lines)), True


def _cut(lines: Sequence[str], found: Iterator[Definition]) -> list[Definition]:
    """Return definitions with their texts; number 0 is the file itself."""
    every = list(found)
    holes: list[list[Definition]] = [[] for _ in every]
    for each in every[1:]:
        holes[each.within].append(each)
    cut = []
    for each, inside in zip(every, holes, strict=True):
        own, start = list[str](), each.first
        for hole in sorted(inside, key=lambda hole: hole.first):
            own += lines[start - 1 : hole.first - 1]
            start = max(start, hole.last + 1)
        if text := "\n".join([*own, *lines[start - 1 : each.last]]).strip("\n"):
            cut.append(each._replace(text=text))
    return sorted(cut, key=lambda each: (each.first, -each.last))


Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _of_python(text: str, lines: Sequence[str]) -> Iterator[Definition]:
    """Yield a module, its classes and functions; those inside functions are a part of these."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escape sequences
        tree = ast.parse(text)
    yield Definition("", "module", 1, len(lines), docstring=ast.get_docstring(tree) or "")
    stack: list[tuple[ast.AST, str, int]] = [(tree, "", 0)]
    count = 1
    while stack:
        node, prefix, within = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Node):
                function = not isinstance(child, ast.ClassDef)
                kind = "class" if not function else "method" if prefix else "function"
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                end = max(child.body[0].lineno - 1, child.lineno)
                head = " ".join(lines[child.lineno - 1 : end])
                yield Definition(
                    prefix + child.name, kind, first, child.end_lineno or first,
                    " ".join(head.split()), ast.get_docstring(child) or "", within,
                )  # fmt: skip
                if not function:
                    stack.append((child, f"{prefix}{child.name}.", count))
                count += 1
            elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                stack.append((child, prefix, within))


VARIANTS = {"typescript": "_tsx", "php": "_php"}  # grammars that have names of their own


@cache
def _parser(language: str) -> Callable[[bytes], Any] | None:
    """Return what parses a language, None without tree-sitter or without the grammar."""
    try:
        from tree_sitter import Language, Parser

        grammar = resolve(f"tree_sitter_{language}:language{VARIANTS.get(language, '')}")
        parse: Callable[[bytes], Any] = Parser(Language(grammar())).parse
    except Exception:  # not installed, or of versions that do not go together
        return None
    return parse


FUNCTION = re.compile(r"(function|method|constructor)_(definition|declaration|item)|method")
CLASS = re.compile(
    r"(class|struct|interface|trait|impl|enum|module|namespace|object|record)"
    r"_(definition|declaration|item|specifier)|class|module"
)


def _of_tree(tree: Any, lines: Sequence[str]) -> Iterator[Definition]:
    """Yield a file, its classes and functions, of a syntax tree of tree-sitter's."""
    yield Definition("", "module", 1, len(lines))
    stack: list[tuple[Any, str, int]] = [(tree.root_node, "", 0)]
    count = 1
    while stack:
        node, prefix, within = stack.pop()
        for child in node.named_children:
            function = FUNCTION.fullmatch(child.type)
            body = child.child_by_field_name("body")
            if body is None or not (function or CLASS.fullmatch(child.type)):
                if not function:
                    stack.append((child, prefix, within))
                continue
            first, last = child.start_point[0] + 1, child.end_point[0] + 1
            head = child.text[: body.start_byte - child.start_byte].decode("utf-8", "replace")
            named, inner = (child.child_by_field_name(each) for each in ("name", "declarator"))
            while inner is not None:  # C's languages have the name inside of these
                named, inner = inner, inner.child_by_field_name("declarator")
            name = prefix + ("" if named is None else named.text.decode("utf-8", "replace"))
            before = child.prev_named_sibling
            comment = before is not None and before.type.endswith("comment")
            said = before.text.decode("utf-8", "replace") if comment else ""
            kind = "class" if not function else "method" if prefix else "function"
            yield Definition(name, kind, first, last, " ".join(head.split()), said, within)
            if not function:
                stack.append((body, f"{name}.", count))
            count += 1


LEAST, MOST = 8, 60  # lines of a paragraph


def paragraphs(lines: Sequence[str]) -> list[Definition]:
    """Return a text in parts of some lines, cut before lines at the margin behind a blank one."""
    parts, start = list[Definition](), 0
    for end in range(1, len(lines) + 1):
        margin = end < len(lines) and lines[end][:1].strip() and not lines[end - 1].strip()
        if end == len(lines) or end - start == MOST or (margin and end - start >= LEAST):
            if part := "\n".join(lines[start:end]).strip("\n"):
                name = str(len(parts) + 1)
                parts.append(Definition(name, "part", start + 1, end, text=part))
            start = end
    return parts
