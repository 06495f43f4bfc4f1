"""DSI: a language model writes the identifiers of documents for a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.tokens import TokenSequences, WeightedNgrams
from sluice.encoders.generative.constrained_decoding import Continuations, Keys
from sluice.encoders.generative.identifiers import (
    FREE,
    KINDS,
    Code,
    Kind,
    Places,
    check_apart,
    clusters,
    codes_hash,
    free_tokens,
    next_number,
    paths,
    read_codes,
    write_codes,
)
from sluice.encoders.generative.writer import (
    BATCH,
    SHOWN_FROM,
    IdentifierBeams,
    IdentifierIndex,
    Writer,
)
from sluice.encoders.model_files.layout import read_sidecar
from sluice.encoders.model_files.options import Computing, takes_options
from sluice.encoders.transformer.tokens import check_texts

Named: TypeAlias = Mapping[str, str]  # a document: id, title, text

BRANCHES: Final = 10
PLACING: Final = 4  # beams that look for a new document's cluster
PROMPTS: Final = {True: "{query}", False: "Question: {query}\nDocument:"}  # has it an encoder?


class DsiEncoder(Writer):
    """Search by identifiers of documents that a language model has learnt by heart.

    A document is its identifier, of ``ids``: one token of its own (``atomic``), the path of its
    vector through hierarchical k-means of ``branches`` clusters (``semantic``), its id as a text
    (``string``), or its title, where it has one (``title``). For a query the model writes
    identifiers that the index has, by beam search: at most ``beams`` documents, scored by
    log-probability. Documents are read as mappings of id, title and text.
    (DSI; Tay et al. 2022, Transformer memory as a differentiable search index. Titles: De Cao et
    al. 2021, GENRE; Chen et al. 2022, CorpusBrain.)

    ``assign_ids`` gives documents their identifiers before training, by the loss ``identifiers``.
    One that was not among them is found by its own id or title, or in the cluster that the model
    writes for its text; ``atomic`` identifiers have no new ones. ``length`` is the most tokens of
    an identifier. ``ModelError`` for a model that does not write from left to right.
    """

    kind = "dsi"
    similarity: Literal["identifiers"] = "identifiers"
    reads_ids = True
    ids_by: Mapping[str, Any] | None = None
    prompts_by_default = PROMPTS
    own_settings = ("ids", "beams", "branches", "length", "prompt", "query_length")

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        ids: Kind = "string",
        beams: int = 20,
        branches: int | None = None,
        length: int = 32,
        prompt: str | None = None,
        query_length: int | None = None,
        ids_by: Mapping[str, Any] | None = None,
        codes: Mapping[str, Code] | None = None,
        **computing: Unpack[Computing],
    ) -> None:
        if ids not in KINDS:
            raise ConfigError(f"ids: {ids!r}, expected one of {', '.join(KINDS)}")
        for name, value in (("branches", branches), ("ids_by", ids_by)):
            if value is not None and ids != "semantic":
                raise ConfigError(
                    f"{name}: is for ids: semantic, and these are {ids}; leave it out"
                )
        super().__init__(
            model, tokenizer, length=length, prompt=prompt, query_length=query_length, **computing
        )
        self.ids: Kind = ids
        self.beams = whole_number(beams, "beams", 1)
        self.branches = branches
        if ids == "semantic":
            self.branches = whole_number(BRANCHES if branches is None else branches, "branches", 2)
        self.ids_by = ids_by
        self.codes: dict[str, Code] = dict(codes or {})
        if self.codes and ids_by is not None:
            raise ConfigError(
                "ids_by: this model has learnt its identifiers already; leave it out, or train "
                "from a model that has none"
            )

    @classmethod
    @takes_options(Computing)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        ids: Annotated[
            Kind | None,
            "What identifiers are: atomic (a token each), semantic (paths through clusters), "
            "string (the document's id; the usual) or title.",
        ] = None,
        beams: int | None = None,
        branches: Annotated[
            int | None, "Clusters in a cluster of semantic identifiers, 10."
        ] = None,
        length: Annotated[int | None, "The most tokens of an identifier, 32."] = None,
        prompt: Annotated[
            str | None, "What the model reads, with {query} where the query goes."
        ] = None,
        query_length: int | None = None,
        ids_by: Annotated[
            Mapping[str, Any] | None,
            "The encoder whose vectors are clustered, such as {type: dense, model: ...}; for "
            "training alone.",
        ] = None,
        **options: Unpack[Computing],
    ) -> DsiEncoder:
        """Load a saved encoder, or any causal or encoder-decoder model, by folder or hub id.

        Arguments left at None come from the folder, else from the class. ``ids``: what identifiers
        are; ``ids_by`` is the encoder, as YAML describes it, by whose vectors a training run makes
        semantic ones, in clusters of ``branches``, 10. ``beams``: the most documents of a query,
        20. ``query_length``: the most tokens of a query with its prompt.
        """
        given = {
            "ids": ids, "beams": beams, "branches": branches, "length": length, "prompt": prompt,
            "query_length": query_length,
        }  # fmt: skip
        network, tokenizer, settings, folder = cls.opened(model, given)
        codes = read_codes(folder, network.get_input_embeddings().num_embeddings)
        noted = read_sidecar(folder)
        for name in ("ids", "branches") if codes else ():
            if given[name] not in (None, noted.get(name)):
                raise ConfigError(
                    f"{name}: {given[name]!r}, and {folder} has learnt identifiers with "
                    f"{name}: {noted.get(name)!r}; leave it out"
                )
        try:
            return cls(network, tokenizer, ids_by=ids_by, codes=codes, **settings, **options)
        except ModelError as error:
            raise ModelError(f"{folder}: {error}") from None

    @property
    def fingerprint(self) -> str:
        """A hash of weights, tokenizer, settings and identifiers."""
        settings = dict(self.settings())
        return fingerprint_of(self.weights_hash(), self.kind, settings, codes_hash(self.codes))

    def _save_own(self, folder: Path) -> None:
        write_codes(folder, self.codes)

    # Identifiers.

    def assign_ids(
        self,
        documents: Sequence[Named],
        vectors: NDArray[np.float32] | None = None,
        seed: int = 13,
    ) -> None:
        """Give every document an identifier to be learnt; those that have one keep it.

        ``vectors`` ``[n, dim]`` make the first semantic ones. ``DataError`` for two with the same,
        and for one that is too long.
        """
        new = [each for each in documents if each["id"] not in self.codes]
        codes = dict(self.codes)
        if self.ids == "atomic":
            first = self._new_tokens(len(new), seed)
            codes |= {each["id"]: (first + row,) for row, each in enumerate(new)}
        elif self.ids == "semantic" and not codes:
            codes = self._clustered(new, vectors, seed)
        elif self.ids == "semantic":
            taken = {code[:-1] for code in codes.values()}
            for each, path in zip(new, self._placed(new), strict=True):
                code = next_number(path, taken, self._digit, self._base)
                taken.add(code)
                codes[each["id"]] = (*code, self._end)
        else:
            codes |= {each["id"]: self._spelled(each) for each in new}
        self._check_codes(codes)
        self.codes = codes

    def _clustered(
        self, documents: Sequence[Named], vectors: NDArray[np.float32] | None, seed: int
    ) -> dict[str, Code]:
        if vectors is None:
            raise ConfigError(
                "ids_by: missing: semantic ids are made of documents' vectors; name an encoder "
                "(ids_by: {type: dense, model: ...})"
            )
        digits = paths(vectors, self._base, seed)
        self._new_tokens(self._base, seed)
        return {
            each["id"]: (*map(self._digit, path), self._end)
            for each, path in zip(documents, digits, strict=True)
        }

    def _placed(self, documents: Sequence[Named]) -> list[Code]:
        """Return the cluster of learnt documents that the model writes for each text."""
        places = Places(clusters(self.codes.values()))
        if not places.prefix().count:
            return [() for _ in documents]
        texts = [f"{each['title']} {each['text']}".strip() for each in documents]
        found: list[Code] = []
        for start in range(0, len(texts), BATCH):
            keys = self._keys(texts[start : start + BATCH], places, PLACING)
            found += [max(each, key=lambda path: (each[path], path)) for each in keys]
        return found

    def _spelled(self, document: Named) -> Code:
        """Return the tokens of a document's id or title, and the end."""
        text = document["id"]
        if self.ids == "title":
            text = document["title"].strip() or text
        return (*self._plain(text), self._end)

    @property
    def _base(self) -> int:
        return int(self.branches or BRANCHES)

    @property
    def _size(self) -> int:
        """The number of tokens that have a vector."""
        return int(self.model.get_input_embeddings().num_embeddings)

    def _digit(self, number: int) -> int:
        """Return the token of a digit: the last ones are theirs."""
        return self._size - self._base + number

    @property
    def _end(self) -> int:
        for end in (self.model.config.eos_token_id, self.tokenizer.eos_token_id):
            if isinstance(end, int):
                return end
        raise ModelError(
            f"{type(self.model).__name__}: neither model nor tokenizer has an end-of-text token, "
            f"which ids: {self.ids} end with; take ids: atomic"
        )

    def _new_tokens(self, count: int, seed: int) -> int:
        """Add tokens to the model, drawn like its others; return the first."""
        first = self._size
        self.model.resize_token_embeddings(first + count, mean_resizing=False)
        chance = torch.Generator().manual_seed(seed)
        ends = (self.model.get_input_embeddings(), self.model.get_output_embeddings())
        with torch.no_grad():
            for weight in {id(end.weight): end.weight for end in ends}.values():
                drawn = torch.randn(count, weight.shape[1], generator=chance)
                weight[first:] = (drawn * weight[:first].float().std().cpu()).to(weight)
        return first

    def _check_codes(self, codes: Mapping[str, Code]) -> None:
        check_apart(codes, self.ids)
        name = max(codes, key=lambda each: len(codes[each]), default="")
        if codes and len(codes[name]) > self.length:
            raise DataError(
                f"document {name!r:.80}: its identifier has {len(codes[name])} tokens, and length "
                f"is {self.length}; raise length, or take ids: semantic"
            )

    # What a retriever asks.

    @property
    def identifiers(self) -> DsiEncoder:
        """The encoder itself, which learns them."""
        return self

    def known_ids(self, documents: Sequence[Named]) -> int:
        """Return how many of the documents the model has learnt."""
        return sum(each["id"] in self.codes for each in documents)

    @property
    def open_to_all(self) -> bool:
        """Whether documents can be found that nobody trained it on: it has learnt none itself."""
        return not self.codes and self.ids in ("string", "title")

    def encode_documents(self, texts: Sequence[Any]) -> TokenSequences:
        """Return the identifiers of documents, given as mappings of id, title and text.

        ``DataError`` for a new one where identifiers are atomic, and where two have the same.
        """
        for each in texts:
            if not isinstance(each, Mapping) or not {"id", "title", "text"} <= each.keys():
                raise DataError(
                    f"documents: {str(each)!r:.60}; a dsi encoder reads mappings of id, title and "
                    "text, as a retriever gives them"
                )
        new = {each["id"]: each for each in texts if each["id"] not in self.codes}
        found = self._unlearnt([*new.values()])
        names = [each["id"] for each in texts]
        codes = {name: self.codes.get(name) or found[name] for name in names}
        self._check_codes(codes)
        return TokenSequences.of([codes[name] for name in names])

    def _unlearnt(self, documents: Sequence[Named]) -> dict[str, Code]:
        """Return identifiers of documents that the model has not learnt."""
        if self.ids in ("string", "title"):
            return {each["id"]: self._spelled(each) for each in documents}
        if documents and (self.ids == "atomic" or not self.codes):
            raise DataError(
                f"document {documents[0]['id']!r}: the model has learnt no identifier of it"
                + (", and atomic ones are learnt; " if self.codes else "; ")
                + "train it on this corpus (loss: identifiers)"
            )
        return {
            each["id"]: (*path, *free_tokens(each["id"]))
            for each, path in zip(documents, self._placed(documents), strict=True)
        }

    def decode_queries(self, texts: Sequence[str], index: Any) -> WeightedNgrams:
        """Return the identifiers that the model writes, each with its negative log-probability."""
        check_texts(texts)
        queries: list[list[tuple[Code, float]]] = []
        with progress("decode", len(texts), "queries", show=len(texts) >= SHOWN_FROM) as advance:
            for start in range(0, len(texts), BATCH):
                block = texts[start : start + BATCH]
                for keys in self._keys(block, index, self.beams):
                    queries.append([(code, max(0.0, -score)) for code, score in keys.items()])
                advance(len(block))
        return WeightedNgrams.of(queries)

    def _keys(self, texts: Sequence[str], index: IdentifierIndex, beams: int) -> list[Keys]:
        """Return the identifiers that the model writes for each text."""
        features = self.tokenize(texts, "query")
        ids, mask = (features[name].to(self.device) for name in ("input_ids", "attention_mask"))
        with self.arithmetic():
            rows = Continuations(self.model, ids, mask, beams)
            return IdentifierBeams(beams).search(rows, index, len(texts))

    def terms(self, columns: Sequence[Any]) -> list[str]:
        """Return identifiers as texts: digits as 3-1-4, a new document as its cluster and *."""
        return [self._shown(np.atleast_1d(column).tolist()) for column in columns]

    def _shown(self, code: Sequence[int]) -> str:
        if self.ids == "atomic":
            return f"[{code[0]}]"
        if self.ids == "semantic":
            first = self._size - self._base
            digits = [str(token - first) for token in code if first <= token < FREE]
            return "-".join([*digits, *(["*"] if code[-1] >= FREE else [])])
        return str(self.tokenizer.decode(list(code), skip_special_tokens=True)).strip()
