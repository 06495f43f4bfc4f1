"""Synonyms from a file: a query is also searched with its phrases replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.input.bounded import expanded, read_whole
from sluice.encoders.foundation.numbers import finite_number
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.stages.transforms.stage import Transformed, Variant

LARGEST = 64 << 20  # bytes of a file
MOST = 32  # variants of a query


class Synonyms:
    """The transform of ``rules``: what each phrase may be replaced by, and whether it then goes.

    A query keeps weight 1. For each phrase in it, whole words whatever their case, the longest
    first and none inside another, ``weight`` is shared among the texts in which one of its synonyms
    stands in its place. A phrase of ``=>`` is replaced, by the first of its synonyms, in all texts.
    """

    def __init__(
        self,
        rules: Mapping[str, Sequence[str]],
        replaced: Mapping[str, Sequence[str]],
        weight: float,
    ) -> None:
        self.rules = {_folded(phrase): list(to) for phrase, to in {**rules, **replaced}.items()}
        self.replaced = frozenset(map(_folded, replaced))
        self.weight = finite_number(weight, "synonyms: weight", 0)
        longest_first = sorted(self.rules, key=lambda phrase: (-len(phrase), phrase))
        words = [r"\s+".join(map(re.escape, phrase.split())) for phrase in longest_first]
        self._phrases = re.compile(rf"(?<!\w)(?:{'|'.join(words) or '(?!)'})(?!\w)", re.IGNORECASE)

    def variants(self, queries: Sequence[str]) -> list[list[Variant]]:
        """Return each query and its texts with synonyms."""
        return [list(islice(self._of(query), MOST)) for query in queries]

    def _of(self, query: str) -> Iterator[Variant]:
        parts: list[str] = []  # of the text: between phrases, and phrases
        options: dict[int, list[str]] = {}  # by place in it
        end = 0
        for match in self._phrases.finditer(query):
            phrase = _folded(match[0])
            if phrase not in self.rules:  # a dotted capital I matches i, and folds to another
                continue
            to = self.rules[phrase]
            parts += [query[end : match.start()], match[0]]
            end = match.end()
            if phrase in self.replaced:
                parts[-1], to = to[0], to[1:]
            options[len(parts) - 1] = to
        parts.append(query[end:])
        yield Variant("".join(parts))
        for place, to in options.items():
            for each in to:
                text = "".join([*parts[:place], each, *parts[place + 1 :]])
                yield Variant(text, self.weight / len(to))


def read_synonyms(path: str | Path, weight: float = 0.5) -> Synonyms:
    """Read a file of lines as ``parsed`` describes them; ``ConfigError`` for a missing file."""
    return parsed(_lines(path), str(path), weight)


def parsed(lines: Sequence[str], where: str, weight: float = 0.5) -> Synonyms:
    """Return the synonyms of lines in the form of Solr and Elasticsearch.

    A line ``television, tv, telly`` makes each stand for the others; ``i-pod, i pod => ipod``
    replaces the left by the right. Blank lines and ``#`` lines are left out. Of a phrase on several
    lines all synonyms count. ``DataError`` for a bad line.
    """
    rules: dict[str, list[str]] = {}
    replaced: dict[str, list[str]] = {}
    for number, line in enumerate(lines, 1):
        if _is_left_out(line):
            continue
        left, arrow, right = line.partition("=>")
        phrases, to = _phrases(left), _phrases(right)
        if not phrases or (arrow and not to) or (not arrow and len(phrases) < 2):
            raise DataError(
                f"{where}:{number}: {line.strip()!r:.80}; expected 'tv, television' or 'tv => "
                "television', with a phrase between commas"
            )
        for phrase in phrases:
            known = (replaced if arrow else rules).setdefault(_folded(phrase), [])
            others = to if arrow else [each for each in phrases if each != phrase]
            known += [each for each in others if each not in known]
    twice = sorted(set(rules) & set(replaced))
    if twice:
        raise DataError(
            f"{where}: {twice[0]!r} is replaced by '=>' and has synonyms too; leave one line out"
        )
    return Synonyms(rules, replaced, weight)


def synonyms(
    stage: Stage,
    /,
    *,
    file: Annotated[
        str | None, "Lines such as 'tv, television' (each for the others), 'tv => television'."
    ] = None,
    rules: Annotated[list[str] | None, "Such lines themselves, instead of a file."] = None,
    weight: Annotated[
        float, "What all synonyms of a phrase count together; the query counts 1."
    ] = 0.5,
) -> Transformed:
    """Search with synonyms of the query's phrases too.

    ``file`` has lines such as ``tv, television`` (each stands for the others) and ``tv =>
    television`` (replaced); or ``rules`` are these lines. ``weight`` is that of a phrase's synonyms
    together; the query has 1.
    """
    if (file is None) == (rules is None):
        raise ConfigError("synonyms: expected either file or rules, such as rules=['tv, telly']")
    if rules is not None and not (isinstance(rules, list) and all(map(_is_text, rules))):
        raise ConfigError(f"synonyms: rules {rules!r:.80}; expected a list of lines, ['tv, telly']")
    lines = _lines(str(file)) if rules is None else rules
    where = "synonyms: rules" if file is None else file
    found = parsed(lines, where, weight)
    own = [line for line in lines if not _is_left_out(line)]
    if not own:
        raise ConfigError(f"{where}: no line; expected lines such as 'tv, telly'")
    return Transformed(stage, found, "synonyms", options={"rules": own, "weight": weight})


def _lines(path: str | Path) -> list[str]:
    place = expanded(str(path))
    if not place.is_file():
        raise ConfigError(f"synonyms: no file {str(path)!r}; expected lines such as 'tv, telly'")
    return read_whole(place, LARGEST).decode("utf-8-sig", "replace").splitlines()


def _is_text(line: object) -> bool:
    return isinstance(line, str)


def _is_left_out(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _phrases(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(",") if part.strip()]


def _folded(phrase: str) -> str:
    return " ".join(phrase.lower().split())
