"""Passages: every token is read, what fits is untouched, and means are means."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from scipy import sparse

from sluice.encoders import BM25Encoder, DenseEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.retrievers.corpus.late_chunks import (
    LONGEST_WORD,
    TokenPieces,
    windows,
    word_pieces,
)
from sluice.retrieval.retrievers.corpus.passage_indexing import mean_vectors
from sluice.retrieval.retrievers.corpus.passages import Passages

QUICK = settings(
    derandomize=True,
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
BM25 = BM25Encoder()


@pytest.fixture(scope="session")
def encoder(bert: Path) -> DenseEncoder:
    return DenseEncoder.from_pretrained(bert, device="cpu", document_length=20)


def document(text: str, title: str = "") -> Document:
    return Document("d", title, text)


def cut(passages: Passages, encoder: object, *documents: Document) -> list[list[str]]:
    return [[part.full_text for part in parts] for parts in passages.split(encoder, documents)]


@QUICK
@given(
    begins=st.lists(st.booleans(), min_size=1, max_size=80),
    length=st.integers(1, 20),
    overlap=st.integers(0, 19),
)
def test_windows_cover_all_and_none_is_a_tail(
    begins: list[bool], length: int, overlap: int
) -> None:
    overlap = min(overlap, length - 1)
    mask = np.array([True, *begins[1:]])
    spans = windows(mask, length, overlap)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(mask)
    for start, stop in spans:
        assert 0 < stop - start <= length
    for (start, stop), (later, end) in itertools.pairwise(spans):
        assert start < later <= stop < end  # no gap, and each brings something new
        if (later, end) != spans[-1]:
            assert stop - later <= overlap
    if mask.all():
        assert {stop - start for start, stop in spans} == {min(length, len(mask))}
        shared = [a[1] - b[0] for a, b in itertools.pairwise(spans[:-1])]
        assert set(shared) <= {overlap}


def test_windows_begin_and_end_with_whole_words() -> None:
    begins = np.array([1, 0, 0, 1, 0, 1, 1, 0, 0, 1], dtype=np.bool_)
    assert windows(begins, 4, 1) == [(0, 3), (3, 6), (5, 9), (6, 10)]
    assert windows(begins, 2, 1) == [(0, 2), (2, 3), (3, 5), (5, 6), (6, 8), (8, 10)]
    assert windows(begins, 10, 3) == [(0, 10)]


ALPHABET = "gold river stone water sluice x7 the-of é 砂 \u200b\t\n 😀 term, rank. "


@QUICK
@given(
    text=st.text(alphabet=sorted(set(ALPHABET)), max_size=150),
    title=st.sampled_from(["", "gold", "gold " * 30, "   "]),
    length=st.integers(1, 17),
    overlap=st.integers(0, 16),
    repeat_title=st.booleans(),
)
def test_every_token_is_in_a_passage_that_the_encoder_reads_whole(
    encoder: DenseEncoder,
    text: str,
    title: str,
    length: int,
    overlap: int,
    repeat_title: bool,
) -> None:
    passages = Passages(length, min(overlap, length - 1), repeat_title=repeat_title)
    whole = document(text, title)
    [parts] = passages.split(encoder, [whole])
    source = text if repeat_title else whole.full_text
    pieces = TokenPieces(encoder.tokenizer)
    [tokens] = pieces([source])
    if len(tokens) <= length:
        assert len(parts) == 1
        return
    # The windows cover every token, see above; here each is a substring, and read whole.
    spans = windows(tokens.begins, length, passages.overlap)
    assert [part.text for part in parts] == [tokens.cut(source, *span) for span in spans]
    for part, (first, last) in zip(parts, spans, strict=True):
        for start, stop in zip(tokens.starts[first:last], tokens.ends[first:last], strict=True):
            assert source[start:stop] in part.text
        assert len(pieces([part.text])[0]) <= length
        read = encoder.token_ids([part.full_text], "document")[0]
        assert len(read) - 2 == len(pieces([part.full_text])[0])  # nothing was cut off


def test_what_fits_is_encoded_as_without_passages(encoder: DenseEncoder) -> None:
    documents = [
        document("gold in the river", "about gold"),
        document("", ""),
        document("", "only a title"),
        document("", "gold " * 40),  # longer than the encoder reads: cut by it, as ever
        document("  water\n"),
        document("gold"),
    ]
    for passages in (Passages(16, 2), Passages(16, 2, repeat_title=False)):
        parts = list(passages.split(encoder, documents[:3] + documents[4:]))
        assert [len(each) for each in parts] == [1] * 5
        assert [each[0].full_text for each in parts] == [
            each.full_text for each in documents[:3] + documents[4:]
        ]
    [[title]] = Passages(16, 2).split(encoder, [documents[3]])
    assert title is documents[3]


def test_titles(encoder: DenseEncoder, caplog: pytest.LogCaptureFixture) -> None:
    text = "river stone water sluice query search"
    assert cut(Passages(4, 2), encoder, document(text, "gold")) == [
        ["gold river stone water sluice", "gold water sluice query search"]
    ]
    assert cut(Passages(4, 2, repeat_title=False), encoder, document(text, "gold")) == [
        ["gold river stone water", "stone water sluice query", "water sluice query search"]
    ]
    assert not caplog.records
    # 18 tokens are read, so beside 4 of the text there is room for 14 of the title.
    [parts] = cut(Passages(4, 2), encoder, document(text, "gold " * 30))
    assert parts[0] == "gold " * 14 + "river stone water sluice"
    assert "'d' has 30 tokens, and the encoder has room for 14" in caplog.text
    # A text that fits leaves the title more.
    assert cut(Passages(4, 2), encoder, document("river", "gold " * 30)) == [
        ["gold " * 17 + "river"]
    ]
    fields = BM25Encoder(fields={"title": 1.0, "text": 1.0})
    long = document("a b c d e", "gold")
    kept = [[p.title for p in Passages(2, 0).split(fields, [long]).__next__()]]
    assert kept == [["gold"] * 3]
    parts_of = next(Passages(2, 0, repeat_title=False).split(fields, [long]))
    assert [(part.title, part.text) for part in parts_of] == [
        ("gold", "a b"), ("", "c d"), ("", "d e"),
    ]  # fmt: skip


def test_words_where_there_is_no_tokenizer() -> None:
    assert cut(Passages(3, 1), BM25, document("one,  two\nthree four five six", "T")) == [
        ["T one,  two\nthree", "T three four five", "T four five six"]
    ]
    [pieces] = word_pieces([" a  bc "])
    assert (pieces.starts.tolist(), pieces.ends.tolist()) == ([1, 4], [2, 6])
    assert len(word_pieces([""])[0]) == 0


def test_most_and_first(encoder: DenseEncoder) -> None:
    long = document("river stone water sluice query search gold")
    whole = cut(Passages(2, 0), encoder, long)[0]
    assert len(whole) == 4
    assert cut(Passages(2, 0, most=3), encoder, long) == [whole[:3]]
    assert cut(Passages(2, 0, aggregate="first"), encoder, long) == [whole[:1]]
    assert cut(Passages(2, 0, aggregate="mean"), encoder, long) == [whole]


def test_long_words_are_cut_and_short_ones_are_not(encoder: DenseEncoder) -> None:
    pieces = TokenPieces(encoder.tokenizer)
    [short, long] = pieces(["xyzzy " * 3, "x" * (LONGEST_WORD + 1)])
    assert short.begins.tolist() == [True, False, False, False, False] * 3
    assert long.begins.all()
    assert cut(Passages(9, 2), encoder, document("xyzzy " * 3)) == [["xyzzy"] * 3]
    assert cut(Passages(16, 2), encoder, document("x" * 17)) == [["x" * 16] * 2]


def test_the_tokenizer_of_others_is_left_alone(encoder: DenseEncoder) -> None:
    before = encoder.tokenizer.backend_tokenizer.to_str()
    long = document("gold " * 100)
    encoder.token_ids(["gold " * 100], "document")
    cut_before = encoder.tokenizer.backend_tokenizer.truncation
    assert len(cut(Passages(10, 0), encoder, long)[0]) == 10
    assert encoder.tokenizer.backend_tokenizer.truncation == cut_before
    assert before  # it was readable all along


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": 5, "overlap": 5}, "overlap: 5 of passages of 5; expected less"),
        ({"repeat_title": 1}, "repeat_title: 1; expected true or false"),
    ],
)
def test_bad_settings(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Passages(**given)  # type: ignore[arg-type]


def test_length_must_fit(bert: Path) -> None:
    prompted = DenseEncoder.from_pretrained(
        bert, device="cpu", document_length=20, document_prompt="search the index: "
    )
    Passages(13, 2).check(prompted)  # 20, less 2 special tokens and 4 of the prompt, and a title
    Passages(14, 2, repeat_title=False).check(prompted)
    with pytest.raises(ConfigError, match=r"14 tokens are all the encoder reads .* no room for"):
        Passages(14, 2).check(prompted)
    with pytest.raises(
        ConfigError, match=r"passages\.length: 15 tokens; .* reads 14 of a document"
    ):
        list(Passages(15, 2, repeat_title=False).split(prompted, []))
    assert Passages(**Passages(14, 2, "mean").settings()) == Passages(14, 2, "mean")


def test_means() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((6, 4)).astype(np.float32)
    counts = np.array([2, 1, 3])
    parts = np.split(vectors.astype(np.float64), np.cumsum(counts)[:-1])
    plain = mean_vectors(vectors, counts, normalize=False)
    assert plain.dtype == np.float32
    np.testing.assert_allclose(plain, [part.mean(axis=0) for part in parts], rtol=1e-6)
    np.testing.assert_array_equal(plain[1], vectors[2])  # one passage is the identity
    unit = mean_vectors(vectors, counts, normalize=True)
    np.testing.assert_array_equal(unit[1], vectors[2])
    np.testing.assert_allclose(np.linalg.norm(unit[[0, 2]], axis=1), 1, rtol=1e-6)
    query = rng.standard_normal(4)
    np.testing.assert_allclose(plain @ query, [(part @ query).mean() for part in parts], rtol=1e-5)
    opposite = np.array([[1, 0], [-1, 0]], dtype=np.float32)
    np.testing.assert_array_equal(
        mean_vectors(opposite, np.array([2]), normalize=True), np.zeros((1, 2))
    )
    assert mean_vectors(vectors[:0], counts[:0], normalize=True).shape == (0, 4)

    table = np.abs(vectors) * (rng.random((6, 4)) < 0.5)
    sparse_means = mean_vectors(sparse.csr_array(table), counts, normalize=True)
    assert sparse_means.dtype == np.float32
    assert sparse_means.has_sorted_indices
    expected = [part.mean(axis=0) for part in np.split(table, np.cumsum(counts)[:-1])]
    np.testing.assert_allclose(sparse_means.toarray(), expected, rtol=1e-6)
    np.testing.assert_array_equal(sparse_means.toarray()[1], table[2])
    assert mean_vectors(sparse.csr_array(table)[:0], counts[:0], normalize=False).shape == (0, 4)


def test_no_passage_crosses_a_heading(encoder: DenseEncoder) -> None:
    text = "intro\n# One\n## Two\n" + "water " * 30 + "\n# Three\nend\n"
    page = document(text, "Gold")
    for kind in (BM25, encoder):
        passages = Passages(12, 2, headings=True)
        (parts,) = passages.split(kind, [page])
        (spans,) = passages.characters(kind, [page])
        assert [part.text for part in parts] == [text[a:b] for a, b in spans]
        assert all(part.title == "Gold" for part in parts)
        assert parts[0].text == "intro"
        assert parts[1].text.startswith("# One\n## Two")
        assert parts[-1].text == "# Three\nend"
        assert all("#" not in part.text[1:] for part in parts[2:])
        assert "".join(text.split()) == "".join(_covered(text, spans).split())
        # A short text with headings is cut too, one without is whole.
        assert cut(passages, kind, document("# A\nx\n# B\ny")) == [["# A\nx", "# B\ny"]]
        assert cut(passages, kind, document("a\nb", "t")) == [["t a\nb"]]
        assert cut(Passages(12, 2, most=1, headings=True), kind, page) == [["Gold intro"]]
    with pytest.raises(ConfigError, match="headings: 1; expected true or false"):
        Passages(headings=1)  # type: ignore[arg-type]


def _covered(text: str, spans: list[tuple[int, int]]) -> str:
    places = sorted({place for start, end in spans for place in range(start, end)})
    return "".join(text[place] for place in places)
