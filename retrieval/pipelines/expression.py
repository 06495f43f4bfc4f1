"""Parses pipelines written as text, such as ``(bm25 | dense) % 200 >> cross(depth=50)``.

The grammar is Python's, read by ``ast`` and never executed: names, ``|``, ``+``, ``%`` and ``>>``,
weights (``0.3 * bm25 + 0.7 * dense``), calls of scorers with constants, and calls of the functions
in ``table.STAGES``. Nothing else is allowed.
"""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.build import check_arguments, resolve
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.pipelines.fitting.probability_fit import ProbabilityFit, UnfittedProbability
from sluice.retrieval.pipelines.fitting.rerank_fit import RERANKED, UnfittedRerank
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.table import DEPTH_RULES, FETCHED, STAGES, WRITERS, WRITTEN

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.fitting.rerank_fit import RerankFit

Make = Callable[[], Any]  # opens the stage or scorer of a name

NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"  # a valid name of a retriever, a reranker or a pipeline
RERANK_OPTIONS = ("depth", "interpolate", "deadline_ms")
PROBABILITY = "probability"  # of a reranker: True, to be fitted, or the file of a fit
FITTED = "fitted"  # the function; as an option of a reranker the file of these
MAX_PARTS = 200  # operators, calls and names in one expression
SYMBOLS = {ast.Sub: "-", ast.Div: "/", ast.BitAnd: "&"}
OPERATORS = "|, +, *, % and >>"


def names_in(text: str, *, where: str) -> Iterator[str]:
    """Yield the names of retrievers and rerankers an expression uses, once each."""
    nodes = list(ast.walk(_tree(text, where)))
    called = {id(n.func) for n in nodes if isinstance(n, ast.Call) and _of_table(n)}
    names = [n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in called]
    yield from dict.fromkeys(map(_spelled, names))


def texts_in(text: str, *, where: str) -> list[str]:
    """Return the string constants of an expression, such as the folders its stages read."""
    nodes = ast.walk(_tree(text, where))
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def options_in(text: str, *, where: str) -> set[str]:
    """Return the names of all options in an expression's calls."""
    nodes = ast.walk(_tree(text, where))
    return {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg is not None}


def written_in(text: str, *, where: str) -> Iterator[str]:
    """Yield the files and folders that the stages of an expression write."""
    for call, options in _calls(text, where):
        for name, option, needed in WRITTEN:
            if call == name and option in options and (needed is None or needed in options):
                yield options[option]


def caches_in(text: str, *, where: str) -> Iterator[str]:
    """Yield the files of caches, which decide nothing that a stage returns."""
    for call, options in _calls(text, where):
        for name, option, needed in WRITTEN:
            if call == name and option in options and needed is None:
                yield options[option]


def writers_in(text: str, *, where: str) -> Iterator[tuple[str, str]]:
    """Yield (function, name) of the rerankers whose language models an expression asks."""
    for node in ast.walk(_tree(text, where)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            second = node.args[1] if len(node.args) > 1 else None
            if node.func.id in WRITERS and isinstance(second, ast.Name):
                yield node.func.id, _spelled(second.id)


def fetched_in(text: str, *, where: str) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of the models and datasets that stages name, perhaps of a hub."""
    for call, options in _calls(text, where):
        for name, option in FETCHED:
            if call == name and option in options:
                yield option, options[option]


def text_options(text: str, *, where: str) -> Iterator[tuple[str, dict[str, ast.Constant]]]:
    """Yield each call's function and its options that are texts."""
    for node in ast.walk(_tree(text, where)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, {
                each.arg: each.value
                for each in node.keywords
                if each.arg and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            }  # fmt: skip


def place_in(text: str, node: ast.expr) -> slice:
    """Return where a node of an expression without space around it stands, in characters."""
    lines = [line.encode() for line in _joined(text).splitlines(keepends=True)]
    ends = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    before = (b"".join([*lines[: row - 1], lines[row - 1][:column]]) for row, column in ends)
    return slice(*(len(part.decode()) for part in before))


def _calls(text: str, where: str) -> Iterator[tuple[str, dict[str, str]]]:
    for call, options in text_options(text, where=where):
        yield call, {name: str(node.value) for name, node in options.items()}


def count_calls(text: str, function: str, *, where: str) -> int:
    """Return how often an expression calls a function of ``table.STAGES``."""
    calls = [n.func for n in ast.walk(_tree(text, where)) if isinstance(n, ast.Call)]
    return sum(isinstance(func, ast.Name) and func.id == function for func in calls)


def count_open(text: str, *, where: str) -> int:
    """Return how many stages of an expression are fitted on dev queries."""
    options = [n for n in ast.walk(_tree(text, where)) if isinstance(n, ast.keyword)]
    values = [each.value for each in options if each.arg == PROBABILITY]
    likely = sum(isinstance(value, ast.Constant) and value.value is True for value in values)
    return count_calls(text, FITTED, where=where) + likely


def functions_in(text: str, *, where: str) -> set[str]:
    """Return the names of the functions of ``table.STAGES`` that an expression calls."""
    calls = [n.func for n in ast.walk(_tree(text, where)) if isinstance(n, ast.Call)]
    return {func.id for func in calls if isinstance(func, ast.Name) and func.id in STAGES}


def depths_in(text: str, scorer: str, default: int) -> list[int]:
    """Return the depth of each call of a scorer; ``default`` where a call names none.

    Of ``fitted(scorer)`` it is the largest that is tried.
    """
    calls = [n for n in ast.walk(_tree(text, "pipeline")) if isinstance(n, ast.Call)]
    depths = []
    for call in calls:
        name = _spelled(call.func.id) if isinstance(call.func, ast.Name) else ""
        parts = [_spelled(part.id) for part in call.args if isinstance(part, ast.Name)]
        is_open = name == FITTED and scorer in parts
        if name == scorer or is_open:
            usual = RERANKED if is_open else default
            given = [k.value for k in call.keywords if k.arg == "depth"]
            values = [v.value for v in given if isinstance(v, ast.Constant)]
            depths += [v if isinstance(v, int) else usual for v in values] or [usual]
    return depths


def parse(
    text: str,
    names: Mapping[str, Make],
    *,
    where: str = "pipeline",
    first: Callable[[str, Stage], Stage] = lambda _, stage: stage,
    part: Callable[[Any], Any] = lambda opened: opened,
) -> Stage:
    """Return the stage an expression describes.

    ``names`` opens retrievers, pipelines (a ``Stage``) and scorers by name; a scorer called with
    ``depth`` is a ``Rerank``. ``first`` gets the text and the stage before each ``>>`` and returns
    the stage to use there; ``part`` gets the stage or scorer of a name in a call's parentheses and
    returns the call's argument. Raises ``ConfigError`` for anything else, with the nearest name.
    """
    return _Reader(text, names, where, first, part).stage(_tree(text, where))


def _tree(text: str, where: str) -> ast.expr:
    try:
        tree = ast.parse(_joined(text.strip()), mode="eval").body
    except (RecursionError, MemoryError):
        raise ConfigError(
            f"{where}: the pipeline is too long or too deeply nested; make its parts pipelines"
        ) from None
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{where}: {text!r} is not a pipeline ({getattr(error, 'msg', error)}); expected names "
            "joined by |, +, *, % and >>, as in (bm25 | dense) % 200 >> cross(depth=50)"
        ) from None
    parts = sum(isinstance(node, (ast.Name, ast.Call, ast.BinOp)) for node in ast.walk(tree))
    if parts > MAX_PARTS:
        raise ConfigError(f"{where}: {parts:,} names and operators; expected {MAX_PARTS} or fewer")
    return tree


def _is_number(node: ast.expr) -> bool:
    """Return whether this is a number, with or without a sign."""
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    value = inner.value if isinstance(inner, ast.Constant) else None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_table(call: ast.Call) -> bool:
    """Return whether a call is of a function, which has parts: a name may be a reranker's too."""
    return isinstance(call.func, ast.Name) and call.func.id in STAGES and bool(call.args)


_HYPHEN, _DOT = "ー", "〆"  # letters to Python, and in nobody's name
_TOKENS = re.compile(
    rf"""'[^']*' | "[^"]*" | \d[\w.]*(?:(?<=[eE])[-+]\d+)? | ({NAME})""", re.VERBOSE
)


def _joined(text: str) -> str:
    """Rewrite names with hyphens and dots (``dense-zero-shot``) as valid Python names."""

    def replaced(token: re.Match[str]) -> str:
        return token[0].replace("-", _HYPHEN).replace(".", _DOT) if token[1] else token[0]

    return _TOKENS.sub(replaced, text)


def _spelled(name: str) -> str:
    return name.replace(_HYPHEN, "-").replace(_DOT, ".")


class _Reader:
    def __init__(
        self,
        text: str,
        names: Mapping[str, Make],
        where: str,
        first: Callable[[str, Stage], Stage],
        part: Callable[[Any], Any],
    ) -> None:
        self.text, self.names, self.where, self.first = text, names, where, first
        self.part = part

    def fail(self, reason: str) -> ConfigError:
        what, semicolon, advice = reason.partition("; ")
        if not advice.startswith(("it takes", "did you mean")):
            what, semicolon, advice = reason, "", ""
        return ConfigError(f"{self.where}: {what} in {self.text!r}{semicolon}{advice}")

    def stage(self, node: ast.expr) -> Stage:
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        if isinstance(node, ast.Name):
            return self._named(node.id, {})
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called: Stage = self._call(node, node.func.id)
            return called
        raise self.fail(f"{_spelled(ast.unparse(node))!r} is not a name, a call, |, +, *, % or >>")

    def _operation(self, node: ast.BinOp) -> Stage:
        if isinstance(node.op, ast.Mod):
            cut: Stage = self._built(
                operator.mod, self.stage(node.left), self._constant(node.right)
            )
            return cut
        if isinstance(node.op, ast.RShift):
            before = self.stage(node.left)
            first = self.first(ast.unparse(node.left), before)
            second = self.stage(node.right)
            self._built(second.check_first, before)
            return first >> second
        if isinstance(node.op, ast.BitOr):
            return self.stage(node.left) | self.stage(node.right)
        if isinstance(node.op, ast.Add):
            return self.stage(node.left) + self.stage(node.right)
        if isinstance(node.op, ast.Mult):
            return self._weighted(node)
        symbol = SYMBOLS.get(type(node.op), type(node.op).__name__)
        raise self.fail(f"operator {symbol} is not supported (use {OPERATORS})")

    def _weighted(self, node: ast.BinOp) -> Stage:
        """Return ``0.3 * a`` or ``a * 0.3``."""
        weight, part = node.left, node.right
        if not _is_number(weight):
            weight, part = part, weight
        if not _is_number(weight):
            raise self.fail("* takes a number and a pipeline, as in 0.3 * bm25 + 0.7 * dense,")
        stage: Stage = self._built(operator.mul, self.stage(part), self._constant(weight))
        return stage

    def _call(self, node: ast.Call, name: str, *, part: bool = False) -> Any:
        options = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.fail("** is not supported")
            options[keyword.arg] = self._constant(keyword.value)
        if name in STAGES and (node.args or name not in self.names):
            return self._from_table(name, node.args, options, part=part)
        if node.args:
            raise self.fail(f"{_spelled(name)} takes named arguments only, as in depth=50")
        return self._named(name, options)

    def _from_table(
        self, name: str, nodes: Sequence[ast.expr], options: dict[str, Any], *, part: bool
    ) -> Any:
        """Return a stage of the table, or a reranker by a scorer of it.

        As an argument of another call, a scorer without options of ``Rerank`` is returned itself.
        """
        make = resolve(STAGES[name])
        parts = [self._part(node) for node in nodes]
        signature = inspect.signature(make)
        own = {key: value for key, value in options.items() if key in signature.parameters}
        rest = {key: value for key, value in options.items() if key not in own}
        try:
            check_arguments(make, own, where=name, kind=name)
            signature.bind(*parts, **own)
        except ConfigError as error:
            raise self.fail(str(error)) from None
        except TypeError as error:
            raise self.fail(f"{name}(...): {error}") from None
        built: Any = self._built(make, *parts, **own)
        if isinstance(built, UnfittedRerank):
            built = built.labelled(_spelled(ast.unparse(nodes[0])))
        if isinstance(built, Stage):
            known = [key for key, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY]
            self._check(rest, known, name)
            return built
        if part and not rest:
            return built
        return self._reranker(built, name, rest, shown=options)

    def _part(self, node: ast.expr) -> Any:
        """Return the stage, or the scorer, that an argument of a call describes."""
        name = _spelled(node.id) if isinstance(node, ast.Name) else ""
        if _is_number(node):
            return self._constant(node)
        if name in self.names:
            return self.part(self.names[name]())
        if isinstance(node, ast.Call) and _of_table(node):
            return self._call(node, ast.unparse(node.func), part=True)
        return self.stage(node)

    def _named(self, name: str, options: dict[str, Any]) -> Stage:
        name = _spelled(name)
        if name not in self.names and name in STAGES:
            raise self.fail(f"{name} is a function (write {name}(...) with its parts)")
        if name not in self.names:
            known = ", ".join(sorted(self.names)) or "none are defined"
            near = suggest(name, [*self.names, *STAGES])
            raise self.fail(f"unknown name {name!r} (known: {known}{near})")
        opened = self.names[name]()
        if isinstance(opened, Stage):
            self._check(options, (), name)
            return opened
        return self._reranker(opened, name, options, shown=options)

    def _reranker(
        self, scorer: Any, name: str, options: Mapping[str, Any], *, shown: Mapping[str, Any]
    ) -> Stage:
        self._check(options, (*RERANK_OPTIONS, *DEPTH_RULES, FITTED, PROBABILITY), name)
        options = dict(options)
        likely = options.pop(PROBABILITY, False)
        if FITTED in options:
            fit = self._built(_fit_for, name, **options)
            chosen = {"depth": fit.depth, "interpolate": fit.interpolate}
            shown = {**shown, **chosen}
            options = {**options, **chosen, FITTED: (options[FITTED], fit.parts)}
        rules = [
            self._built(resolve(rule), options[key])
            for key, rule in DEPTH_RULES.items()
            if key in options
        ]
        own = {"depth": 100, **{key: options[key] for key in RERANK_OPTIONS if key in options}}
        own[FITTED] = options.get(FITTED)
        text = ", ".join(f"{key}={value}" for key, value in {"depth": 100, **shown}.items())
        rerank: Rerank = self._built(Rerank, scorer, **own, rules=rules, name=f"{name}({text})")
        if likely is False:
            return rerank
        stage: Stage = self._built(_with_probability, rerank, likely)
        return stage

    def _built(self, kind: Callable[..., Any], /, *parts: Any, **options: Any) -> Any:
        try:
            return kind(*parts, **options)
        except (ConfigError, TypeError, ValueError) as error:
            raise self.fail(str(error)) from None

    def _check(self, options: Mapping[str, Any], known: Sequence[str], name: str) -> None:
        for key in options:
            if key not in known:
                takes = f"it takes {', '.join(known) or 'no arguments'}{suggest(key, known)}"
                raise self.fail(f"{name} takes no {key!r}; {takes}")

    def _constant(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError):
            raise self.fail(f"{_spelled(ast.unparse(node))!r} is not a constant") from None


def _with_probability(rerank: Rerank, probability: Any) -> Stage:
    """Return a reranker whose scores are probabilities: of a file, or to be fitted."""
    if isinstance(probability, str):
        fit = ProbabilityFit.load(probability)
        return rerank.with_probability(fit.scale, fit.bias)
    if probability is not True:
        raise ConfigError(
            f"probability: {probability!r}; expected True, or a file that a fitted one is kept in"
        )
    return UnfittedProbability(rerank)


def _fit_for(name: str, *, fitted: str, **others: Any) -> RerankFit:
    """Return what is in a file that ``sluice fit rerank`` wrote for a scorer."""
    from sluice.retrieval.pipelines.fitting.rerank_fit import RerankFit

    twice = [option for option in ("depth", "interpolate") if option in others]
    if twice:
        raise ConfigError(f"fitted and {twice[0]}: both give it; expected one of the two")
    fit = RerankFit.load(fitted)
    scorer = fit.scorer.partition("(")[0]
    if fit.origin and scorer != name:  # in Python a scorer may have any name
        raise ConfigError(
            f"fitted={fitted!r}: was fitted for {scorer} and not for {name}: it is the file of "
            "another pipeline; fit it again with `sluice fit rerank`"
        )
    return fit
