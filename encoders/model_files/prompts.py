"""Prompts of both sides: a folder's, a family's; and texts that bring one already."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sluice.encoders.encoder import Side
from sluice.encoders.model_files.layout import Layout, read_object, transformer_folder

log = logging.getLogger("sluice")
LOOKED_AT = 100  # texts of a call, in which prompts are looked for


def look_for_prompts(
    texts: Sequence[str], side: Side, prompts: Mapping[str, str], met: set[str]
) -> None:
    """Log once that texts bring a prompt of their own, or that of the other side.

    ``met`` are the sides whose prompt was found before; it is added to.
    """
    for of, prompt in prompts.items():
        mark = prompt.strip()
        if not mark or of in met:
            continue
        if any(text.startswith(mark) for text in texts[:LOOKED_AT]):
            met.add(of)
            ours = of == side or prompt == prompts[side]
            why = "which is put before it once more" if ours else f"the prompt of a {of}"
            remedy = (
                f"remove it from the texts, or set {side}_prompt: ''"
                if ours
                else "remove it, or encode the texts as what they are"
            )
            log.warning("a %s begins with %r, %s; %s", side, mark, why, remedy)


# The names of prompts in folders, those of sentence-transformers first.
KEYS: Mapping[Side, tuple[str, ...]] = {
    "query": (
        "query", "search_query", "web_search_query", "s2p_query", "retrieval.query",
        "Retrieval-query",
    ),
    "document": (
        "document", "passage", "corpus", "search_document", "retrieval.passage",
        "Retrieval-document",
    ),
}  # fmt: skip
SEARCH = "Represent this sentence for searching relevant passages: "
WEB = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
)


class Family(NamedTuple):
    """Models trained with prompts, by their ids on the hub."""

    name: str
    models: tuple[str, ...]
    query: str
    document: str = ""


FAMILIES = (
    Family(
        "E5",
        (
            "intfloat/e5-small", "intfloat/e5-base", "intfloat/e5-large",
            "intfloat/e5-small-v2", "intfloat/e5-base-v2", "intfloat/e5-large-v2",
            "intfloat/e5-small-unsupervised", "intfloat/e5-base-unsupervised",
            "intfloat/e5-large-unsupervised", "intfloat/multilingual-e5-small",
            "intfloat/multilingual-e5-base", "intfloat/multilingual-e5-large",
        ),
        "query: ",
        "passage: ",
    ),
    Family(
        "E5 with instructions",
        ("intfloat/multilingual-e5-large-instruct", "intfloat/e5-mistral-7b-instruct"),
        WEB,
    ),
    Family(
        "BGE, English",
        (
            "BAAI/bge-small-en", "BAAI/bge-base-en", "BAAI/bge-large-en",
            "BAAI/bge-small-en-v1.5", "BAAI/bge-base-en-v1.5", "BAAI/bge-large-en-v1.5",
        ),
        SEARCH,
    ),
    Family(
        "BGE, Chinese",
        (
            "BAAI/bge-small-zh", "BAAI/bge-base-zh", "BAAI/bge-large-zh",
            "BAAI/bge-small-zh-v1.5", "BAAI/bge-base-zh-v1.5", "BAAI/bge-large-zh-v1.5",
        ),
        "为这个句子生成表示以用于检索相关文章：",
    ),
    Family(
        "mxbai",
        ("mixedbread-ai/mxbai-embed-large-v1", "mixedbread-ai/mxbai-embed-2d-large-v1"),
        SEARCH,
    ),
    Family("UAE", ("WhereIsAI/UAE-Large-V1",), SEARCH),
    Family(
        "Arctic",
        (
            "Snowflake/snowflake-arctic-embed-xs", "Snowflake/snowflake-arctic-embed-s",
            "Snowflake/snowflake-arctic-embed-m", "Snowflake/snowflake-arctic-embed-m-v1.5",
            "Snowflake/snowflake-arctic-embed-l",
        ),
        SEARCH,
    ),
    Family("Arctic 2", ("Snowflake/snowflake-arctic-embed-l-v2.0",), "query: "),
    Family(
        "Nomic",
        (
            "nomic-ai/nomic-embed-text-v1", "nomic-ai/nomic-embed-text-v1.5",
            "nomic-ai/modernbert-embed-base",
        ),
        "search_query: ",
        "search_document: ",
    ),
)  # fmt: skip


def side_prompts(layout: Layout, folder: Path) -> dict[Side, str]:
    """Return the prompt of each side: the folder's, else that of its family, else none.

    What a family supplies is logged once. A folder that Sluice saved has its own, if empty ones.
    """
    default = layout.prompts.get(layout.default_prompt or "", "")
    found: dict[Side, str] = {}
    for side, keys in KEYS.items():
        named = [key for key in keys if layout.prompts.get(key)]
        known = any(key in layout.prompts for key in keys)
        found[side] = layout.prompts[named[0]] if named else "" if known else default
    if layout.sidecar or any(found.values()):
        return found
    family = family_of(folder)
    if family is None:
        return found
    _say(folder, family)
    return {"query": family.query, "document": family.document}


def family_of(folder: Path) -> Family | None:
    """Return the family of a published model's folder, by its id on the hub; None: not known.

    The id is that of the hub's cache, the folder's own name, or the one in config.json.
    """
    return next((family for family in FAMILIES if is_among(folder, family.models)), None)


def is_among(folder: Path, ids: Sequence[str]) -> bool:
    """Return whether a model's folder is that of one of the hub's ids, see ``family_of``.

    A name with an owner, ``owner/name``, is another's model if the owner is.
    """
    cached = [part for part in folder.parts if part.startswith("models--")]
    noted = read_object(transformer_folder(folder) / "config.json").get("_name_or_path")
    names = [*(part.removeprefix("models--").replace("--", "/") for part in cached), folder.name]
    names += [noted] if isinstance(noted, str) else []
    whole = {id_.lower() for id_ in ids}
    bare = {id_.partition("/")[2] for id_ in whole}
    return any(
        name.lower() in whole if _is_id(name) else name.rpartition("/")[2].lower() in bare
        for name in names
    )


def _is_id(name: str) -> bool:
    return name.count("/") == 1 and name[0] not in "./~"


@functools.cache
def _say(folder: Path, family: Family) -> None:
    documents = f", {family.document!r} before documents" if family.document else ""
    log.warning(
        "%s: names no prompts; %s models are used with %r before queries%s, which are put there: "
        "query_prompt and document_prompt, if empty, leave them out",
        folder, family.name, family.query, documents,
    )  # fmt: skip
