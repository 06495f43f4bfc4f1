"""The YAML section of a training run, and what each of its keys means."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sluice.retrieval.config.component_types import (
    DatasetName,
    Examples,
    Loss,
    Measures,
    Negatives,
    Section,
    SparsitySettings,
    Teacher,
    TrainedEncoder,
    TrainerSettings,
    Tuning,
)


class DevSection(Section):
    """Dev evaluation while training, on a sample of the dev split."""

    measures: Measures = Field(
        default=["nDCG@10"],
        min_length=1,
        description="What is measured; the first decides which checkpoint is the best.",
    )
    every: int | None = Field(
        default=None,
        ge=1,
        description="Steps between two evaluations; left out, five evaluations in all.",
    )
    queries: int = Field(default=200, ge=1, description="Dev queries that are sampled.")
    documents: int = Field(
        default=5000,
        ge=1,
        description="Documents searched: the dev queries' relevant ones, and others up to so many.",
    )
    by: Literal["judgements", "examples"] | None = Field(
        default=None,
        description="What measures: the dev split's judgements, or examples that are held out of "
        "training; left out, judgements where there are any.",
    )
    patience: int | None = Field(
        default=None,
        ge=1,
        description="Training ends after so many evaluations without a better first measure.",
    )
    shares: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        default=[],
        description="Weights between the start and the best that are tried as well, as shares of "
        "the way (WiSE-FT); [0.25, 0.5, 0.75] is usual.",
    )
    margin: float = Field(
        default=1.0,
        ge=0,
        allow_inf_nan=False,
        description="How many standard errors better than the start trained weights must be, over "
        "the dev queries, to be kept; 0 keeps what is best.",
    )


class FreezeSection(Section):
    """Parts that are not trained."""

    layers: int = Field(default=0, ge=0, description="The lowest layers of the network, so many.")
    embeddings: bool = Field(default=False, description="The token embeddings.")


class OfDataset(Section):
    """What one of several datasets has of its own."""

    loss: Loss | None = Field(default=None, description="Its loss; left out, that of the training.")
    examples: Examples | None = Field(default=None, description="Its examples.")
    query_prompt: str | None = Field(default=None, description="What its queries begin with.")
    document_prompt: str | None = Field(default=None, description="What its documents begin with.")
    weight: float | None = Field(
        default=None, gt=0, allow_inf_nan=False,
        description="Its share of the batches, over the sum of all weights; left out, 1 where "
        "others have one, else as sampling_temperature says.",
    )  # fmt: skip


class TrainingSection(Section):
    """One training run: what is trained, with which loss and negatives, for how long."""

    encoder: TrainedEncoder = Field(description="The model to train, and how it reads texts.")
    loss: Loss = Field(description="What training minimises: `sluice config list losses`.")
    datasets: list[DatasetName] | None = Field(
        default=None,
        min_length=1,
        description="Datasets to train on instead of the file's own: every batch is of one of "
        "them, and each has negatives and dev measures of its own.",
    )
    sampling_temperature: float | None = Field(
        default=None,
        gt=0,
        description="How often each of several datasets is drawn: in proportion to size^(1/T); 1: "
        "by size, more: more alike; left out, 2.",
    )
    by_dataset: dict[str, OfDataset] | None = Field(
        default=None, min_length=1, description="What some of several datasets have of their own."
    )
    examples: Examples | None = Field(
        default=None,
        description="Training examples from a file, or made from the corpus; left out, the train "
        "split's judgements.",
    )
    negatives: Negatives | None = Field(
        default=None,
        description="Documents to tell from the positives, beside the others of the batch: mined "
        "before training, or found live by searching.",
    )
    teacher: Teacher | None = Field(
        default=None,
        description="Whose scores a distillation loss learns: a model, a run or a file of "
        "`sluice teach distil`.",
    )
    answered: str | list[str] | None = Field(
        default=None,
        description="Files of queries and documents that answer them, for the loss clp: what "
        "`sluice teach generate` writes, or any file of pairs.",
    )
    positives: int = Field(
        default=1, ge=1, description="Positives of its query that one example holds."
    )
    labels: Literal["binary", "grades", "unit"] = Field(
        default="binary",
        description="What judged documents are labelled: 1, their grade, or the grade over the "
        "highest.",
    )
    tuning: Tuning | None = Field(
        default=None, description="Trains few parameters instead of all, such as LoRA's."
    )
    freeze: FreezeSection | None = Field(default=None, description="Parts that are not trained.")
    gradient_cache: int | None = Field(
        default=None,
        ge=1,
        description="Texts encoded at a time: large batches in little memory, for more time.",
    )
    scoring: Literal["max_sim", "mean_max_sim", "xtr"] | None = Field(
        default=None,
        description="How the token vectors of a tokens encoder are scored in training: max_sim "
        "(left out), its mean over the query's tokens, or xtr.",
    )
    xtr_top_k: int | None = Field(
        default=None,
        ge=1,
        description="Of scoring: xtr, how many tokens of the batch's documents each query token "
        "finds; left out, 256.",
    )
    sparsity: SparsitySettings | None = Field(
        default=None, description="How SPLADE's vectors are kept sparse."
    )
    evaluate: DevSection | None = Field(
        default=None, description="Evaluation on the dev split while training."
    )
    trainer: TrainerSettings = Field(
        default_factory=dict,
        description="Settings of transformers.TrainingArguments, such as max_steps.",
    )
    head_learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="The learning rate of a new head of SPLADE or a cross-encoder, or of the "
        "projection of token vectors; left out, that of the rest.",
    )

    def of(self, dataset: str) -> TrainingSection:
        """Return this section with what the dataset has of its own in the place of the common."""
        own = (self.by_dataset or {}).get(dataset)
        values = {} if own is None else {"loss": own.loss, "examples": own.examples}
        return self.model_copy(update={k: v for k, v in values.items() if v is not None})

    @property
    def dataset_weights(self) -> dict[str, float] | None:
        """The weights of the datasets that have one; None where none has."""
        own = (self.by_dataset or {}).items()
        return {name: each.weight for name, each in own if each.weight is not None} or None

    @property
    def dataset_prompts(self) -> dict[str, dict[str, str]] | None:
        """The prompts of the datasets that have some, by side; None where none has."""
        found: dict[str, dict[str, str]] = {}
        for name, own in (self.by_dataset or {}).items():
            for side, prompt in (("query", own.query_prompt), ("document", own.document_prompt)):
                if prompt is not None:
                    found.setdefault(name, {})[side] = prompt
        return found or None
