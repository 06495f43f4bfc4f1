"""Dense encoders with experts: of chosen layers, one copy for each dataset, or two and a gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, Unpack

import torch
from torch import Tensor, nn

from sluice.encoders.dense.encoder import DenseEncoder
from sluice.encoders.dense.experts.mixture import (
    MODULE,
    Mixture,
    expert_parameters,
    numbers_in,
    read_mixture,
    with_expert,
    write_mixture,
)
from sluice.encoders.dense.experts.names import MEAN
from sluice.encoders.dense.pooling import Pooling
from sluice.encoders.encoder import Dense, Side
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.model_files.adapters import recomputes
from sluice.encoders.model_files.layout import read_layout
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import TextOptions, takes_options
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.transformer.model import Features


@dataclass(frozen=True, slots=True)
class ExpertsAlone:
    """Only experts, and gates that learn, are trained: for encoders of type experts.

    (Yu 2024, arXiv 2412.17364.)
    """

    def install(self, model: Any) -> list[nn.Parameter]:
        """Return the parameters to train; nothing is added."""
        chosen = list(expert_parameters(model).values())
        if not chosen:
            raise ConfigError(
                f"experts: {type(model).__name__} has none; give encoder: {{type: experts, ...}}"
            )
        return chosen


MARK = "expert"  # of tokenised texts: the number of each one's expert, int64 [n, 1]
_Made = TypeVar("_Made", bound=DenseEncoder)


class ExpertEncoder(DenseEncoder):
    """A dense encoder whose feed-forward layers, all or some, exist several times.

    Named ``experts`` are routed by force: each belongs to a dataset, and a text is computed by the
    expert of the dataset it is from (Hallee et al., 2024, arXiv 2401.15713). A number of experts
    are chosen among for each token by a gate in every block (Yu 2024, arXiv 2412.17364). All start
    as copies, so that vectors are the dense encoder's, bit for bit, until they are trained.

    One dataset's expert is a plain dense encoder: ``alone``.
    """

    kind = "experts"
    own_module = MODULE
    mixture: Mixture
    _views: dict[tuple[int, bool], _OfDataset]  # by number, and whether activations are recomputed

    @classmethod
    @takes_options(TextOptions)
    def from_pretrained(  # type: ignore[override]  # fewer settings: none of a graph, or of layers
        cls,
        model: str | Path,
        *,
        experts: Annotated[
            list[str] | int | None,
            "Datasets that get an expert each, or a number, among which a gate chooses.",
        ] = None,
        expert: Annotated[
            str | None, "The one to search with, by its dataset's name, or mean."
        ] = None,
        expert_layers: Annotated[
            list[int] | None, "The layers that have experts, from 1; left out, all."
        ] = None,
        gate_learns: Annotated[
            bool | None, "Whether the gate is trained (true), or stays as it was drawn."
        ] = None,
        pooling: Pooling | None = None,
        projection: int | dict[str, Any] | None = None,
        normalize: bool | None = None,
        instruction: Annotated[
            str | None, "What a query is for; it fills {task} of the prompts."
        ] = None,
        seed: int = 13,
        **options: Unpack[TextOptions],
    ) -> DenseEncoder:
        """Load a folder with experts, or start them from a dense encoder: train it.

        ``experts`` are the names of datasets, or a number of experts among which a gate chooses
        for each token; ``expert_layers`` the layers that have them, from 1 (all). ``gate_learns``:
        whether the gate is trained too (true) or stays as ``seed`` drew it, as published.

        ``expert`` is the one of a saved folder to search with, by its dataset's name; ``mean`` is
        the mean of all, for other datasets. That is a ``DenseEncoder`` like any other. The other
        arguments are a dense encoder's.
        """
        folder = model_folder(str(model))
        layout = read_layout(folder)
        saved = MODULE in layout.modules
        new = {"experts": experts, "expert_layers": expert_layers, "gate_learns": gate_learns}
        _check_given(new, expert, folder, saved=saved)
        encoder = super().from_pretrained(
            model, pooling=pooling, projection=projection, normalize=normalize,
            instruction=instruction, weights="float32", backend="torch", seed=seed, **options,
        )  # fmt: skip
        assert isinstance(encoder, cls)
        encoder._views = {}
        if saved:
            encoder.mixture = read_mixture(folder, layout.sidecar, encoder.model)
        else:
            encoder.mixture = Mixture.from_settings(
                experts, expert_layers, gate_learns, encoder.layer_count
            )
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                encoder.mixture.place(encoder.model)
        if expert is None:
            return encoder
        if not encoder.mixture.names:
            raise ConfigError(
                f"expert: {expert!r}; {folder} has {encoder.mixture}: leave expert out"
            )
        return encoder.alone(expert)

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides weights and tokenizer."""
        return {**super().settings(), "experts": asdict(self.mixture)}

    @property
    def encode_parts(self) -> None:
        """None: its passes depend on the dataset or the gate."""
        return

    def alone(self, name: str) -> DenseEncoder:
        """Return the plain dense encoder that a dataset's expert makes, or the ``mean`` of all.

        It shares its parameters with this one, but for means.
        """
        if name == MEAN:
            return self._with(DenseEncoder, None)
        if name not in self.mixture.names:
            known = [*self.mixture.names, MEAN]
            raise ConfigError(
                f"expert: {name!r}; known: {', '.join(known)}{suggest(str(name), known)}"
            )
        return self._with(DenseEncoder, self.mixture.names.index(name))

    def of_source(self, name: str) -> DenseEncoder:
        """Return the encoder of the texts of a dataset, which marks them for ``embed``.

        With a gate that is this one, whatever the dataset.
        """
        return self._routed(self.mixture.number(name)) if self.mixture.names else self

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return the vectors ``[n, dim]`` of texts, each by the expert that it is marked for."""
        if not self.mixture.names:
            return super().embed(features, side)
        return self._by_expert(features, lambda encoder, part: encoder.embed(part, side))

    def embed_layers(self, features: Features, side: Side, layers: Sequence[int]) -> Tensor:
        """Return the vectors of several layers side by side, ``[n, len(layers) * dim]``."""
        if not self.mixture.names:
            return super().embed_layers(features, side, layers)
        return self._by_expert(
            features, lambda encoder, part: encoder.embed_layers(part, side, layers)
        )

    def expert_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return the parameters of experts and gates, by their names in the network."""
        return expert_parameters(self.model)

    def _by_expert(
        self, features: Features, embed: Callable[[DenseEncoder, Features], Tensor]
    ) -> Tensor:
        if MARK not in features:
            raise ConfigError(
                f"there is an expert for each dataset, {', '.join(self.mixture.names)}, and these "
                "texts are of none; tokenise them by of_source(NAME)"
            )
        numbers = features[MARK][:, 0]
        plain = {name: values for name, values in features.items() if name != MARK}
        present = numbers_in(numbers)
        if len(present) == 1:
            return embed(self._routed(present[0]), plain)
        order, parts = [], []
        for number in present:
            rows = (numbers == number).nonzero().squeeze(-1)
            order.append(rows)
            parts.append(
                embed(self._routed(number), {name: values[rows] for name, values in plain.items()})
            )
        return torch.cat(parts)[torch.cat(order).argsort()]

    def _routed(self, number: int) -> _OfDataset:
        """Return the encoder of one expert's dataset, in this one's mode."""
        views = self._views
        key = number, recomputes(self.model)
        if key not in views:
            views[key] = self._with(_OfDataset, number)
            views[key].number = number
        view = views[key]
        if view.model.training != self.model.training:
            view.model.train(self.model.training)
        return view

    def _with(self, kind: type[_Made], number: int | None) -> _Made:
        made = kind(
            with_expert(self.model, number), self.tokenizer,
            pooling=self.pooling, projection=self.projection, normalize=self.normalize,
            pool_prompt=self.pool_prompt, shortened=self.shortened,
            matryoshka_dims=self.matryoshka_dims, top_layers=self.top_layers,
            append_eos=self.append_eos, query_prompt=self.prompts["query"],
            document_prompt=self.prompts["document"], query_length=self.lengths["query"],
            document_length=self.lengths["document"], device=str(self.device),
            batch_tokens=self.batch_tokens,
        )  # fmt: skip
        made.dtype = self.dtype
        return made

    def _encode(self, texts: Sequence[str], side: Side) -> Dense:
        if self.mixture.names:
            known = ", ".join([*self.mixture.names, MEAN])
            raise ConfigError(
                "encoder.expert: missing: the model has an expert for each dataset it was trained "
                f"on; name the one to search with: {known} (ExpertEncoder.from_pretrained(FOLDER, "
                "expert=NAME).save_pretrained(OTHER) writes it as a dense encoder)"
            )
        return super()._encode(texts, side)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which makes the encoders of its experts by itself."""
        return {**super().__getstate__(), "_views": {}}

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder in sentence-transformers' layout, replacing ``path`` in one step.

        Its ordinary files hold the mean of the experts. That package refuses it: it has no module
        for them.
        """
        with replaced_folder(Path(path)) as folder:
            self._with(DenseEncoder, None).save_pretrained(folder)
            write_mixture(folder, self.model, self.mixture)
            write_probes(folder, self)


class _OfDataset(DenseEncoder):
    """One expert as a dense encoder, which marks what it tokenises with the expert's number."""

    number: int

    def tokenize(self, texts: Sequence[str], side: str) -> Features:
        """Return the padded features of a batch, marked."""
        return {**super().tokenize(texts, side), MARK: torch.full((len(texts), 1), self.number)}

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return the vectors ``[n, dim]`` of tokenised texts, whatever they are marked with."""
        return super().embed({n: v for n, v in features.items() if n != MARK}, side)


def _check_given(new: Mapping[str, Any], expert: str | None, folder: Path, *, saved: bool) -> None:
    """Check that settings of new experts stand with a start, and ``expert`` with saved ones."""
    if not saved:
        if expert is not None:
            raise ConfigError(
                f"expert: {expert!r}; {folder} has no experts; leave it out (type: dense)"
            )
        if new["experts"] is None:
            raise ConfigError(
                f"experts: missing: {folder} has none; name the datasets that get one each, or "
                "give a number, among which a gate chooses"
            )
        return
    for name, value in new.items():
        if value is not None:
            raise ConfigError(
                f"{name}: {value!r}; {folder} has experts of its own; leave it out, or start from "
                "a dense encoder"
            )
