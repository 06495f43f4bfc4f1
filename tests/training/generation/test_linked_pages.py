"""WLP: links by name and by metadata, what is asked of what, and refusals."""

from typing import Any

import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.training_data.example_sources import file_examples
from sluice.training.generation.inverse_cloze import Passage, linked_examples, mention_links
from sluice.training.protocol import Example

PAGES = [
    Passage("os.path.join", "", "Joins the parts of a path. See also pathlib.Path.open here."),
    Passage("pathlib.Path.open", "", "Opens the file the path points to. As os.path.join does."),
    Passage("io.open", "Text files", "Opens a file and returns a stream of it."),
    Passage("codecs.open", "", "Opens an encoded file by name. It wraps Path.open and TEXT FILES."),
    Passage("short", "", "Too short. But io.open is named."),
    Passage("1.5", "", "A number that is named like one, 1.5, links nothing."),
]


def test_links_by_name() -> None:
    assert mention_links(PAGES) == {
        "os.path.join": ["pathlib.Path.open"],
        "pathlib.Path.open": ["os.path.join"],
        "codecs.open": ["pathlib.Path.open", "io.open"],  # two parts of an id; a title
        "short": ["io.open"],
    }
    assert mention_links([]) == {}


def test_a_name_of_several_documents_links_none() -> None:
    pages = [
        Passage("a.Path.open", "Red river", "One."),
        Passage("b.Path.open", "red River", "Two."),
        Passage("c", "", "Path.open of the red river, or a.Path.open."),
        Passage("d", "river", "One word is no name: river."),
    ]
    assert mention_links(pages) == {"c": ["a.Path.open"]}


def test_first_sentences_ask_for_linked_documents() -> None:
    examples = list(linked_examples(PAGES, mention_links(PAGES), seed=1, epoch=0))
    asked = {example.query.id: example for example in examples}
    assert set(asked) == {
        "os.path.join-asked", "pathlib.Path.open-asked", "io.open-asked", "codecs.open-asked",
    }  # fmt: skip
    one = asked["os.path.join-asked"]
    assert one.query.text == "Joins the parts of a path."
    assert [document.id for document in one.documents] == ["pathlib.Path.open"]
    assert one.relevant == {"os.path.join", "pathlib.Path.open"}
    assert asked["pathlib.Path.open-asked"].relevant == {
        "pathlib.Path.open", "os.path.join", "codecs.open",
    }  # fmt: skip
    assert asked["io.open-asked"].documents[0].id in ("codecs.open", "short")  # links go both ways


def drawn(seed: int, epoch: int) -> list[Example]:
    hub = [Passage("hub", "", "Everything leads to this page. And on.")]
    spokes = [Passage(f"s{n}", "", f"Spoke number {n} is about {n}.") for n in range(30)]
    links = {"hub": [f"s{n}" for n in range(30)]}
    return list(linked_examples([*hub, *spokes], links, seed, epoch))


def test_the_drawing_is_by_seed_and_epoch() -> None:
    assert drawn(1, 0) == drawn(1, 0)
    heads = {drawn(seed, epoch)[0].documents[0].id for seed in range(3) for epoch in range(3)}
    assert len(heads) > 3
    assert len(drawn(1, 0)) == len(drawn(1, 1)) == 31


def test_what_cannot_be_a_pair_is_left_out() -> None:
    pages = [
        Passage("a", "", "The same first sentence here. Then more."),
        Passage("b", "", "The same first sentence here. Other words."),  # holds a's question
        Passage("c", "", ""),
    ]
    links = {"a": ["b", "c", "gone", "a"], "gone": ["a"]}
    assert list(linked_examples(pages, links, 1, 0)) == []


def dataset(**metadata: Any) -> Dataset:
    documents = [
        Document("a", "", "The first page says this much. More.", metadata),
        Document("b", "", "The second page says that much. More."),
    ]
    return Dataset.from_memory(documents, {"q": "x"}, {"q": {"a": 1}}, split="train")


@pytest.mark.parametrize("noted", [["b", "nowhere"], "b"])
def test_links_of_the_metadata(noted: Any) -> None:
    examples = file_examples({"type": "wlp", "links": "refs"}, dataset(refs=noted), 1)
    assert [(e.query.id, e.documents[0].id) for e in examples] == [
        ("a-asked", "b"), ("b-asked", "a"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ({"documents": 0}, ConfigError, "wlp.documents is 0"),
        ({"links": 3}, ConfigError, "links: 3; expected a text"),
        ({"links": ""}, ConfigError, "wlp.links: ''"),
        ({"link": "refs"}, ConfigError, "did you mean 'links'"),
        ({}, DataError, "none of 2 documents names another by its id or title"),
        ({"links": "refs"}, DataError, "metadata key 'refs'"),
    ],
)
def test_bad_settings(spec: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        file_examples({"type": "wlp", **spec}, dataset(), 1)
