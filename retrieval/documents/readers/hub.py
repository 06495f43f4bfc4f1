"""Reads a table on the Hugging Face hub, or in a folder, through the ``datasets`` library."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sluice.encoders.foundation.errors import DataError, listed
from sluice.retrieval.documents.readers.documents import Documents
from sluice.retrieval.documents.readers.fields import Asked
from sluice.retrieval.documents.readers.frames import documents_in_dataset

log = logging.getLogger("sluice")
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
FILES = ("README.md", "*.parquet", "*.jsonl", "*.json", "*.csv")  # of a dataset in a folder
PATIENCE = 5.0  # seconds to wait for the hub before using its cache
SPLITS = ("corpus", "train")  # the split that is read, where there are several


def repository_of(name: str) -> str:
    """Return the repository that ``hf:name`` means: owner/name, or the path of a local dataset.

    Anything else is a ``DataError`` before a disk or the network is touched: the library looks for
    files below whatever folder it is given.
    """
    folder = Path(name)
    if ".." not in name and NAME.fullmatch(name):
        return name
    if (
        ".." not in name
        and folder.is_absolute()
        and folder.name
        and any(any(folder.glob(each)) for each in FILES)
    ):
        return name
    raise DataError(
        f"hf:{name}: expected 'hf:owner/name', or the absolute path of a folder with a dataset's "
        f"files ({', '.join(FILES)})"
    )


@functools.cache
def documents_on_hub(name: str, asked: Asked) -> Documents:
    """Return the documents of ``owner/name`` or ``owner/name#configuration``.

    Of several splits ``corpus`` is read, or else ``train``.
    """
    import datasets

    repository, _, config = name.partition("#")
    repository = repository_of(repository)
    with reachable(repository, "a table of documents"):
        splits = datasets.load_dataset(repository, config or None, **no_code())
    split = next((each for each in SPLITS if each in splits), None)
    if split is None and len(splits) == 1:
        split = next(iter(splits))
    if split is None:
        raise DataError(
            f"hf:{name}: splits are {listed(splits)}; expected one, or one called corpus or "
            "train; load the one you mean in Python and pass it"
        )
    return documents_in_dataset(splits[split], asked, name=f"hf:{name} ({split})")


def no_code() -> dict[str, bool]:
    """Return the option by which ``datasets`` runs no code of a repository; since 4 it has none."""
    import datasets

    return {"trust_remote_code": False} if int(datasets.__version__.split(".")[0]) < 4 else {}


@contextmanager
def reachable(repository: str, expected: str) -> Iterator[None]:
    """Report any failure inside as one error; without the hub, let the library use its cache.

    Left alone, the library retries an unreachable hub for most of a minute.
    """
    with ExitStack() as stack:
        if not Path(repository).is_dir() and not _hub_answers(repository):
            stack.enter_context(_offline())
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # the library's own tree, the hub's, and those of many parsers
            raise DataError(
                f"hf:{repository}: cannot be read ({type(error).__name__}: "
                f"{str(error).splitlines()[0] if str(error) else 'no reason given'}); expected "
                f"{expected} on the hub, or in its cache when the network is down"
            ) from error


@contextmanager
def _offline() -> Iterator[None]:
    """Switch both libraries to their caches; they read the environment only when imported."""
    from datasets import config
    from huggingface_hub import constants

    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _hub_answers(repository: str) -> bool:
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        HfApi().dataset_info(repository, timeout=PATIENCE)
    except OfflineModeIsEnabled:
        return False
    except HfHubHTTPError as error:
        raise DataError(
            f"hf:{repository}: the hub answers: {str(error).splitlines()[0]}; expected "
            "'hf:owner/name' of a dataset you may read (huggingface-cli login)"
        ) from None
    except ValueError as error:
        raise DataError(f"hf:{repository}: {error}; expected 'hf:owner/name'") from None
    except Exception as error:  # whatever the transport raises: no name, no route, no answer
        log.warning("the hub is not reachable (%s); using its cache", type(error).__name__)
        return False
    return True
