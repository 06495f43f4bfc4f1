"""``generate``: queries for the documents of a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.encoders.foundation.errors import ConfigError

BASELINE = "key-sentences"


def generate(
    model: Annotated[
        str,
        typer.Argument(
            help="A generator's folder or hub id (T5, BART, GPT, ...), or key-sentences: titles "
            "and sentences of the document itself."
        ),
    ],
    dataset: Annotated[str, typer.Argument(help="A dataset: folder, ir_datasets id, name.")],
    output: Annotated[Path, typer.Option(help="The training rows to write, JSON lines.")],
    expanded: Annotated[
        Path | None, typer.Option(help="Write the corpus here, each text with its queries.")
    ] = None,
    consistency: Annotated[
        int | None,
        typer.Option(help="Keep a query if BM25 finds its document in the first so many."),
    ] = None,
    by: Annotated[str, typer.Option(help="beams (diverse beam search) or sampling.")] = "beams",
    queries: Annotated[
        int, typer.Option(help="Groups of beams, samples, or key sentences of a document.")
    ] = 5,
    beams: Annotated[int, typer.Option(help="beams: in each group.")] = 2,
    penalty: Annotated[float, typer.Option(help="beams: for an earlier group's token.")] = 1.0,
    top: Annotated[int, typer.Option(help="sampling: from so many tokens.")] = 10,
    temperature: Annotated[float, typer.Option(help="sampling: above 1 is more even.")] = 1.0,
    length: Annotated[int, typer.Option(help="Tokens of a query.")] = 32,
    document_length: Annotated[int, typer.Option(help="Tokens of a document.")] = 384,
    prompt: Annotated[
        str | None, typer.Option(help="What the model reads, with {text} for the document.")
    ] = None,
    documents: Annotated[int | None, typer.Option(help="Only the corpus' first.")] = None,
    batch: Annotated[int, typer.Option(help="Documents in one pass.")] = 8,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    seed: Annotated[int, typer.Option(help="For sampling.")] = 13,
) -> None:
    """Generate queries for a corpus: to train on, and to expand documents with (doc2query).

    A training reads the rows by `examples: {file: queries.jsonl}`. The same command goes on after a
    kill.

    Example:  sluice generate runs/doc2query scifact --output queries.jsonl --consistency 30
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.training_data.query_generation import generate_queries

    if by not in ("beams", "sampling"):
        raise ConfigError(f"--by: {by!r}; expected beams or sampling")
    data = load_dataset(dataset, None)
    generator: Any
    if model == BASELINE:
        from sluice.training.generation.query_generation import KeySentences

        generator = KeySentences(queries)
    else:
        from sluice.training.generation.beam_search import DiverseBeams
        from sluice.training.generation.query_generation import ModelGenerator
        from sluice.training.generation.sampling import TopKSampling

        way = (
            DiverseBeams(groups=queries, beams=beams, penalty=penalty, length=length)
            if by == "beams"
            else TopKSampling(samples=queries, top=top, temperature=temperature, length=length)
        )
        generator = ModelGenerator.from_pretrained(
            model, by=way, prompt=prompt, document_length=document_length, batch=batch,
            device=device, seed=seed,
        )  # fmt: skip
    made = generate_queries(
        generator, data, output,
        consistency=consistency, expanded=expanded, documents=documents,
    )  # fmt: skip
    typer.echo(str(made))


COMMANDS = (generate,)
