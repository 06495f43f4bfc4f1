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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
Schema = dict[str, Any]

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
        " documents, so that any of them can be tried by changing one key; the table in"
        " [training](../training.md#losses) has their papers.",
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
    "EvaluateSection": "evaluate", "TrainingSection": "A model under train",
    "TrainConfig": "A training run", "FreezeSection": "freeze",
    "DevSection": "evaluate, of a training run", "sparsity": "sparsity", "trainer": "trainer",
    "dataset": "dataset", "RankerSection": "ranker", "TuneConfig": "A tuning",
    "TuneSection": "tune", "BudgetSection": "budget",
}  # fmt: skip


def pages() -> dict[str, str]:
    """Return each page by its file's name."""
    from sluice.retrieval.config.schema.catalogue import published

    definitions: Schema = published()["$defs"]
    made = {"yaml.md": yaml_page(definitions), "stages.md": stages_page(), "python.md": classes()}
    for name, (title, kinds, text) in COMPONENTS.items():
        parts = [f"# {title}\n", f"{text}\n", _source(kinds[0])]
        for kind in kinds:
            level = "##"
            if kind != kinds[0] or name == "training-data":
                parts.append(f"## {KINDS[kind]}\n")
                level = "###"
            parts += _kind(definitions, kind, level)
        made[f"{name}.md"] = "\n".join(parts)
    return made


def _source(kind: str) -> str:
    own = ", and `type: my_package.module:Class` names a class of your own"
    return (
        f"Generated from the code by `scripts/make_reference.py`; `sluice config list {kind}`"
        f" prints the same{'' if kind == 'executors' else own}.\n"
    )


def _kind(definitions: Schema, kind: str, level: str) -> Iterator[str]:
    names = [full.partition(".")[2] for full in definitions if full.startswith(f"{kind}.")]
    shared = {name: _owner(definitions[f"{kind}.{name}"]) for name in names}
    yield "| `type` | what it is |\n|---|---|"
    for name in names:
        line = _one_line(_opened(definitions, f"{kind}.{name}")["description"])
        page = PLACES[shared[name]] if shared[name] else ""
        yield f"| [`{name}`]({page}#{_anchor(name, kind)}) | {line} |"
    yield ""
    for name in names:
        if not shared[name]:
            heading = f"{level} {name} tuning\n" if kind == "tunings" else f"{level} {name}\n"
            yield from [heading, *_described(definitions[f"{kind}.{name}"], definitions)]


def _owner(schema: Schema) -> str:
    """Return the kind that describes a component listed under another kind too."""
    return str(schema["$ref"]).rpartition("/")[2].partition(".")[0] if "$ref" in schema else ""


def _anchor(name: str, kind: str) -> str:
    """Return a component's anchor: `experts` is an encoder and a tuning of one page."""
    return f"{name}-tuning" if kind == "tunings" else name


def _opened(definitions: Schema, name: str) -> Schema:
    schema: Schema = definitions[name]
    return definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def yaml_page(definitions: Schema) -> str:
    """Return the page of the sections' keys."""
    parts = [
        "# Every key of the YAML files\n",
        "A file describes an experiment, a training run (it has an `encoder` or a `loss`), or a"
        " tuning (it has `tune`). Each section below has its keys with their types and defaults; a"
        " key without a default may be left out unless it is required. [How the files are written"
        " and checked](../config.md) is a page of its own.\n",
        "Generated from the code by `scripts/make_reference.py`.\n",
    ]
    for name, title in SECTIONS.items():
        text = _described(definitions[name], definitions)
        parts += [f"## {title}\n", *text]
    return "\n".join(parts)


def _described(schema: Schema, definitions: Schema) -> Iterator[str]:
    yield f"{_one_line(schema['description'])}\n"
    keys = {key: place for key, place in schema["properties"].items() if key != "type"}
    if "const" not in schema["properties"].get("type", {"const": ""}):
        keys = schema["properties"]
    if not keys:
        yield "It has no keys.\n"
        return
    yield "| key | type | default | meaning |\n|---|---|---|---|"
    for key, place in keys.items():
        default = "required" if key in schema.get("required", ()) else _default(place)
        yield f"| `{key}` | {typed(place)} | {default} | {_one_line(place['description'])} |"
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
    return f"[{title.partition(',')[0]}](yaml.md#{re.sub(r'[^a-z]+', '-', title.lower())})"


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
    parts = [
        "# Pipelines and measures\n",
        "A pipeline is an expression over the names under `retrievers:` and `rerankers:`."
        " [Cascades](../cascade.md) says which to use when; this page lists all.\n",
        "Generated from the code by `scripts/make_reference.py`; `sluice config list stages` prints"
        " the same.\n",
        "## Operators\n",
        "| expression | what it does |\n|---|---|",
        *(f"| `{_bar(name)}` | {_one_line(stages[name])} |" for name in operators),
        "",
    ]
    for name in stages:
        if name not in operators:
            each = entry("stages", name)
            call = f"{name}({', '.join([*each.parts, '...'])})"
            schema = {"description": each.summary, "properties": each.arguments,
                      "required": each.required}  # fmt: skip
            parts += [f"## {name}\n", f"`{call}`\n", *_described(schema, {})]
    parts += [
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
    }  # fmt: skip
    parts = [
        "# Python classes and functions\n",
        "What `from sluice import ...` offers, from its docstrings by `scripts/make_reference.py`."
        " [The Python API on one page](../python.md) shows them at work. A class also has the"
        " methods of its bases, which stand at the end.\n",
    ]
    below = {f"Base class {name}": base for name, base in sorted(bases.items())}
    for heading, thing in (things | below).items():
        name = heading.rpartition(" ")[2]
        parts += [f"## {heading}\n", *_signature(name, thing), _docstring(thing)]
        if inspect.isclass(thing):
            above = [base for base in thing.__mro__[1:] if base.__name__ in {*bases, *things}]
            links = ", ".join(
                f"[{base.__name__}]({_place(base.__name__, below)})" for base in above
            )
            parts += [f"Bases: {links}.\n"] if links else []
            for label, method in _methods(thing):
                parts += [f"### {name}.{label}\n", *_signature(label, method), _docstring(method)]
    return "\n".join(parts)


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
    if isinstance(thing, property):
        returned = getattr(thing.fget, "__annotations__", {}).get("return", "")
        yield f"```python\n{name}: {returned}\n```\n"
        return
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
