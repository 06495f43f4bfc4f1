"""The verbs that generate queries for documents, and learn the prompt to do so."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.options import DatasetName, argument, check_choice, option
from sluice.retrieval.cli.terminal.output import echo

BASELINE = "key-sentences"
of_beams = partial(option, panel="Diverse beam search")
of_sampling = partial(option, panel="Sampling")


def prompt(
    model: Annotated[
        str, argument("MODEL", "A language model's folder or hub id (GPT, Llama, T5, BART, ...).")
    ],
    dataset: DatasetName,
    output: Annotated[Path, option("FOLDER", "The soft prompt to write.")],
    pairs: Annotated[int, option("N", "Judgements of the train split it is learnt on.")] = 50,
    tokens: Annotated[int, option("N", "Its vectors.")] = 50,
    text: Annotated[
        str, option("TEXT", "The text whose embeddings they begin as.")
    ] = "please generate a query for this document",
    shots: Annotated[int, option("N", "Example pairs shown before each document.")] = 2,
    choices: Annotated[int, option("N", "Groups of examples of which one is chosen.")] = 10,
    epochs: Annotated[int, option("N", "Most epochs over the pairs.")] = 100,
    patience: Annotated[int, option("N", "Epochs without a better one before it ends.")] = 5,
    learning_rate: Annotated[float, option("X", "The learning rate at the start.")] = 0.03,
    batch: Annotated[int, option("N", "Pairs in a step.")] = 1,
    length: Annotated[int, option("N", "Most tokens of a query.")] = 32,
    document_length: Annotated[
        int | None, option("N", "Most tokens of a document.", default="384, if there is room")
    ] = None,
    device: Annotated[str, option("DEVICE", "cpu, cuda, ...")] = "cpu",
    seed: Annotated[int, option("N", "Random seed.")] = 13,
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
    tuning = PromptTuning(
        tokens=tokens, text=text, shots=shots, choices=choices, epochs=epochs, patience=patience,
        learning_rate=learning_rate, batch=batch, length=length, document_length=document_length,
    )  # fmt: skip
    labelled = labelled_pairs(load_dataset(dataset, "train"), pairs, seed)
    generator = ModelGenerator.from_pretrained(
        model, by=DiverseBeams(length=length), device=device, seed=seed
    )
    soft = learnt_prompt(generator, tuning, labelled, output, seed=seed)
    losses = {name: soft.losses[name] for name in ("start", "learnt", "chosen")}
    said = ", ".join(f"{value:.4f} {name}" for name, value in losses.items())
    echo(f"{output}: {len(soft.vectors)} vectors; loss of the held-out pairs {said}")
    echo(f"  next: sluice teach generate {model} {dataset} --soft-prompt {output} --output FILE")


def generate(
    model: Annotated[
        str,
        argument(
            "MODEL",
            "A generator's folder or hub id (T5, BART, GPT, ...), or key-sentences, which "
            "copies titles and sentences of the document.",
        ),
    ],
    dataset: DatasetName,
    output: Annotated[Path, option("FILE", "The training rows to write, JSON lines.")],
    expanded: Annotated[
        Path | None, option("FILE", "Also write the corpus, each text expanded by its queries.")
    ] = None,
    consistency: Annotated[
        int | None, option("N", "Keep a query only if BM25 ranks its document among the first N.")
    ] = None,
    queries: Annotated[int, option("N", "Queries (groups of beams) for each document.")] = 5,
    documents: Annotated[
        int | None, option("N", "Only the first N documents.", default="all")
    ] = None,
    prompt: Annotated[
        str | None, option("TEXT", "The model's input, with {text} for the document.")
    ] = None,
    soft_prompt: Annotated[
        Path | None, option("FOLDER", "A soft prompt that `sluice teach prompt` learnt.")
    ] = None,
    length: Annotated[int, option("N", "Most tokens of a query.")] = 32,
    document_length: Annotated[
        int | None, option("N", "Most tokens of a document.", default="384")
    ] = None,
    by: Annotated[
        str, option("HOW", "Decode by beams (diverse beam search) or sampling.")
    ] = "beams",
    batch: Annotated[int, option("N", "Documents in one batch.")] = 8,
    device: Annotated[str, option("DEVICE", "cpu, cuda, ...")] = "cpu",
    beams: Annotated[int, of_beams("N", "Beams in each group.")] = 2,
    penalty: Annotated[
        float, of_beams("X", "Penalty for a token that an earlier group chose.")
    ] = 1.0,
    top: Annotated[int, of_sampling("N", "Sample from the N likeliest tokens.")] = 10,
    temperature: Annotated[float, of_sampling("X", "Above 1 is more even.")] = 1.0,
    seed: Annotated[int, of_sampling("N", "Random seed.")] = 13,
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

    check_choice(by, "--by", ("beams", "sampling"))
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

        decoding = (
            DiverseBeams(groups=queries, beams=beams, penalty=penalty, length=length)
            if by == "beams"
            else TopKSampling(samples=queries, top=top, temperature=temperature, length=length)
        )
        generator = ModelGenerator.from_pretrained(
            model, by=decoding, prompt=prompt, document_length=document_length, batch=batch,
            device=device, seed=seed, soft=soft_prompt and SoftPrompt.load(soft_prompt),
        )  # fmt: skip
    report = generate_queries(
        generator, data, output,
        consistency=consistency, expanded=expanded, documents=documents,
    )  # fmt: skip
    echo(str(report))
