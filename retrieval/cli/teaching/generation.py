"""The verbs that generate queries for documents, and learn the prompt to do so."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.options import DatasetName
from sluice.retrieval.cli.terminal.output import echo
from sluice.retrieval.cli.terminal.verbs import Shown, picked, takes

BASELINE = "key-sentences"


@takes(
    "sluice.training.generation.prompt_tuning:PromptTuning",
    document_length=Shown("384, if there is room"),
)
def prompt(
    model: Annotated[str, "A language model's folder or hub id (GPT, Llama, T5, BART, ...)."],
    dataset: DatasetName,
    *,
    output: Annotated[Path, "FOLDER", "The soft prompt to write."],
    pairs: Annotated[int, "Judgements of the train split it is learnt on."] = 50,
    device: Annotated[str, "cpu, cuda, ..."] = "cpu",
    seed: Annotated[int, "Random seed."] = 13,
    **values: Any,
) -> None:
    """Learn a soft prompt for writing queries.

    A few judged pairs teach a frozen language model, by vectors that it reads before a document,
    to write queries like those (SPTAR). A fifth of the pairs is held out: it chooses the epoch and
    the examples. A killed call continues when it is repeated.

    `examples: {type: generated}` in a training run's YAML does this, generates, filters and trains.

    Example:
      sluice teach prompt openai-community/gpt2 scifact --output prompts/scifact
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.training_data.written.generated_examples import (
        labelled_pairs,
        learnt_prompt,
    )
    from sluice.training.generation.decoding import DiverseBeams
    from sluice.training.generation.prompt_tuning import PromptTuning
    from sluice.training.generation.query_generation import ModelGenerator

    if pairs < 5:
        raise ConfigError(f"--pairs: {pairs}, expected 5 or more: a fifth is held out")
    if output.exists():
        raise ConfigError(f"{output}: exists already; remove it, or give another name")
    tuning = PromptTuning(**values)
    labelled = labelled_pairs(load_dataset(dataset, "train"), pairs, seed)
    generator = ModelGenerator.from_pretrained(
        model, by=DiverseBeams(length=tuning.length), device=device, seed=seed
    )
    soft = learnt_prompt(generator, tuning, labelled, output, seed=seed)
    losses = {name: soft.losses[name] for name in ("start", "learnt", "chosen")}
    said = ", ".join(f"{value:.4f} {name}" for name, value in losses.items())
    echo(f"{output}: {len(soft.vectors)} vectors; loss of the held-out pairs {said}")
    echo(f"  next: sluice teach generate {model} {dataset} --soft-prompt {output} --output FILE")


@takes(
    "sluice.training.generation.decoding:DiverseBeams",
    "sluice.training.generation.decoding:TopKSampling",
    "sluice.retrieval.training_data.written.query_generation:generate_queries",
    panels={"Diverse beam search": "beams penalty", "Sampling": "top temperature seed"},
    documents=Shown("all"),
)
def generate(
    model: Annotated[
        str,
        "A generator's folder or hub id (T5, BART, GPT, ...), or key-sentences, which copies "
        "titles and sentences of the document.",
    ],
    dataset: DatasetName,
    *,
    output: Annotated[Path, "The training rows to write, JSON lines."],
    queries: Annotated[int, "Queries (groups of beams) for each document."] = 5,
    prompt: Annotated[
        str | None, "TEXT", "The model's input, with {text} for the document."
    ] = None,
    soft_prompt: Annotated[
        Path | None, "FOLDER", "A soft prompt that `sluice teach prompt` learnt."
    ] = None,
    document_length: Annotated[int | None, "Most tokens of a document.", Shown("384")] = None,
    by: Annotated[
        Literal["beams", "sampling"], "HOW", "Decode by beams (diverse beam search) or sampling."
    ] = "beams",
    batch: Annotated[int, "Documents in one batch."] = 8,
    device: Annotated[str, "cpu, cuda, ..."] = "cpu",
    seed: Annotated[int, "Random seed."] = 13,
    **values: Any,
) -> None:
    """Generate queries for documents.

    The queries serve as training data, read by `examples: {file: queries.jsonl}`, or expand the
    documents (doc2query).

    Examples:
      sluice teach generate runs/doc2query scifact --output queries.jsonl --consistency 30
      sluice teach generate key-sentences scifact --output q.jsonl --expanded corpus.jsonl
      sluice teach generate gpt2 scifact --output q.jsonl --soft-prompt prompts/scifact
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.training_data.written.query_generation import generate_queries

    data = load_dataset(dataset, None)
    generator: Any
    if model == BASELINE:
        from sluice.training.generation.query_generation import KeySentences

        if soft_prompt is not None:
            raise ConfigError(f"--soft-prompt: {BASELINE} has no model that reads it; leave it out")
        generator = KeySentences(queries)
    else:
        from sluice.training.generation.decoding import DiverseBeams, TopKSampling
        from sluice.training.generation.query_generation import ModelGenerator
        from sluice.training.generation.soft_prompt import SoftPrompt

        decoding: Any = (
            DiverseBeams(queries, **picked(values, DiverseBeams))
            if by == "beams"
            else TopKSampling(queries, **picked(values, TopKSampling))
        )
        generator = ModelGenerator.from_pretrained(
            model, by=decoding, prompt=prompt, document_length=document_length, batch=batch,
            device=device, seed=seed, soft=soft_prompt and SoftPrompt.load(soft_prompt),
        )  # fmt: skip
    report = generate_queries(generator, data, output, **picked(values, generate_queries))
    echo(str(report))
