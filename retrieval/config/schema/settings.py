"""The schemas of sections that are neither pydantic models nor components, key by key."""

from __future__ import annotations

from typing import Any

from sluice.retrieval.config import component_types as types
from sluice.retrieval.config.component_types import COMPONENT
from sluice.retrieval.config.schema.arguments import Description, Schema


def key(description: str, *types: str, **more: Any) -> Schema:
    """Return the schema of a key of some JSON types."""
    kinds: Schema = {} if not types else {"type": types[0] if len(types) == 1 else list(types)}
    return {**kinds, **more, "description": description}


def keys(properties: dict[str, Schema], description: str, **more: Any) -> Schema:
    """Return the schema of a section that has these keys and no others."""
    return {
        "type": "object", "description": description, "properties": properties,
        "additionalProperties": False, **more,
    }  # fmt: skip


_FILES = {"type": "object", "additionalProperties": {"type": "string"}}
_FILE_OR_SPLITS = [{"type": "string"}, _FILES]

DATASET = keys(
    {
        "name": key("The name of a dataset, or its folder.", "string"),
        "split": key("The split to open; left out, what the verb needs.", "string", "null"),
        "ignore_identical_ids": key(
            "Whether hits with the query's own id are dropped; auto: where queries are documents.",
            enum=["auto", True, False],
        ),
        "level": key("The least grade that counts as relevant.", "integer", minimum=1),
        "corpus": key(
            "Own documents: a file (JSON lines, CSV, TSV, Parquet, ...) or a folder of texts.",
            "string",
        ),
        "queries": key("Own queries: a file, or a file for each split.", anyOf=_FILE_OR_SPLITS),
        "qrels": key(
            "Own judgements, as TREC or TSV: a file, or a file for each split.",
            anyOf=_FILE_OR_SPLITS,
        ),
        "columns": key(
            "The columns of the corpus and the queries: {id, text, title, metadata, query_id, "
            "query}; text and query may be lists, which are joined. Left out, guessed.",
            "object",
        ),
        "allow": key("Paths outside the corpus' folder that links in it may lead to.", "array"),
        "code": key("Whether the corpus is a folder of code, read by functions.", "boolean"),
    },
    "A collection: by name, or own files by key.",
    anyOf=[{"required": ["name"]}, {"required": ["corpus"]}],
)  # fmt: skip

START = key(
    "Begins without a trained head (true, for splade) or without a trained model: {type: fresh, "
    "layers: 4, hidden: 256}, or {type: drawn}, the shape and tokenizer of model.",
    "boolean", "object",
)  # fmt: skip

_RETRIEVER: Schema = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/RetrieverSection"}]}
_JUDGE: Schema = {"type": ["string", "object"]}

_REFRESH = keys(
    {
        "every": key(
            "Steps between two minings, or epoch.",
            anyOf=[{"type": "integer", "minimum": 1}, {"const": "epoch"}], default="epoch",
        ),
        "lag": key(
            "How many steps later the negatives are used; training waits for them there. Left out, "
            "when the next mining begins. 0: training waits for each mining.",
            "integer", minimum=0,
        ),
        "max_age": key(
            "In place of lag: negatives are used as soon as they exist, and training waits "
            "where they would be older than so many steps.",
            "integer", minimum=2,
        ),
        "executor": {
            "description": "Who mines: processes (left out), a process beside this one, or ray.",
            COMPONENT: "executors",
        },
    },
    "Mines in another process, with a copy of the encoder, while training continues.",
)  # fmt: skip

MINED: dict[str, Schema] = {
    "retriever": key(
        "Where candidates come from: a retriever or pipeline by name, a folder, an inline {encoder,"
        " index}, a .trec file, self, random, or a list of these.",
        anyOf=[*_RETRIEVER["anyOf"], {"type": "array", "items": _RETRIEVER, "minItems": 1}],
    ),
    "mode": key(
        "Which candidates are safe, in one word; the keys beside it change its limits.",
        default="percentage",
    ),
    "depth": key("Candidates of each query that are looked at.", "integer", minimum=1),
    "folds": key(
        "Parts of the training queries, each searched by a first stage that is trained without it.",
        "integer",
        minimum=2,
    ),
    "judge": key(
        "Who drops candidates that are relevant: a reranker by name, a component, a file, or a "
        "list of these.",
        anyOf=[_JUDGE, {"type": "array", "items": _JUDGE, "minItems": 1}],
    ),
    "refresh": key(
        "Mines again every so many steps, or each epoch; left out, once. {every, lag} or {every, "
        "max_age}: in another process, while training continues.",
        anyOf=[{"type": "integer", "minimum": 1}, {"const": "epoch"}, _REFRESH],
    ),
}
LIVE: dict[str, Schema] = {
    "depth": key("Hits of each query.", "integer", minimum=2, default=200),
    "append": key(
        "Whether a relevant document that the search missed is appended: to queries without any, or"
        " every one.",
        default="none_found",
    ),
    "index": {"description": "The index that is searched.", COMPONENT: "indexes"},
}

ENSEMBLE = Description(
    types.ENSEMBLE,
    "The weighted mean of several teachers of any kind; a list of teachers is one with min-max "
    "and a scale of 30.",
    {
        "teachers": key(
            "The teachers, each a name or a component.", "array", minItems=1, items=_JUDGE
        ),
        "weights": key("One weight for each; left out, all alike.", "array",
                       items={"type": "number", "exclusiveMinimum": 0}),
        "normalise": key("What becomes of each teacher's scores of one query: min-max, z-score, or "
                         "none, as they are.", enum=["min-max", "z-score", "none"],
                         default="none"),
        "scale": key("What the weighted mean is multiplied by.", "number", exclusiveMinimum=0,
                     default=1.0),
    },
    ["teachers"],
)  # fmt: skip


def _penalty(side: str) -> Schema:
    ranks = {
        "by_rank": key(
            "Whether positives, first negatives and so on are averaged apart; flops alone.",
            "boolean",
        )
    }
    return keys(
        {
            "type": key("The penalty: flops or l1.", enum=["flops", "l1"]),
            "weight": key("Its weight when the ramp ends.", "number", "null", minimum=0),
            "target_terms": key(
                "Terms of a vector that the weight is steered to.", "number", "null", minimum=1
            ),
            "threshold": key(
                "Vectors of so few terms are not penalised.", "integer", "null", minimum=1
            ),
            "idf_power": key(
                "Common terms cost more, by (highest idf / idf) to this power; 1 is usual.",
                "number",
                "null",
                exclusiveMinimum=0,
                maximum=8,
            ),
            **(ranks if side == "documents'" else {}),
        },
        f"The penalty of the {side} vectors.",
        required=["type"],
    )


SPARSITY = keys(
    {
        "query": _penalty("queries'"),
        "document": _penalty("documents'"),
        "ramp": key(
            "How long weights grow: a share of all steps (at most 1), or steps.",
            "number", minimum=0, default=0.33,
        ),
        "anti_zero": key("The weight of a penalty for empty vectors.", "number", minimum=0),
        "target_query_terms": key(
            "Short for query: {type: l1, target_terms: ...}.", "number", minimum=1
        ),
        "target_doc_terms": key(
            "Short for document: {type: flops, target_terms: ...}.", "number", minimum=1
        ),
    },
    "How SPLADE's vectors are kept sparse: a penalty for each side, or a number of terms.",
)  # fmt: skip

# Those that people set; every other key of transformers.TrainingArguments is valid too, and which
# they are depends on the installed version.
TRAINER: Schema = {
    "type": "object",
    "description": "Settings of transformers.TrainingArguments; others than these work too.",
    "properties": {
        "max_steps": key("Steps of training; goes before num_train_epochs.", "integer"),
        "num_train_epochs": key("Passes through the examples.", "number", exclusiveMinimum=0),
        "per_device_train_batch_size": key(
            "Examples of a step: each is a negative for the others.", "integer", minimum=1,
            default=32,
        ),
        "gradient_accumulation_steps": key(
            "Batches of a step, to train as if batches were larger.", "integer", minimum=1
        ),
        "learning_rate": key(
            "The peak learning rate.", "number",
            exclusiveMinimum=0, default=2e-5,
        ),
        "warmup_steps": key("Steps, or a share of them, until the peak.", "number", minimum=0),
        "lr_scheduler_type": key("How the learning rate falls: linear, cosine, ...", "string"),
        "weight_decay": key("The decay of weights.", "number", minimum=0),
        "max_grad_norm": key("The length that gradients are cut to.", "number", minimum=0),
        "bf16": key("Whether training computes in bfloat16 where that is safe.", "boolean"),
        "gradient_checkpointing": key("Less memory, for more time.", "boolean"),
        "logging_steps": key("Steps, or a share of them, between two lines of the log.", "number"),
        "save_strategy": key("When checkpoints are saved: steps, epoch, best or no.", "string"),
        "save_steps": key("Steps, or a share of them, between two checkpoints.", "number"),
        "save_total_limit": key("Checkpoints that stay.", "integer", "null"),
        "report_to": key("Where figures are reported: none, tensorboard, wandb.",
                         "string", "array"),
        "dataloader_num_workers": key("Processes that prepare batches.", "integer", minimum=0),
    },
}  # fmt: skip
