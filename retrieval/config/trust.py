"""What a saved folder's config asks for, beside files to read: classes, servers, places to write.

The rule itself is ``sluice.encoders.foundation.trust``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.trust import (
    HUB,
    Allow,
    key_of,
    refuse_class,
    refuse_database,
    refuse_fetching,
    refuse_server,
    refuse_writing,
    word_for,
)
from sluice.encoders.model_files.locate import is_path, local_folder
from sluice.indexing.table import DATABASES
from sluice.retrieval.config.names import ROLES, Role, places
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.datasets.dataset import find_source
from sluice.retrieval.evaluation.measures import own_measure
from sluice.retrieval.pipelines.expression import fetched_in, written_in
from sluice.retrieval.pipelines.table import REMOTE

Config = TypeVar("Config", bound=ExperimentConfig)

MEASURES = ("measure", "measures")
KEYS = ("api_key_env", "api_key_file")  # options that say where a server's key is
# Keys of ``trainer`` that report or upload what is trained.
REPORTING = ("report_to", "push_to_hub", "hub_", "logging_dir", "project", "trackio_", "run_name")


def trusted(config: Config, allow: Allow, folder: Path, *, only_open: bool = False) -> Config:
    """Return a config that was read from a saved folder, as far as ``allow`` goes with it.

    Raises ``ConfigError`` for the first class, server or place outside ``folder`` to write to that
    is not allowed. Keys of servers are those that ``allow`` names, whatever the config says, and
    a training run reports to nobody. With ``only_open`` nothing will be encoded, so a cache of
    vectors may be named anywhere: it is neither read nor written.
    """
    if allow is None:
        return config
    values = config.model_dump()
    for each in list(_questions(values, only_open=only_open)):
        if each.about == "class":
            refuse_class(each.word, each.where, allow)
        elif each.about == "place":
            refuse_writing(each.word, each.where, folder, allow)
        elif each.about == "database":
            refuse_database(each.word, each.where, allow)
        elif each.about == "server":
            place = refuse_server(str(each.spec.get("url")), each.where, allow)
            for option in KEYS:
                each.spec.pop(option, None)
            each.spec.update(key_of(place))
        elif each.about == "report":
            _silence(each.spec, each.where)
    for name, text in config.pipelines.items():
        _check_pipeline(text, f"pipelines.{name}", folder, allow)
    return checked(values, type(config))


class Question(NamedTuple):
    """What a config asks for at a key, and the mapping ``spec`` that asks for it.

    ``word`` is what lets it have that, as ``allow`` says it; none lets a training run report. Links
    of a dataset are followed as far as they are allowed, and never refused here.
    """

    where: str
    about: Literal["class", "server", "database", "place", "link", "report"]
    word: str
    spec: dict[str, Any]


def _questions(values: Any, *, only_open: bool) -> Iterator[Question]:
    """Yield what a config asks for, outer components first; its pipelines' places left out."""
    for each in places(values):
        where, key, value = each.where, each.key, each.value
        if isinstance(value, dict):
            if str(value.get("type")) in REMOTE:
                yield Question(f"{where}.url", "server", word_for(value), value)
            for option, address in addresses_in(value).items():
                yield Question(f"{where}.{option}", "database", address, value)
            if key == "trainer":
                yield Question(where, "report", "", value)
        elif ROLES.get(key) is Role.WRITTEN and isinstance(value, str | Path) and not only_open:
            yield Question(where, "place", str(value), {})
        elif key == "allow" and isinstance(value, list):
            yield from (Question(where, "link", str(link), {}) for link in value)
        elif isinstance(value, str):
            own = key == "type" and ":" in value
            name = own_measure(value) if key in MEASURES else value if own else None
            if name:
                yield Question(where, "class", name, {})


def _check_pipeline(text: str, where: str, folder: Path, allow: Allow) -> None:
    """Check the places that the stages of a pipeline write to, and what they would fetch."""
    for path in written_in(text, where=where):
        refuse_writing(path, where, folder, allow)
    for option, source in fetched_in(text, where=where):
        refuse = refuse_unknown_model if option == "model" else refuse_remote_dataset
        refuse(source, where, allow)


def addresses_in(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of an index that say which database it lies in, without empty ones."""
    keys = DATABASES.get(str(spec.get("type")), {})
    return {key: word for key, none in keys.items() if (word := str(spec.get(key) or none))}


def databases_in(value: Any) -> set[str]:
    """Return the addresses of the databases that a component, or one inside it, lies in."""
    asked = _questions(value, only_open=True)
    return {each.word for each in asked if each.about == "database"}


def without_keys(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a component without the places of its server's key, which decide nothing it makes."""
    return {name: value for name, value in spec.items() if name not in KEYS}


def _silence(trainer: dict[str, Any], where: str) -> None:
    for key in [key for key in trainer if key.startswith(REPORTING)]:
        del trainer[key]
    for key, value in trainer.items():
        if value and ROLES.get(key) is Role.SETTING:
            raise ConfigError(
                f"{where}.{key}: a folder's training is not repeated with settings of another "
                "program; copy the config to a YAML file of your own, and run that"
            )


def named_in(config: ExperimentConfig, *, only_open: bool = False) -> set[str]:
    """Return what the user's own config allows the folders that it makes: ``allow`` for them.

    With ``only_open``, for searching, there is neither the hub, from which all is here by now, nor
    a cache of vectors.
    """
    questions = _questions(config.model_dump(), only_open=only_open)
    named = {*(each.word for each in questions if each.word), *([] if only_open else [HUB])}
    for name, text in config.pipelines.items():
        named.update(written_in(text, where=f"pipelines.{name}"))
    return named


def refuse_unknown_model(name: str, where: str, allow: Allow) -> None:
    """Raise ``ConfigError`` for a model that is not on this machine, unless it may be fetched."""
    if allow is not None and not is_path(name) and local_folder(name) is None:
        refuse_fetching(name, where, allow)


def refuse_remote_dataset(dataset: Any, where: str, allow: Allow) -> None:
    """Raise ``ConfigError`` for a dataset that a library would fetch, unless that is allowed."""
    if allow is None or HUB in allow:
        return
    parts = dict(dataset) if isinstance(dataset, Mapping) else {"name": dataset}
    for key in ("name", "corpus", "queries", "qrels"):
        value = parts.get(key)
        named = isinstance(value, str) and key == "name"
        if isinstance(value, str) and (value.startswith("hf:") or (named and _is_fetched(value))):
            refuse_fetching(value, where, allow)


def followed(dataset: Any, allow: Allow) -> Any:
    """Return a dataset in which links lead out to places that ``allow`` names, and no others."""
    if allow is None or not isinstance(dataset, Mapping) or not dataset.get("allow"):
        return dataset
    return {**dataset, "allow": [path for path in dataset["allow"] if path in allow]}


def _is_fetched(name: str) -> bool:
    from sluice.retrieval.datasets.libraries import IrDatasetsSource

    try:
        return isinstance(find_source(name), IrDatasetsSource)
    except DataError:  # said when it is read
        return False
