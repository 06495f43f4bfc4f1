"""The commented YAML of each job, as templates: every important key, and what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MINILM = "sentence-transformers/all-MiniLM-L6-v2"

TRAIN_DENSE = """\
# A dense encoder, trained on {data}: sluice train {file}
{dataset}
output: {output}  # OUTPUT/model is the model, OUTPUT/training its journal
seed: 13

encoder:
  type: dense
  model: {model}
  query_length: {query_length}  # tokens read; the median has {query_words} words
  document_length: {document_length}  # tokens read; the median has {document_words} words
{examples}

loss: {{type: info_nce, temperature: 0.05}}  # others: sluice config list losses

{negatives}

{evaluate}

trainer:  # any key of transformers.TrainingArguments
  num_train_epochs: 1
  per_device_train_batch_size: 32  # the others of a batch are negatives: larger is better
  learning_rate: 2.0e-5
  bf16: true  # half the memory and time where the hardware has it
"""

TRAIN_SPLADE = """\
# SPLADE, trained on {data}: sluice train {file}
{dataset}
output: {output}  # OUTPUT/model is the model, OUTPUT/training its journal
seed: 13

encoder:
  type: splade
  model: {model}
  start: true  # makes the head that a plain encoder lacks; leave out for SPLADE
  query_length: {query_length}  # tokens read; the median has {query_words} words
  document_length: {document_length}  # tokens read; the median has {document_words} words
{examples}

loss: {{type: info_nce, temperature: 0.3}}  # others: sluice config list losses
sparsity:  # terms of a vector: fewer are faster, more find more
  target_query_terms: 20
  target_doc_terms: 120

{negatives}

{evaluate}

head_learning_rate: 2.0e-4  # the new head learns faster than the rest
trainer:  # any key of transformers.TrainingArguments
  num_train_epochs: 1
  per_device_train_batch_size: 32  # the others of a batch are negatives: larger is better
  learning_rate: 5.0e-5
  bf16: true  # half the memory and time where the hardware has it
"""

TRAIN_RERANKER = """\
# A cross-encoder that reranks, trained on {data}: sluice train {file}
{dataset}
output: {output}  # OUTPUT/model is the model, OUTPUT/training its journal
seed: 13

encoder:
  type: cross_encoder
  model: {model}
  head: similarity  # compares the texts' states; classifier: for a model that has one
  max_length: {pair_length}  # tokens of a query and a document together
{examples}

loss: localized_softmax  # each positive against the negatives of its query

{negatives}

{evaluate}

head_learning_rate: 1.0e-3  # the new head learns faster than the rest
trainer:  # any key of transformers.TrainingArguments
  num_train_epochs: 1
  per_device_train_batch_size: 8
  learning_rate: 5.0e-5
  bf16: true  # half the memory and time where the hardware has it
"""

HYBRID = """\
# Hybrid search over {data}: sluice index {file}
# and then: sluice search {output} "your question"
{dataset}
output: {output}  # retrievers, runs and results

retrievers:
  bm25:
    encoder: {{type: bm25}}  # language: de, fr, ... for other languages than English
    index: inverted
  dense:
    encoder:
      type: dense
      model: {model}
      dtype: auto  # bfloat16 where the hardware has it
    index: flat  # exact; {{type: auto}} for a million documents and more
{passages}

pipelines:  # the last one is used unless another is named
  bm25: bm25
  dense: dense
  hybrid: bm25 | dense  # reciprocal ranks; weighted(bm25, dense, weights=[0.3, 0.7]) too
{evaluation}
"""

EVALUATE = """\
# Baselines and a hybrid on {data}, with significance tests: sluice run {file}
{dataset}
output: {output}  # retrievers, runs, results.json and report.html
seed: 13

retrievers:
  bm25: {{encoder: bm25, index: inverted}}
  dense:
    encoder: {{type: dense, model: {model}, dtype: auto}}
    index: flat
{passages}

pipelines:
  bm25: bm25
  dense: dense
  hybrid: bm25 | dense
  # a reranker of your own: rerankers: {{cross: {{type: cross_encoder, model: FOLDER}}}}, and here
  # cascade: hybrid >> cross(depth=50)
{evaluation}
"""

TUNE = """\
# The best pipeline within a budget, tuned on dev and measured on {split}: sluice tune {file}
{dataset}
output: {output}  # OUTPUT/tune has every pipeline tried, and tuned.yaml
seed: 13

retrievers:
  bm25: {{encoder: bm25, index: inverted}}
  dense:
    encoder: {{type: dense, model: {model}, dtype: auto}}
    index: flat
{passages}

tune:
  measure: nDCG@10  # what is made as high as possible
  split: dev  # a tenth of train where the dataset has no dev split
  queries: 300
  budget: {{p95_ms: 100}}  # or {{share_of_best: 0.98}}: the cheapest nearly as good
  # pipelines: what to try; left out, the retrievers are combined
  #   - "weighted(bm25, dense, weights=[1, {{w}}]) % {{k}}"
  # choices: {{w: [0.5, 1, 2], k: [50, 100]}}

evaluate:
  measures: [nDCG@10, R@100]
  split: {split}
"""

# The jobs that `sluice config init` knows, each with what it is for and its template.
JOBS: Final[Mapping[str, tuple[str, str]]] = {
    "train dense": ("Train a dense encoder on a dataset or on pairs of your own.", TRAIN_DENSE),
    "train splade": ("Train SPLADE, a sparse encoder.", TRAIN_SPLADE),
    "train reranker": ("Train a cross-encoder that reranks.", TRAIN_RERANKER),
    "hybrid": ("Index documents for BM25, dense and hybrid search.", HYBRID),
    "evaluate": ("Compare pipelines on a dataset with judgements.", EVALUATE),
    "tune": ("Find the best pipeline within a budget.", TUNE),
}
