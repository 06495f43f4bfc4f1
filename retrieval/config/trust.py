"""What a saved folder's config asks for, beside files to read: classes, servers, places to write.

The rule itself is ``sluice.encoders.foundation.trust``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

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
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.datasets.dataset import find_source
from sluice.retrieval.evaluation.measures import own_measure
from sluice.retrieval.pipelines.expression import fetched_in, written_in
from sluice.retrieval.pipelines.table import REMOTE

Config = TypeVar("Config", bound=ExperimentConfig)
Place = tuple[str, str, Any]  # of a value: its path of keys, its own key, the value

MEASURES = ("measure", "measures")
KEYS = ("api_key_env", "api_key_file")  # options that say where a server's key is
# Keys of ``trainer`` that report or upload what is trained, or name files of settings.
REPORTING = ("report_to", "push_to_hub", "hub_", "logging_dir", "project", "trackio_", "run_name")
SETTINGS_FILES = ("deepspeed", "fsdp_config", "accelerator_config")


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
    for where, key, value in list(_places(values)):
        if key in MEASURES:
            for text in value if isinstance(value, list) else [value]:
                if name := own_measure(text):
                    refuse_class(name, where, allow)
        elif key == "cache" and not only_open and isinstance(value, str | Path):
            refuse_writing(value, where, folder, allow)
        elif isinstance(value, dict):
            _check_component(value, where, allow)
            if key == "trainer":
                _silence(value, where)
    for name, text in config.pipelines.items():
        _check_pipeline(text, f"pipelines.{name}", folder, allow)
    return checked(values, type(config))


def _check_pipeline(text: str, where: str, folder: Path, allow: Allow) -> None:
    """Check the places that the stages of a pipeline write to, and what they would fetch."""
    for path in written_in(text, where=where):
        refuse_writing(path, where, folder, allow)
    for option, source in fetched_in(text, where=where):
        refuse = refuse_unknown_model if option == "model" else refuse_remote_dataset
        refuse(source, where, allow)


def _places(value: Any, where: str = "", key: str = "") -> Iterator[Place]:
    """Yield every value of a config with its place, outer ones first."""
    yield where, key, value
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _places(inner, f"{where}.{name}".lstrip("."), str(name))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _places(inner, f"{where}[{place}]")


def _check_component(spec: dict[str, Any], where: str, allow: Allow) -> None:
    """Check ``{type: ..., ...}``, and put the reader's key in the place of the folder's."""
    kind = spec.get("type")
    if isinstance(kind, str) and ":" in kind:
        refuse_class(kind, f"{where}.type", allow)
    elif isinstance(kind, str) and kind in REMOTE:
        for option in KEYS:
            spec.pop(option, None)
        spec.update(key_of(refuse_server(str(spec.get("url")), f"{where}.url", allow)))

    for key, address in addresses_in(spec).items():
        refuse_database(address, f"{where}.{key}", allow)


def addresses_in(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of an index that say which database it lies in, without empty ones."""
    keys = DATABASES.get(str(spec.get("type")), {})
    return {key: word for key, none in keys.items() if (word := str(spec.get(key) or none))}


def databases_in(value: Any) -> set[str]:
    """Return the addresses of the databases that a component, or one inside it, lies in."""
    found = (addresses_in(spec) for _, _, spec in _places(value) if isinstance(spec, Mapping))
    return {address for each in found for address in each.values()}


def without_keys(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a component without the places of its server's key, which decide nothing it makes."""
    return {name: value for name, value in spec.items() if name not in KEYS}


def _silence(trainer: dict[str, Any], where: str) -> None:
    for key in [key for key in trainer if key.startswith(REPORTING)]:
        del trainer[key]
    for key in SETTINGS_FILES:
        if trainer.get(key):
            raise ConfigError(
                f"{where}.{key}: a folder's training is not repeated with settings of another "
                "program; copy the config to a YAML file of your own, and run that"
            )


def named_in(config: ExperimentConfig, *, only_open: bool = False) -> set[str]:
    """Return what the user's own config allows the folders that it makes: ``allow`` for them.

    With ``only_open``, for searching, there is neither the hub, from which all is here by now, nor
    a cache of vectors.
    """
    named = set() if only_open else {HUB}
    for _, key, value in _places(config.model_dump()):
        if key == "type" and isinstance(value, str) and ":" in value:
            named.add(value)
        elif key in MEASURES:
            texts = value if isinstance(value, list) else [value]
            named.update(name for text in texts if (name := own_measure(text)))
        elif key == "cache" and not only_open and isinstance(value, str | Path):
            named.add(str(value))
        elif key == "allow" and isinstance(value, list):  # where links of a dataset lead
            named.update(map(str, value))
        elif isinstance(value, dict) and value.get("type") in REMOTE:
            named.add(word_for(value))
        elif isinstance(value, dict):
            named.update(addresses_in(value).values())
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
    from sluice.retrieval.datasets.ir_datasets_library import IrDatasetsSource

    try:
        return isinstance(find_source(name), IrDatasetsSource)
    except DataError:  # said when it is read
        return False
