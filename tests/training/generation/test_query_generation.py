from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_generators import END

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.generative.constrained_decoding import Continuations
from sluice.training.generation.decoding import DiverseBeams, TopKSampling
from sluice.training.generation.inverse_cloze import Passage
from sluice.training.generation.query_generation import KeySentences, ModelGenerator, distinct

DOCUMENTS = [
    Passage("a", "gold", "gold in the river and stone"),
    Passage("b", "", "deep water"),
    Passage("c", "", "rank the document by score and learn to rank dense and sparse vector"),
]


def loaded(folder: Path, **options: Any) -> ModelGenerator:
    return ModelGenerator.from_pretrained(folder, **{"by": DiverseBeams(), **options})


def stripped(row: torch.Tensor, ends: list[int]) -> list[int]:
    """A generated row without what follows its first end token."""
    tokens = row.tolist()
    stop = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: stop + 1]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@pytest.mark.parametrize("ends", [[END], list(range(3, 100, 5))])
@pytest.mark.parametrize(("beams", "length_penalty"), [(1, 1.0), (3, 1.0), (4, 0.0), (5, 2.0)])
def test_one_group_is_the_beam_search_of_transformers(
    kind: str, ends: list[int], beams: int, length_penalty: float, request: pytest.FixtureRequest
) -> None:
    generator = loaded(request.getfixturevalue(kind))
    model: Any = generator.model
    ids, mask = generator._tokens(DOCUMENTS)
    plain = DiverseBeams(groups=1, beams=beams, length=12, length_penalty=length_penalty)
    with torch.inference_mode():
        found = plain.search(Continuations(model, ids, mask, plain.copies), ends)
        expected = model.generate(
            input_ids=ids, attention_mask=mask, num_beams=beams, num_return_sequences=beams,
            do_sample=False, max_new_tokens=12, length_penalty=length_penalty, eos_token_id=ends,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    start = 1 if kind == "t5" else ids.shape[1]
    rows = [stripped(row[start:], ends) for row in expected.sequences]
    for text in range(len(DOCUMENTS)):
        own = slice(text * beams, (text + 1) * beams)
        assert [one.tokens for one in found[text]] == rows[own]
        if beams > 1:
            scores = expected.sequences_scores[own].tolist()
            assert [one.score for one in found[text]] == pytest.approx(scores, abs=1e-4)
    if len(ends) > 1:
        assert any(len(row) < 12 for row in rows)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_one_beam_a_group_is_greedy_with_hamming_penalties(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """Straight from the definition, one text, no cache, no batching."""
    generator = loaded(request.getfixturevalue(kind))
    model: Any = generator.model
    groups, length, penalty = 4, 6, 3.0
    beams = DiverseBeams(groups=groups, beams=1, penalty=penalty, length=length, length_penalty=0)
    for document in DOCUMENTS:
        ids, mask = generator._tokens([document])
        with torch.inference_mode():
            (found,) = beams.search(Continuations(model, ids, mask, groups), [])
            written: list[list[int]] = [[] for _ in range(groups)]
            scores = [0.0] * groups
            for _ in range(length):
                counts = torch.zeros(model.config.vocab_size)
                for group in range(groups):
                    own = torch.tensor([written[group]], dtype=torch.long)
                    if kind == "t5":
                        begun = torch.cat([torch.tensor([[0]]), own], dim=1)
                        output = model(input_ids=ids, decoder_input_ids=begun)
                    else:
                        output = model(input_ids=torch.cat([ids, own], dim=1))
                    lowered = output.logits[0, -1].log_softmax(-1) - penalty * counts
                    token = int(lowered.argmax())
                    counts[token] += 1
                    written[group].append(token)
                    scores[group] += float(lowered[token])
        assert [one.tokens for one in found] == written
        assert [one.score for one in found] == pytest.approx(scores, abs=1e-3)


def test_groups_differ_and_the_first_is_unpenalised(t5: Path) -> None:
    generator = loaded(t5)
    ids, mask = generator._tokens(DOCUMENTS)
    with torch.inference_mode():

        def found(**options: Any) -> list[list[list[int]]]:
            by = DiverseBeams(beams=2, length=8, **options)
            made = by.search(Continuations(generator.model, ids, mask, by.copies), [END])
            return [[one.tokens for one in text] for text in made]

        alone = found(groups=1)
        diverse = found(groups=3, penalty=50.0)
        same = found(groups=3, penalty=0.0)
    for text in range(len(DOCUMENTS)):
        assert diverse[text][:2] == alone[text]
        assert same[text] == alone[text] * 3
        assert len({tuple(tokens) for tokens in diverse[text]}) > 2


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@pytest.mark.parametrize(
    "by", [DiverseBeams(groups=2, beams=2, length=8), TopKSampling(3, length=8)]
)
def test_queries_do_not_depend_on_the_batch(
    kind: str, by: Any, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    together = loaded(folder, by=by, batch=3).queries(DOCUMENTS)
    alone = loaded(folder, by=by, batch=1)
    assert together == [alone.queries([document])[0] for document in DOCUMENTS]
    assert together == loaded(folder, by=by, batch=2).queries(DOCUMENTS)
    for queries in together:
        keys = [same_text_key(query) for query in queries]
        assert len(set(keys)) == len(keys)
        assert all(keys)


def test_samples_are_of_the_most_probable_tokens_by_seed(t5: Path) -> None:
    generator = loaded(t5, by=TopKSampling(samples=5, top=2, length=4))
    by: Any = generator.by
    ids, mask = generator._tokens(DOCUMENTS)
    with torch.inference_mode():

        def drawn(seed: int) -> Any:
            rows = Continuations(generator.model, ids, mask, by.copies)
            return by.draw(rows, [END], ["a", "b", "c"], seed)

        assert drawn(1) == drawn(1)
        assert drawn(1) != drawn(2)
        for text, found in enumerate(drawn(1)):
            for one in found:
                score = 0.0
                for place, token in enumerate(one.tokens):
                    begun = torch.tensor([[0, *one.tokens[:place]]])
                    output = generator.model(
                        input_ids=ids[text : text + 1],
                        attention_mask=mask[text : text + 1],
                        decoder_input_ids=begun,
                    )
                    chances = output.logits[0, -1].log_softmax(-1)
                    assert token in chances.topk(2).indices.tolist()
                    score += float(chances[token])
                assert one.score == pytest.approx(score, abs=1e-3)


def test_top_one_is_greedy(gpt2: Path) -> None:
    greedy = loaded(gpt2, by=DiverseBeams(groups=1, beams=1, length=8)).queries(DOCUMENTS)
    assert loaded(gpt2, by=TopKSampling(samples=1, top=1, length=8)).queries(DOCUMENTS) == greedy


def test_fingerprints_follow_what_decides(t5: Path, gpt2: Path) -> None:
    first = loaded(t5).fingerprint
    assert first == loaded(t5).fingerprint
    others = [
        loaded(gpt2), loaded(t5, prompt="ask: {text}"), loaded(t5, by=TopKSampling()),
        loaded(t5, seed=2), loaded(t5, document_length=9),
    ]  # fmt: skip
    assert len({first, *(other.fingerprint for other in others)}) == 6


def test_a_document_is_cut_to_what_there_is_room_for(gpt2: Path) -> None:
    generator = loaded(gpt2)  # of 64 positions, 32 of which it writes
    ids, _ = generator._tokens([Passage("x", "", "gold " * 200)])
    assert ids.shape[1] == 32
    assert generator.queries([Passage("x", "", "gold " * 200)])


def test_a_decoder_writes_one_line(gpt2: Path) -> None:
    generator = loaded(gpt2, prompt="{text} query")
    ids, mask = generator._tokens(DOCUMENTS[:2])
    assert mask[1].tolist() == [0] * (mask.shape[1] - 3) + [1, 1, 1]  # padded on the left
    tokens = generator.tokenizer.convert_ids_to_tokens(ids[1, -3:].tolist())
    assert tokens == ["deep", "water", "query"]


@torch.inference_mode()
@pytest.mark.parametrize("by", [DiverseBeams(length=6), TopKSampling(samples=8, length=6)])
def test_a_line_break_ends_a_query_and_begins_none(
    gpt2: Path, by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = loaded(gpt2, by=by)
    plain = [one.tokens for one in generator._written(DOCUMENTS)[0]]
    breaks = sorted({token for tokens in plain for token in tokens[:2]})
    monkeypatch.setattr(generator, "breaks", breaks)
    lines = [one.tokens for text in generator._written(DOCUMENTS) for one in text]
    assert not any(tokens[0] in breaks for tokens in lines)
    assert not any(token in breaks for tokens in lines for token in tokens[:-1])


def test_an_example_of_the_prompt_is_no_query(gpt2: Path) -> None:
    before = loaded(gpt2).queries(DOCUMENTS)[0]
    repeated = loaded(gpt2, prompt=f"{before[0]}\n" + "{text}")
    repeated._query_prompt = loaded(gpt2)._query_prompt  # so the same is written
    assert repeated.queries(DOCUMENTS)[0] == [one for one in before if one not in repeated.prompt]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DiverseBeams(groups=0), "groups: 0"),
        (lambda: DiverseBeams(penalty=-1), "penalty: -1"),
        (lambda: TopKSampling(top=0), "top: 0"),
        (lambda: TopKSampling(temperature=0), "temperature: 0"),
        (lambda: KeySentences(0), "count: 0"),
    ],
)
def test_bad_settings(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_folders_that_are_no_generator(bert: Path, t5: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        loaded(bert)
    with pytest.raises(ModelError, match=r"no config\.json"):
        loaded(tmp_path)
    with pytest.raises(ConfigError, match=r"prompt: 'no place'; expected \{text\}"):
        loaded(t5, prompt="no place")


def test_key_sentences() -> None:
    text = (
        "Gold lies here. The river holds gold, and rivers of gold hold water. Gold gold. Nothing."
    )
    (found,) = KeySentences(3).queries([Passage("a", "A river", text)])
    assert found == ["A river", "Gold gold.", "Gold lies here."]
    assert KeySentences().queries([Passage("a", "", "")]) == [[]]


def test_distinct() -> None:
    assert distinct(["A  b", "a b", " ", "c", "A B "]) == ["A  b", "c"]
