#!/usr/bin/env python
"""Query transforms over BM25 with what needs no large model: nDCG@10, R@100 and tokens.

    python scripts/prove_transforms.py ../shared/data/nfcorpus
    python scripts/prove_transforms.py FOLDER --writer FOLDER_OF_A_MODEL --json FILE

``synonyms`` are thirty pairs of everyday and medical words, written down without a look at any
collection. ``extract`` stands for a language model in Iter-RetGen: it answers by the sentence of
the documents it was shown that shares most words with the query. ``--writer`` is a model to write
for query2doc; without one it is a GPT-2 of two layers with random weights.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import options, write_record

SYNONYMS = """
high blood pressure, hypertension
heart attack, myocardial infarction
stroke, cerebrovascular accident
cancer, carcinoma, neoplasm
vitamin c, ascorbic acid
vitamin e, tocopherol
vitamin b12, cobalamin
folate, folic acid, vitamin b9
fat, lipid
belly fat, visceral adiposity
obesity, adiposity
diabetes, diabetes mellitus
blood sugar, blood glucose
kidney, renal
liver, hepatic
lung, pulmonary
heart, cardiac
brain, cerebral
stomach, gastric
skin, dermal
bone, osseous
flu, influenza
chickenpox, varicella
painkiller, analgesic
itching, pruritus
bleeding, hemorrhage
baby, infant
elderly, aged
salt, sodium
milk, dairy
"""


class Extract:
    """Answers with the sentence of a prompt's documents that has most of the query's words."""

    fingerprint = "extract"

    def completions(self, prompts: Sequence[Any], max_new_tokens: int) -> list[str]:
        """Return the sentence for each prompt."""
        return [self._answer(prompt.slots) for prompt in prompts]

    def _answer(self, slots: Sequence[str]) -> str:
        from sluice.encoders.lexical.analyzer import analyzer
        from sluice.training.generation.inverse_cloze import sentences

        terms = analyzer("en")
        wanted = set(terms(slots[-1]))
        found = [each for slot in slots[:-1] for each in sentences(slot)]
        return max(found, key=lambda text: len(wanted & set(terms(text))), default="")


def random_writer(folder: Path, corpus: Sequence[Any]) -> Any:
    """Return a GPT-2 of two layers, random weights, and the collection's commonest words."""
    import collections

    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    from sluice.encoders.rerankers.local_language_model import LocalLanguageModel

    counts = collections.Counter(word for each in corpus for word in each.text.lower().split())
    words = ["[UNK]", "[END]", *(word for word, _ in counts.most_common(5_000))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[END]", pad_token="[END]"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(13)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_positions=128, n_embd=32, n_layer=2, n_head=2,
        eos_token_id=1, bos_token_id=1, pad_token_id=1, initializer_range=0.5,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return LocalLanguageModel.from_pretrained(folder)


def main() -> None:
    from sluice import BM25Encoder, Retriever, evaluate, load_dataset
    from sluice.encoders.rerankers.local_language_model import LocalLanguageModel
    from sluice.retrieval.stages.transforms.drafts import iter_retgen, query2doc
    from sluice.retrieval.stages.transforms.rules import synonyms

    asked = options(__doc__, {
        "dataset": "A dataset: folder, ir_datasets id, name.",
        "--writer": (str, "A language model's folder or hub id."),
        "--json": (Path, "Write the figures here too."),
    })  # fmt: skip
    dataset = load_dataset(asked.dataset, "test")
    corpus = list(dataset.corpus)
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "synonyms.txt"
        file.write_text(SYNONYMS)
        bm25 = Retriever.build(BM25Encoder(), corpus, path=folder / "bm25", name="bm25")
        model = (
            LocalLanguageModel.from_pretrained(asked.writer)
            if asked.writer
            else random_writer(folder / "writer", corpus)
        )
        drafted = query2doc(bm25, model, tokens=32)
        systems: dict[str, Any] = {
            "bm25": bm25,
            "synonyms": synonyms(bm25, file=str(file)),
            "iter_retgen, extract, 1 round": iter_retgen(bm25, Extract(), rounds=1),
            "iter_retgen, extract, 2 rounds": iter_retgen(bm25, Extract(), rounds=2),
            f"query2doc, {'the writer' if asked.writer else 'random GPT-2'}": drafted,
        }
        plain = bm25.run(dataset.queries, k=100)
        for system, stage in systems.items():
            run = stage.run(dataset.queries, k=100)
            mean = dict(evaluate(run, dataset.qrels, ["nDCG@10", "R@100"]).mean)
            moved = sum(list(run[q].doc_ids) != list(plain[q].doc_ids) for q in dataset.queries)
            figures[system] = {**mean, "queries changed": moved, "of": len(dataset.queries)}
        figures[list(systems)[-1]]["tokens"] = drafted.transform.writer.tokens_spent
    print(json.dumps(figures, indent=2))
    write_record(asked.json, figures)


if __name__ == "__main__":
    main()
