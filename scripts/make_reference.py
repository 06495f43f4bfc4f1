"""Write docs/reference/: every key, component, stage, measure and public class, from the code.

Run ``python scripts/make_reference.py`` after ``make_schema.py``: keys, types, defaults and
meanings are the schema's, as in ``sluice config list``; classes are described by their docstrings.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
Schema = dict[str, Any]
Row = tuple[str, str, str, str]  # a key, its values, its default, its meaning
SHARED = "Keys that mean the same, with the same default, wherever a type above names them."

# The page of each kind of component: its heading, and what a reader should know first.
COMPONENTS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "encoders": (
        "Encoders", ("encoders", "tunings"),
        "An encoder turns texts into vectors. It is the `encoder` of a retriever, and what a"
        " training run trains; `model` names a folder, a hub id or a model under `train`.",
    ),
    "indexes": (
        "Indexes", ("indexes", "augmentations"),
        "An index holds the vectors of a retriever and searches them. Left out, it is the exact one"
        " of the encoder's family: `flat` for dense vectors, `inverted` for sparse ones, `tokens`"
        " for a vector a token.",
    ),
    "losses": (
        "Losses", ("losses",),
        "A loss is what training minimises. All losses score the same matrix of queries and"
        " documents, so that any of them can be tried by changing one key. Where nothing follows"
        " its paper, a loss trains any encoder; [how to choose](../how-to/loss.md).",
    ),
    "rerankers": (
        "Rerankers", ("rerankers", "rankers"),
        "A reranker scores the candidates of an earlier stage. It is named under `rerankers:` and"
        " called in a pipeline: `bm25 % 100 >> cross(depth=20)`.",
    ),
    "training-data": (
        "Training data", ("examples", "negatives", "teachers"),
        "What a training run learns from: examples (queries with relevant documents), negatives"
        " (what they are told from), and a teacher, whose scores a distillation loss learns.",
    ),
    "executors": (
        "Executors", ("executors",),
        "An executor carries out the tasks of a plan: it is the key `executor` of an experiment."
        " [Scale](../scale.md#one-plan-several-executors) says which jobs are plans, and what is"
        " promised.",
    ),
    "launchers": (
        "Launchers", ("launchers",),
        "A launcher starts the processes of a training: it is the key `launch` of `sluice train`."
        " [Scale](../scale.md#training-in-several-processes) says what is promised.",
    ),
}  # fmt: skip
KINDS = {
    "tunings": "Tunings", "augmentations": "Augmentations of vectors", "rankers": "Learnt rankers",
    "examples": "Examples", "negatives": "Negatives", "teachers": "Teachers",
}  # fmt: skip
PLACES = {  # where a reference of the schema leads
    **{kind: f"{page}.md" for page, (_, kinds, _) in COMPONENTS.items() for kind in kinds},
    "trained_encoders": "encoders.md", "dataset": "yaml.md#dataset",
    "sparsity": "yaml.md#sparsity", "trainer": "yaml.md#trainer",
}  # fmt: skip
ONE = {
    "encoders": "an encoder", "trained_encoders": "an encoder", "indexes": "an index",
    "losses": "a loss", "rerankers": "a reranker", "rankers": "a ranker", "examples": "examples",
    "negatives": "negatives", "teachers": "a teacher", "tunings": "a tuning",
    "augmentations": "an augmentation", "executors": "an executor",
    "launchers": "a launcher", "dataset": "a dataset",
    "sparsity": "sparsity", "trainer": "trainer",
}  # fmt: skip
SECTIONS = {  # of the YAML files, in the order in which one meets them
    "ExperimentConfig": "An experiment", "RetrieverSection": "A retriever",
    "CachedEncoding": "encoding", "Passages": "passages", "PruneSection": "prune",
    "EvaluateSection": "evaluate", "VariantsSection": "variants",
    "TrainingSection": "A model under train",
    "TrainConfig": "A training run", "OfDataset": "by_dataset", "FreezeSection": "freeze",
    "DevSection": "evaluate, of a training run", "sparsity": "sparsity", "trainer": "trainer",
    "dataset": "dataset", "RankerSection": "ranker", "TuneConfig": "A tuning",
    "TuneSection": "tune", "BudgetSection": "budget",
}  # fmt: skip
WHOLE = {"Retriever", "Stage", "Updatable"}  # whose methods' whole docstrings are shown
# What a loss needs to be made; all others are made from their defaults.
ARGUMENTS: Mapping[str, Schema] = {"sum": {"losses": [{"type": "info_nce"}]}}
# A section that has all keys of another one.
EXTENDED = {"TrainConfig": "TrainingSection", "TuneConfig": "ExperimentConfig"}


def pages() -> dict[str, str]:
    """Return each page by its file's name."""
    from sluice.retrieval.config.schema.catalogue import published

    definitions: Schema = published()["$defs"]
    made = {"yaml.md": yaml_page(definitions), "stages.md": stages_page(), "python.md": classes()}
    for name, (title, kinds, text) in COMPONENTS.items():
        parts = [f"# {title}\n", f"{text}\n", _source(kinds[0])]
        shared = _same(
            schema for full, schema in definitions.items()
            if full.partition(".")[0] in kinds and "." in full and "$ref" not in schema
        )  # fmt: skip
        for kind in kinds:
            level = "##"
            if kind != kinds[0] or name == "training-data":
                parts.append(f"## {KINDS[kind]}\n")
                level = "###"
            parts += _kind(definitions, kind, level, shared)
        if shared:
            parts += ["## Shared keys\n", f"{SHARED}\n", *_list(shared.values())]
        made[f"{name}.md"] = "\n".join(parts)
    return made


def _source(kind: str) -> str:
    own = "; `type: my_package.module:Class` is a class of your own"
    return f"`sluice config list {kind}` prints the same{'' if kind == 'executors' else own}.\n"


def _same(schemas: Iterable[Schema]) -> dict[str, Row]:
    """Return the keys that three or more components of a page share, each once."""
    rows = Counter(row for schema in schemas for row in _rows(schema))
    shared: dict[str, Row] = {}
    for row, times in rows.most_common():
        if times >= 3:
            shared.setdefault(row[0], row)
    return dict(sorted(shared.items()))


def _kind(definitions: Schema, kind: str, level: str, shared: Mapping[str, Row]) -> Iterator[str]:
    names = [full.partition(".")[2] for full in definitions if full.startswith(f"{kind}.")]
    owners = {name: _owner(definitions[f"{kind}.{name}"]) for name in names}
    yield ", ".join(
        f"[`{name}`]({PLACES[owner] if owner else ''}#{_anchor(name, kind)})"
        for name, owner in owners.items()
    )
    yield ""
    for name in names:
        if not owners[name]:
            heading = f"{level} {name} tuning\n" if kind == "tunings" else f"{level} {name}\n"
            schema = definitions[f"{kind}.{name}"]
            if kind == "losses":
                schema = {**schema, "description": f"{schema['description']} {_origin(name)}"}
            yield from [heading, *_described(schema, shared)]


def _origin(name: str) -> str:
    """Return a loss's paper, and what it trains or needs if not every encoder alike."""
    from sluice.encoders.tuning.learning import SCORED, types_that_make
    from sluice.training.losses import LOSSES

    loss = resolve_name(LOSSES[name])(**ARGUMENTS.get(name, {}))
    trained = types_that_make(loss.forms)
    uses = [] if len(trained) == len(types_that_make(SCORED)) else list(trained)
    uses += ["a teacher"] if loss.needs_teacher else []
    uses += ["`negatives: {type: live}`"] if loss.ranks == "columns" else []
    return f"{loss.paper}. " * bool(loss.paper) + f"For {', '.join(uses)}." * bool(uses)


def _owner(schema: Schema) -> str:
    """Return the kind that describes a component listed under another kind too."""
    return str(schema["$ref"]).rpartition("/")[2].partition(".")[0] if "$ref" in schema else ""


def _anchor(name: str, kind: str) -> str:
    """Return a component's anchor: `experts` is an encoder and a tuning of one page."""
    return f"{name}-tuning" if kind == "tunings" else name


def yaml_page(definitions: Schema) -> str:
    """Return the page of the sections' keys."""
    parts = [
        "# Every key of the YAML files\n",
        "A file describes an experiment, a training run (it has an `encoder` or a `loss`), or a"
        " tuning (it has `tune`). Behind each key stand its values; its default; what it means. A"
        " key without a default may be left out unless it is required.\n",
    ]
    for name, title in SECTIONS.items():
        parts += [f"## {title}\n", f"{_one_line(definitions[name]['description'])}\n"]
        rows = list(_rows(definitions[name]))
        if name in EXTENDED:
            base = EXTENDED[name]
            inherited = set(_rows(definitions[base]))
            rows = [row for row in rows if row not in inherited]
            parts.append(f"All keys of {_reference(base)}, and:\n")
        parts += _list(rows)
    return "\n".join(parts)


def _described(schema: Schema, shared: Mapping[str, Row], call: str = "") -> Iterator[str]:
    """Yield a component's sentence, its own keys, and the names of those it shares."""
    yield f"{call}{_one_line(schema['description'])}\n"
    rows = list(_rows(schema))
    own = [row for row in rows if shared.get(row[0]) != row]
    common = [f"`{row[0]}`" for row in rows if shared.get(row[0]) == row]
    if own:
        yield from _list(own)
    if common:
        yield f"[Shared](#shared-keys): {', '.join(common)}.\n"
    if not rows:
        yield "It has no keys.\n"


def _rows(schema: Schema) -> Iterator[Row]:
    """Yield for each key its name, its values, its default and its meaning."""
    keys = {key: place for key, place in schema["properties"].items() if key != "type"}
    if "const" not in schema["properties"].get("type", {"const": ""}):
        keys = schema["properties"]
    for key, place in keys.items():
        default = "required" if key in schema.get("required", ()) else _default(place)
        meaning = _one_line(place["description"])
        opening = re.match(rf"`{key}`(?: is| \((.+?)\):|:) ", meaning)  # the key's own name again
        if opening:
            default = default or (f"`{opening[1]}`" if opening[1] else "")
            meaning = meaning[opening.end()].upper() + meaning[opening.end() + 1 :]
        yield key, typed(place), default, meaning


def _list(rows: Iterable[Row]) -> Iterator[str]:
    for key, values, default, meaning in rows:
        yield f"- `{key}` ({'; '.join(filter(None, (values, default)))}): {meaning}"
    yield ""


def _default(place: Schema) -> str:
    value = place.get("default")
    return "" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


def typed(place: Schema) -> str:
    """Return the values that a key takes, in words, with links to the pages of components."""
    if "$ref" in place:
        return _reference(str(place["$ref"]).rpartition("/")[2])
    if "enum" in place:
        return ", ".join(f"`{json.dumps(each).strip(chr(34))}`" for each in place["enum"])
    if "const" in place:
        return f"`{place['const']}`"
    if "anyOf" in place:
        options = [each for each in place["anyOf"] if each.get("type") != "null"]
        if any("$ref" in each for each in options):  # a component: by name, by class, or with keys
            options = [each for each in options if "enum" not in each and "pattern" not in each]
        return " or ".join(dict.fromkeys(typed(each) for each in options))
    kinds = place.get("type", "any")
    words = [_plain(kind, place) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return " or ".join(word for word in words if word != "null") + _limits(place)


def _plain(kind: str, place: Schema) -> str:
    below = place.get("items") if kind == "array" else place.get("additionalProperties")
    inner = typed(below) if isinstance(below, dict) and below else ""
    if kind == "array":
        return f"list of {inner}" if inner and inner != "any" else "list"
    if kind == "object":
        return f"names with {inner}" if inner and inner != "any" else "keys"
    return {"string": "text", "boolean": "true or false"}.get(kind, kind)


def _limits(place: Schema) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most",
             "exclusiveMaximum": "below"}  # fmt: skip
    return "".join(f", {text} {place[key]}" for key, text in words.items() if key in place)


def _reference(name: str) -> str:
    if name in PLACES:
        return f"[{ONE[name]}]({PLACES[name]})"
    title = SECTIONS[name]
    return f"[{title.partition(',')[0]}](yaml.md#{re.sub(r'[^a-z_]+', '-', title.lower())})"


def _one_line(text: str) -> str:
    """Return a text as a table's cell holds it."""
    parts = " ".join(text.split()).replace("|", "\\|").replace("``", "`").split("`")
    return "`".join(
        part if place % 2 else part.replace("<", "&lt;") for place, part in enumerate(parts)
    )


def stages_page() -> str:
    """Return the page of what pipelines are made of, and of the measures."""
    from sluice.retrieval.config.schema.catalogue import entries, entry

    stages, operators = entries("stages"), ("a | b", "a % 100", "a >> b")
    schemas = {
        name: {"description": each.summary, "properties": each.arguments,
               "required": each.required}
        for name in stages if name not in operators
        for each in [entry("stages", name)]
    }  # fmt: skip
    shared = _same(schemas.values())
    parts = [
        "# Pipelines and measures\n",
        "A pipeline is an expression over the names under `retrievers:` and `rerankers:`."
        " [Cascades](../cascade.md) says which to use when; this page lists all.\n",
        "`sluice config list stages` prints the same.\n",
        "## Operators\n",
        "| expression | what it does |\n|---|---|",
        *(f"| `{_bar(name)}` | {_one_line(stages[name])} |" for name in operators),
        "",
    ]
    for name, schema in schemas.items():
        call = f"`{name}({', '.join([*entry('stages', name).parts, '...'])})`"
        parts += [f"## {name}\n", *_described(schema, shared, f"{call}: ")]
    parts += [
        "## Shared keys\n",
        f"{SHARED}\n",
        *_list(shared.values()),
        "## Measures\n",
        "`evaluate.measures`, `sluice score`, `sluice compare` and `sluice.evaluate` take these"
        " names; [measures](../measures.md) has other tools' names for them, their sources, and"
        " where tools differ.\n",
        "| measure | what it is |\n|---|---|",
        *(f"| `{name}` | {_one_line(line)} |" for name, line in entries("measures").items()),
        "",
    ]
    return "\n".join(parts)


def _bar(name: str) -> str:
    return name.replace("|", "\\|")


def classes() -> str:
    """Return the page of the names that ``import sluice`` offers, from their docstrings."""
    import sluice

    things = {name: getattr(sluice, name) for name in sorted(sluice.__all__, key=str.lower)}
    bases = {
        base.__name__: base
        for thing in things.values() if inspect.isclass(thing)
        for base in thing.__mro__[1:]
        if _ours(base) and list(_methods(base)) and base.__name__ not in things
        and not base.__name__.startswith("Familiar")
    }  # fmt: skip
    parts = [
        "# Python classes and functions\n",
        "What `from sluice import ...` offers, from its docstrings by `scripts/make_reference.py`."
        " [The Python API on one page](../python.md) shows them at work. Details, types and errors"
        " are in `help(sluice.FlatIndex.search)`. A class also"
        " has the methods of its bases, which stand at the end.\n",
    ]
    places = _yaml_places()
    below = {f"Base class {name}": base for name, base in sorted(bases.items())}
    for heading, thing in (things | below).items():
        name = heading.rpartition(" ")[2]
        parts.append(f"## {heading}\n")
        if heading in below or name in places:
            parts.append(f"`{_call(name, thing)}`\n")
            parts.append(_docstring(thing).partition("\n\n")[0].rstrip() + "\n")
            parts += [f"Its arguments: {places[name]}.\n"] if name in places else []
        else:
            parts += [*_signature(name, thing), _docstring(thing)]
        if inspect.isclass(thing):
            above = [base for base in thing.__mro__[1:] if base.__name__ in {*bases, *things}]
            links = ", ".join(
                f"[{base.__name__}]({_place(base.__name__, below)})" for base in above
            )
            parts += [f"Bases: {links}.\n"] if links else []
            parts += _members(thing, above, heading in below and name not in WHOLE)
    return "\n".join(parts)


def _members(thing: type, above: Sequence[type], brief: bool) -> Iterator[str]:
    """Yield an item for each method; those that a base describes are named alone."""
    if brief:  # a base of the code's own, whose methods users meet in the classes over it
        yield f"Methods: {', '.join(f'`{label}`' for label, _ in _methods(thing))}.\n"
        return
    described = {label for base in above for label, _ in _methods(base)}
    calls: dict[str, list[str]] = {}  # of names for one method, by what it does
    for label, method in _methods(thing):
        if label not in described:
            calls.setdefault(_docstring(method), []).append(_call(label, method))
    for text, names in calls.items():
        same = "".join(f", `{name.partition('(')[0]}`" for name in names[1:])
        first, _, rest = text.strip().partition("\n\n")
        yield f"- `{names[0]}`{same}: {_one_line(first)}"
        if thing.__name__ in WHOLE and rest:
            yield "\n" + re.sub(r"^(?=.)", "    ", rest.rstrip(), flags=re.M)
    repeated = [f"`{label}`" for label, _ in _methods(thing) if label in described]
    if calls:
        yield ""
    if repeated:
        yield f"As its bases have them: {', '.join(repeated)}.\n"


def _call(label: str, method: Any) -> str:
    """Return a call of a method: its arguments and their defaults."""
    if isinstance(method, property):
        return label
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in inspect.signature(method).parameters.values()
        if each.name not in ("self", "cls")
    ]
    return f"{label}{inspect.Signature(parameters)}"


def _yaml_places() -> dict[str, str]:
    """Return by class where the arguments of those that YAML names are described."""
    from sluice.encoders.table import ENCODERS, RERANKERS
    from sluice.indexing.table import INDEXES

    tables = {"encoders": ENCODERS, "rerankers": RERANKERS, "indexes": INDEXES}
    places = {
        place.rpartition(":")[2]: f"[`{name}`]({page}.md#{name})"
        for page, table in tables.items() for name, place in table.items()
    }  # fmt: skip
    return {**places, "Passages": "[`passages`](yaml.md#passages)",
            "Encoding": "[`encoding`](yaml.md#encoding)"}  # fmt: skip


def _place(name: str, below: Mapping[str, Any]) -> str:
    heading = f"Base class {name}"
    return f"#{(heading if heading in below else name).lower().replace(' ', '-')}"


def _ours(thing: Any) -> bool:
    return bool(thing.__module__.startswith("sluice")) and not thing.__name__.startswith("_")


def _methods(thing: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class itself defines and documents."""
    for label, each in vars(thing).items():
        method = getattr(each, "__func__", getattr(each, "fget", each))
        if label.startswith("_") or not inspect.isfunction(method) or not _ours(method):
            continue
        if inspect.getdoc(method):
            yield label, each if isinstance(each, property) else getattr(thing, label)


class _Types(ast.NodeTransformer):
    """Puts the type in the place of ``Annotated[type, notes]``."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        is_noted = ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple)
        return node.slice.elts[0] if is_noted else node  # type: ignore[attr-defined]


class _Plain:
    """An annotation that is shown as it is written, without the notes of ``Annotated``."""

    def __init__(self, text: Any) -> None:
        self.text = text if isinstance(text, str) else inspect.formatannotation(text)
        if "Annotated[" in self.text:
            self.text = ast.unparse(_Types().visit(ast.parse(self.text, mode="eval")))

    def __repr__(self) -> str:
        return self.text


def _signature(name: str, thing: Any) -> Iterator[str]:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return
    given = [
        each.replace(annotation=_annotation(each.annotation))
        for each in signature.parameters.values() if each.name not in ("self", "cls")
    ]  # fmt: skip
    returned = _annotation(signature.return_annotation)
    if inspect.isclass(thing):
        returned = inspect.Signature.empty
    text = str(signature.replace(parameters=given, return_annotation=returned))
    yield f"```python\n{_wrapped(name + text)}\n```\n"


def _annotation(given: Any) -> Any:
    return given if given is inspect.Signature.empty else _Plain(given)


def _wrapped(call: str) -> str:
    """Break a long signature after its commas, one argument to a line."""
    if len(call) <= 96:
        return call
    head, _, rest = call.partition("(")
    depth, parts, last = 0, [], ""
    for place, letter in enumerate(rest):
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            return "\n".join([f"{head}(", *(f"    {each.strip()}," for each in [*parts, last]),
                              rest[place:]])  # fmt: skip
        if letter == "," and depth == 0:
            parts.append(last)
            last = ""
        else:
            last += letter
    return call


def _docstring(thing: Any) -> str:
    """Return a docstring as Markdown: doubled marks of code made single, no headings."""
    text = (inspect.getdoc(thing) or "").replace("``", "`")
    return re.sub(r"^#", r"\\#", text, flags=re.M) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(FOLDER / name)
