"""The rows of docs/published.md: what was published, where, and on which collection."""

from __future__ import annotations

from typing import NamedTuple

MTEB = "embeddings-benchmark/results@f4cc6c8b"
MINILM = "all-MiniLM-L6-v2/8b3219a92973c328a8e22fadcfa821b5dc75636a"
MPNET = "all-mpnet-base-v2/84f2bcc00d77236f9e89c8a360a00fb1139bf47d"
MPNET_LATER = "all-mpnet-base-v2/9a3225965996d404b775526de6dbfe85d3368642"
ANSERINI = "Anserini's two-click reproductions for BEIR"


class Row(NamedTuple):
    """A system on a collection, and the nDCG@10 published for it, if any."""

    system: str
    collection: str
    published: float | None
    source: str
    dtype: str = "float32"
    note: str = ""

    @property
    def name(self) -> str:
        """The file of the result."""
        return f"{self.system}.{self.collection}.{self.dtype}"


def _mteb(folder: str, task: str) -> str:
    return f"results/sentence-transformers__{folder}/{task}.json"


# MTEB's task to the collection here, and nDCG@10 of MiniLM and MPNet.
TASKS = {
    "scifact": ("SciFact", 0.64508, 0.6557),
    "nfcorpus": ("NFCorpus", 0.31594, 0.33289),
    "feedbackqa": ("FeedbackQARetrieval", 0.58233, 0.59415),
    "cosqa": ("CosQA", 0.33024, 0.33714),
    "humaneval": ("HumanEvalRetrieval", 0.65329, 0.75814),
    "legal-summarization": ("LegalSummarization", 0.59003, 0.58548),
}
NOTES = {
    "cosqa": "another pool. By MTEB's descriptive statistics its corpus has 20,604 documents of "
    "6,267 different texts, and of equal ones a single one is relevant, so copies of the right "
    "answer stand above it; here each text is there once.",
    "feedbackqa": "the texts are not MTEB's to the letter: by its descriptive statistics the "
    "documents have 2,776,504 characters and the queries 144,085, here 2,777,404 and 144,064 (the "
    "shortest document 117 and 121): a document's headings are joined otherwise.",
    "humaneval": "MTEB's queries cannot be rebuilt to the letter. Its task has 158 of the 164 "
    "tasks and states no cleaning. The documents here have as many characters (27,965); the "
    "queries have 48,993 and should have 46,018 (the shortest 23 in both, the longest 1,207 and "
    "1,200): more was taken out than what follows the first `>>>`.",
}
LATER = ("humaneval", "legal-summarization")  # of another revision of MPNet's repository
# Languages of XQuADRetrieval: MiniLM, MPNet.
XQUAD = {
    "ar": (0.03797, 0.08329), "de": (0.70324, 0.74469), "el": (0.13032, 0.17972),
    "en": (0.94357, 0.95447), "es": (0.63229, 0.64988), "hi": (0.04773, 0.1608),
    "ro": (0.60611, 0.62279), "ru": (0.21609, 0.26272), "th": (0.10145, 0.1126),
    "tr": (0.40025, 0.36528), "vi": (0.5083, 0.37507), "zh": (0.24225, 0.32029),
}  # fmt: skip

ROWS = [
    Row("bm25", "scifact", 0.6789, f"{ANSERINI}, flat"),
    Row("bm25", "nfcorpus", 0.3218, f"{ANSERINI}, flat"),
    Row("bm25-fields", "scifact", 0.6647, f"{ANSERINI}, multifield"),
    Row("bm25-fields", "nfcorpus", 0.3254, f"{ANSERINI}, multifield"),
    Row("bm25", "limit-small", None, ""),
    Row("minilm", "limit-small", None, ""),
    *(
        Row("minilm", name, TASKS[name][1], _mteb(MINILM, TASKS[name][0]), note=NOTES.get(name, ""))
        for name in LATER
    ),
    *(
        Row("minilm", f"xquad-{language}", one, _mteb(MINILM, "XQuADRetrieval"))
        for language, (one, _) in XQUAD.items()
    ),
    *(
        Row("minilm", name, one, _mteb(MINILM, task), note=NOTES.get(name, ""))
        for name, (task, one, _) in TASKS.items()
        if name not in LATER
    ),
    *(Row("splade-tiny", name, None, "") for name in ("scifact", "nfcorpus", "limit-small")),
    *(
        Row(
            "mpnet",
            name,
            TASKS[name][2],
            _mteb(MPNET_LATER, TASKS[name][0]),
            "bfloat16",
            NOTES.get(name, ""),
        )
        for name in LATER
    ),
    *(
        Row("mpnet", f"xquad-{language}", two, _mteb(MPNET, "XQuADRetrieval"), "bfloat16")
        for language, (_, two) in XQUAD.items()
        if language in ("en", "de", "es")
    ),
    *(
        Row("mpnet", name, two, _mteb(MPNET, task), "bfloat16", NOTES.get(name, ""))
        for name, (task, _, two) in TASKS.items()
        if name in ("nfcorpus", "scifact", "feedbackqa")
    ),
]
