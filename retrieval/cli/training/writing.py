"""The verbs that let a language model write: queries of documents, descriptions, orders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.printing import echo
from sluice.retrieval.cli.terminal.verbs import (
    Allow,
    Command,
    DatasetName,
    Shown,
    allowed,
    picked,
    takes,
)

BASELINE = "key-sentences"


@takes(
    "sluice.training.generation.query_prompt:PromptTuning",
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
    from sluice.training.generation.query_generation import ModelGenerator
    from sluice.training.generation.query_prompt import PromptTuning

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
    "sluice.training.generation.query_generation:ModelGenerator",
    "sluice.retrieval.training_data.written.query_generation:generate_queries",
    panels={"Diverse beam search": "beams penalty", "Sampling": "top temperature seed"},
    document_length=Shown("384"),
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
    soft_prompt: Annotated[
        Path | None, "FOLDER", "A soft prompt that `sluice teach prompt` learnt."
    ] = None,
    by: Annotated[
        Literal["beams", "sampling"], "HOW", "Decode by beams (diverse beam search) or sampling."
    ] = "beams",
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
        from sluice.training.generation.query_prompt import SoftPrompt

        decoding: Any = (
            DiverseBeams(queries, **picked(values, DiverseBeams))
            if by == "beams"
            else TopKSampling(queries, **picked(values, TopKSampling))
        )
        generator = ModelGenerator.from_pretrained(
            model, by=decoding, soft=soft_prompt and SoftPrompt.load(soft_prompt),
            **picked(values, ModelGenerator),
        )  # fmt: skip
    report = generate_queries(generator, data, output, **picked(values, generate_queries))
    echo(str(report))


Model = Annotated[
    str,
    "MODEL",
    "A language model's folder or hub id, or an endpoint as YAML: '{type: http, url: "
    "..., model: ...}'.",
]
LIMITS = "sluice.retrieval.stages.transforms.writer:Limits"
ANSWERS, NONE, ALL = Shown("OUTPUT.answers.sqlite"), Shown("none"), Shown("all")


@takes(
    "sluice.retrieval.training_data.written.written_corpus:rewrite_corpus",
    LIMITS,
    replace=Shown(names=("--replace/--no-replace",)),
    documents=ALL,
    cache=ANSWERS,
    budget=NONE,
)
def rewrite(
    model: Model,
    dataset: DatasetName,
    *,
    output: Annotated[Path, "The corpus to write, JSON lines."],
    tokens: Annotated[int, "Most tokens of a new text."] = 128,
    **values: Any,
) -> None:
    """Rewrite documents by a language model.

    The corpus that is written is indexed like any other, as `dataset: {corpus: FILE, queries:
    FILE, qrels: FILE}`. A document without an answer stays as it is. What was answered is never
    asked again.

    Examples:
      sluice teach rewrite Qwen/Qwen3-4B scifact --output corpus.jsonl
      sluice teach rewrite '{type: http, url: http://host/v1, model: m}' code --output c.jsonl
      sluice teach rewrite MODEL code --output c.jsonl --prompt 'What does this do? {text}'
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.stages.transforms.writer import Limits
    from sluice.retrieval.training_data.written.written_corpus import (
        open_language_model,
        rewrite_corpus,
    )

    report = rewrite_corpus(
        open_language_model(model, "MODEL"), load_dataset(dataset, None), output,
        limits=Limits(tokens, **picked(values, Limits)), **picked(values, rewrite_corpus),
    )  # fmt: skip
    echo(str(report))


@takes(
    "sluice.retrieval.training_data.written.written_corpus:describe_corpus",
    LIMITS,
    documents=ALL,
    cache=ANSWERS,
    budget=NONE,
)
def describe(
    model: Model,
    dataset: DatasetName,
    *,
    output: Annotated[Path, "The training rows to write, JSON lines."],
    tokens: Annotated[int, "Most tokens of an answer."] = 512,
    **values: Any,
) -> None:
    """Describe documents by a language model.

    Each abstract description is a training row; beside those that fit a document, the model writes
    such as sound as if they could and do not, which are the rows' negative_queries: `examples:
    FILE` with `loss: misfits` in a training run's YAML. What was answered is never asked again.

    Examples:
      sluice teach describe Qwen/Qwen3-4B scifact --output described.jsonl
      sluice teach describe '{type: http, url: http://host/v1, model: m}' code --output d.jsonl
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.stages.transforms.writer import Limits
    from sluice.retrieval.training_data.written.written_corpus import (
        describe_corpus,
        open_language_model,
    )

    report = describe_corpus(
        open_language_model(model, "MODEL"), load_dataset(dataset, None), output,
        limits=Limits(tokens, **picked(values, Limits)), **picked(values, describe_corpus),
    )  # fmt: skip
    echo(str(report))
    echo(f"  next: train on them with examples: {output} and loss: misfits")


@takes(
    "sluice.retrieval.training_data.written.full_rankings:rank_dataset",
    "sluice.retrieval.training_data.written.full_rankings:Windows",
    LIMITS,
    width=Shown(names=("--window",)),
    passes=Shown("until in order"),
    cache=ANSWERS,
    budget=NONE,
)
def rank(
    model: Model,
    dataset: DatasetName,
    *,
    candidates: Annotated[str, "SOURCE", "A run, or a retriever's folder."],
    output: Annotated[Path, "The training rows to write, JSON lines."],
    split: Annotated[str, "The split whose queries' lists are ranked."] = "train",
    allow: Allow = None,
    **values: Any,
) -> None:
    """Put whole lists in order by a model.

    A language model orders windows from the back to the front of each query's candidates, as a
    reranker of style listwise does, and again until the whole list is in order, not its top alone.
    The rows have a grade for each rank: `examples: FILE` in a training run's YAML, with a loss of
    lists such as list_mle, rank_net or lambda_loss. A query of which a window has no answer is left
    out. What was answered is never asked again.

    Example:
      sluice teach rank Qwen/Qwen3-4B scifact --candidates bm25.trec --output ranked.jsonl
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.stages.transforms.writer import Limits
    from sluice.retrieval.training_data.written.full_rankings import Windows, rank_dataset
    from sluice.retrieval.training_data.written.written_corpus import open_language_model

    report = rank_dataset(
        open_language_model(model, "MODEL"), load_dataset(dataset, split), candidates, output,
        over=Windows(**picked(values, Windows)), limits=Limits(**picked(values, Limits)),
        allow=allowed(allow), **picked(values, rank_dataset),
    )  # fmt: skip
    echo(str(report))


WRITING_COMMANDS: dict[str, Command] = {"rewrite": rewrite, "describe": describe, "rank": rank}
