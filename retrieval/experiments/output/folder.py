"""The output folder of an experiment: its retrievers, and whose dataset its parts were made of."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, SluiceError
from sluice.encoders.foundation.numbers import duration, plural
from sluice.encoders.foundation.trust import word_for
from sluice.encoders.model_files.registry import ASKING, REMOTE as BEHIND_HTTP
from sluice.retrieval.config.file_keys import normalised_dataset
from sluice.retrieval.config.output_names import short_name
from sluice.retrieval.config.sections import ExperimentConfig, RetrieverSection, load_config
from sluice.retrieval.config.trust import databases_in
from sluice.retrieval.config.yaml_file import read_yaml
from sluice.retrieval.datasets.beir import COLUMNS, CORPUS_COLUMNS
from sluice.retrieval.documents.readers.source import as_documents
from sluice.retrieval.experiments.output.mteb_files import FOLDER as MTEB
from sluice.retrieval.experiments.output.results import RESULTS
from sluice.retrieval.experiments.training.summary import KEY
from sluice.retrieval.pipelines.table import REMOTE
from sluice.retrieval.retrievers.folder import HEAD, read_head
from sluice.retrieval.retrievers.retriever import Retriever

log = logging.getLogger("sluice")

SETTINGS = "experiment.yaml"
RETRIEVERS = "retrievers"
SUITE = "datasets"  # the folder of a suite's experiments
INLINE = "inline-"  # begins the names of retrievers that only mine negatives
# What an evaluation, a tuning or an index writes; what names the dataset comes last.
OWNED = (
    "report.html", "report.md", "table.csv", "table.tex", MTEB, "folds.json", "ranker", "tune",
    "runs", "training", "models", "fitted", SUITE, ".change", RETRIEVERS, RESULTS, SETTINGS,
)  # fmt: skip
GOING = ".removed"  # where parts are moved before they are removed
SHOWN = 12  # names of parts of one kind


def retrievers_in(output: Path) -> list[Path]:
    """Return the folders of an experiment's retrievers, all of them built.

    Raises ``IndexFormatError`` for a folder without any, ``ConfigError`` for a suite, and where
    some are not built yet: they would lack what is added to the others.
    """
    built = {
        head.parent.name: head.parent
        for head in sorted(output.glob(f"{RETRIEVERS}/*/{HEAD}"))
        if not head.parent.name.startswith(INLINE)
    }
    if (output / SETTINGS).exists():
        names = list(load_config(output / SETTINGS, ExperimentConfig).retrievers)
        missing = [name for name in names if name not in built]
        if built and missing:
            raise ConfigError(
                f"{output}: {', '.join(missing)} not built yet, so documents cannot be changed in "
                "all its retrievers. Finish with sluice index, or name one retriever: "
                f"{next(iter(built.values()))}"
            )
        built = {name: built[name] for name in names if name in built}
    if not built:
        parts = sorted(each.name for each in output.glob(f"{SUITE}/*") if each.is_dir())
        if parts:
            raise ConfigError(
                f"{output}: is an evaluation of several datasets; name one of them: "
                f"{output / SUITE}/NAME ({', '.join(parts)})"
            )
        raise IndexFormatError(
            f"{output}: no {HEAD} here and no {RETRIEVERS}/; expected a retriever folder or an "
            "experiment's output (sluice index CONFIG makes one)"
        )
    return list(built.values())


def open_built(
    path: Path, allow: Collection[str] = (), models: Mapping[str, Any] | None = None
) -> Retriever:
    """Open a retriever's folder with the options that its build noted (device, dtype).

    ``models`` are loaded encoders by fingerprint: one of them is taken where it is the folder's and
    does not change with the documents.
    """
    head = read_head(path)
    encoder = head.section.get("encoder")
    options = encoder_options(encoder) if isinstance(encoder, Mapping) else {}
    lasting = head.encoder_generation is None
    encoder = (models or {}).get(head.encoder_fingerprint) if lasting else None
    return Retriever.open(path, encoder=encoder, allow=allow, **options)


def open_section(path: Path, section: RetrieverSection, *, quick: bool = False) -> Retriever:
    """Open a retriever's folder as its section says: its own classes, device and parameters."""
    return Retriever.open(path, quick=quick, **opening(section))


def opening(section: RetrieverSection) -> dict[str, Any]:
    """Return the arguments of ``Retriever.open`` for the retriever of a section."""
    own = [str(section.encoder["type"]), str((section.index or {}).get("type"))]
    if section.encoder["type"] in REMOTE:
        own.append(word_for(section.encoder))
    own.extend(databases_in(section.index))
    return {"allow": own, "params": section.search, **encoder_options(section.encoder)}


def encoder_options(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an encoder that a saved folder does not carry, or not the latest."""
    if encoder.get("type") == BEHIND_HTTP:
        return {"asking": {k: encoder[k] for k in ASKING if k in encoder}}
    return {k: encoder[k] for k in ("device", "dtype", "batch_tokens") if k in encoder}


def refuse_other_dataset(output: Path, dataset: str | Mapping[str, Any] | list[Any]) -> None:
    """Raise ``ConfigError`` if a folder holds parts that were made of another dataset."""
    held = _other_dataset(output, dataset)
    parts = _parts(output) if held is not None else []
    if parts:
        raise ConfigError(
            f"output: {output} {_difference(held, dataset)}; it has {'; '.join(parts)}; choose "
            f"another folder, as {output}-{short_name(dataset)} (output=FOLDER, in a file output: "
            "runs/x-{dataset}, with documents --output FOLDER), or remove them with --rebuild"
        )


def remove_other_dataset(output: Path, dataset: str | Mapping[str, Any] | list[Any]) -> None:
    """Remove all that a folder holds of another dataset, and say before what goes.

    Each part goes in one step, and the settings that name the dataset last: after a kill the rest
    is found and removed the next time.
    """
    held = _other_dataset(output, dataset)
    if held is None:
        return
    parts = _parts(output)
    if parts:
        log.warning("%s: removing the parts of %s: %s", output, _shown(held), "; ".join(parts))
    going = output / GOING
    shutil.rmtree(going, ignore_errors=True)
    going.mkdir()
    for name in OWNED:
        if (output / name).exists():
            (output / name).replace(going / name)
    shutil.rmtree(going, ignore_errors=True)


def _other_dataset(output: Path, dataset: str | Mapping[str, Any] | list[Any]) -> Any:
    """Return the dataset of a folder's parts as a config names it; None if it is the same."""
    held = _held_dataset(output)
    return None if held is None or _same_dataset(held, dataset) else held


def _parts(output: Path) -> list[str]:
    """Return how many models, retrievers and others a folder holds, and their names."""
    parts = []
    for noun, pattern, place in (
        ("model", "models/*", -1), ("retriever", f"{RETRIEVERS}/*/{HEAD}", -2),
        ("run", "runs/*.trec.gz", -1), ("dataset", f"{SUITE}/*", -1),
    ):  # fmt: skip
        names = sorted(each.parts[place].removesuffix(".trec.gz") for each in output.glob(pattern))
        if names:
            shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
            parts.append(f"{plural(len(names), noun)}: {shown}")
    return parts + [name for name in (RESULTS, "report.html") if (output / name).exists()]


def _difference(held: Any, dataset: Any) -> str:
    """Return what a folder holds in place of a dataset: another, or one with other columns."""
    both = [each if isinstance(each, Mapping) else {} for each in (held, dataset)]
    if not both[0].get("corpus") or both[0]["corpus"] != both[1].get("corpus"):
        return f"holds parts of {_shown(held)}, not of {_shown(dataset)}"
    was, now = (each.get("columns") or {} for each in both)
    columns = [
        f"{part} was {_column(both[0], part)}, now {_column(both[1], part)}"
        for part in COLUMNS
        if was.get(part) != now.get(part)
    ]
    return f"was built from {Path(both[0]['corpus']).name} with other columns: {'; '.join(columns)}"


def _column(dataset: Mapping[str, Any], part: str) -> str:
    """Return the columns of a part of documents, as they are named or, for an id, chosen."""
    columns = {**(dataset.get("columns") or {})}
    if part in columns:
        return " and ".join([columns[part]] if isinstance(columns[part], str) else columns[part])
    columns = {key: value for key, value in columns.items() if key in CORPUS_COLUMNS}
    with contextlib.suppress(SluiceError):
        if part == "id" and as_documents(dataset["corpus"], **columns).numbered:
            return "the row's number"
    return "chosen by its name"


def _shown(dataset: Any) -> str:
    if isinstance(dataset, list):
        return f"{plural(len(dataset), 'dataset')} ({short_name(dataset)})"
    name = dataset.get("name") if isinstance(dataset, Mapping) else dataset
    return f"dataset {short_name(dataset) if name is None else name!r}"


def _held_dataset(output: Path) -> Any:
    """Return the dataset of a folder's parts as a config names it, None if there is none to see.

    That of a suite, which has a folder of its own for each dataset, is a list.
    """
    try:
        if (output / SETTINGS).exists():
            return read_yaml(output / SETTINGS).get("dataset")
        if (output / RESULTS).exists():
            results = read_json(output / RESULTS)
            if isinstance(results.get("datasets"), list):
                return results["datasets"]
            return results["origin"]["config"]["dataset"]
        for head in sorted(output.glob(f"{RETRIEVERS}/*/{HEAD}")):
            config = read_head(head.parent).origin.get("config")
            if isinstance(config, Mapping) and "dataset" in config:
                return config["dataset"]
    except (SluiceError, OSError, ValueError, LookupError, AttributeError):
        return None  # damaged: what needs the file says so
    return None


def _same_dataset(one: Any, other: Any) -> bool:
    if isinstance(one, list) or isinstance(other, list):
        return isinstance(one, list) and isinstance(other, list)
    first, second = (_identity(each) for each in (one, other))
    return first == second


def _identity(dataset: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return what names a corpus and its queries: paths resolved, the split left out."""
    facts = normalised_dataset(dataset)
    for key in ("split", "ignore_identical_ids"):
        facts.pop(key, None)
    for key, value in facts.items():
        if isinstance(value, str) and (path := expanded(value)).exists():
            facts[key] = str(path.resolve())
    return facts


def loss_message(output: Path, lost: Sequence[str]) -> str:
    """Return why ``lost``, retrievers with their changes in brackets, are not built again."""
    return (
        f"{output}: a rebuild would lose what was changed since the build: {', '.join(lost)}; the "
        "settings, or the files they name, have changed too; choose another output "
        "(output=OTHER with a YAML file, --output OTHER with documents), add new documents with "
        f"`sluice add {output} FILE`, take what the source has now with `sluice update {output} "
        "SOURCE --sync`, or give --rebuild to lose the changes"
    )


def log_changes(path: Path, said: set[str]) -> None:
    """Say how a retriever differs from what its config builds, unless another's line said it."""
    head = read_head(path)
    line = f"{plural(head.documents, 'document')}, {head.changes} since the build"
    if head.changes is not None and line not in said:
        said.add(line)
        log.info("%s: %s", path.parent.parent, line)


MEMORY = "peak_memory_bytes"


def made_parts(output: Path, nodes: Iterable[str]) -> list[dict[str, Any]]:
    """Return name, seconds and peak memory of the models and indexes among ``nodes``, in order.

    ``peak_memory_bytes`` is that of the process while the part was made, with all it held already;
    None for a part of an earlier version.
    """
    return [
        {"part": node, "seconds": facts.get("seconds"), MEMORY: facts.get(MEMORY)}
        for node in dict.fromkeys(nodes)
        for facts in _facts(output, node)
    ]


def _facts(output: Path, node: str) -> Iterator[dict[str, Any]]:
    kind, _, name = node.partition(".")
    if kind == "train" and (manifest := output / "models" / name / MANIFEST).exists():
        yield read_json(manifest).get(KEY) or {}
    if kind == "retrievers" and (output / RETRIEVERS / name / HEAD).exists():
        yield read_head(output / RETRIEVERS / name).origin


def parts_table(parts: Iterable[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table of the parts."""
    lines = ["| made | in | peak MB |", "|---|---|---|"]
    for part in parts:
        seconds, memory = part["seconds"], part[MEMORY]
        time = "-" if seconds is None else duration(float(seconds))
        peak = "-" if memory is None else f"{memory / 1e6:,.0f}"
        lines.append(f"| {part['part']} | {time} | {peak} |")
    return lines


def reshard_folder(
    path: Path, shards: int, *, allow: Collection[str] = ()
) -> tuple[int, Retriever]:
    """Reshard a retriever's folder; return how many shards it had, 1 of a whole, and it."""
    retriever = open_built(path, allow)
    before = retriever.head.shards
    retriever.reshard(shards)
    return 1 if before is None else len(before["heads"]), retriever
