"""A stage of your own: it adds synonyms to each query and searches the stage it wraps."""

from sluice import BM25Encoder, Document, Retriever, Stage
from sluice.retrieval.testing import check_stage


class Synonyms(Stage):
    """``Synonyms(bm25, {"gold": ["nugget"]})``; then ``>> % |`` as with any stage."""

    def __init__(self, stage, synonyms):
        self.stage, self.synonyms = stage, synonyms
        self.name = f"synonyms({stage.name})"

    # What it is made of, and how to make it of others: its document store, filters and prices
    # follow from these two.
    @property
    def inner(self):
        return (self.stage,)

    def over(self, inner):
        return Synonyms(*inner, self.synonyms)

    # Its hits are not those of the retriever below, so nobody may look into that one's index.
    base_retriever = None

    def rank(self, queries, given=None, k=None):
        """Return a ranking for each query; ``given`` is the run before it, for rerankers."""
        longer = {query: self.expanded(text) for query, text in queries.items()}
        return self.stage.rank(longer, given, k)

    def expanded(self, text):
        words = text.split()
        return " ".join(words + [new for word in words for new in self.synonyms.get(word, [])])


documents = [Document("1", "", "a nugget in the river"), Document("2", "", "dense vectors")]
bm25 = Retriever.build(BM25Encoder(), documents)
stage = Synonyms(bm25, {"gold": ["nugget"]})
assert [hit.doc_id for hit in (stage % 5).search("gold")] == ["1"]

# Order, depth, ties, blank queries, filters, traces: raises BrokenRule, or all is well.
check_stage(stage, {"a": "gold", "b": "dense rivers"})
