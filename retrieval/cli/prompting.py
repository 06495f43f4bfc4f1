"""The verb that learns a soft prompt, with which a language model writes queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.options import DatasetName, argument, option
from sluice.retrieval.cli.terminal.output import echo


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
    from sluice.retrieval.training_data.soft_prompts import labelled_pairs, learnt_prompt
    from sluice.training.generation.decoding import DiverseBeams
    from sluice.training.generation.prompt_tuning import PromptTuning
    from sluice.training.generation.query_generation import ModelGenerator

    if pairs < 5:
        raise ConfigError(f"--pairs: {pairs}, expected 5 or more: a fifth is held out")
    if output.exists():
        raise ConfigError(f"{output}: is there already; remove it, or give another name")
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
