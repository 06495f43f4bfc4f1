"""The rule for folders of others: what they name needs the reader's word."""

from pathlib import Path

import pytest

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.trust import (
    refuse_class,
    refuse_fetching,
    refuse_links,
    refuse_server,
    refuse_writing,
)

URL = "https://host/v1"


def test_classes() -> None:
    refuse_class("own:Class", "here", None)
    refuse_class("own:Class", "here", ["own:Class"])
    with pytest.raises(ConfigError, match=r"pass allow=\['os:system'\].*--allow os:system"):
        refuse_class("os:system", "here", ["own:Class", "http", "hub"])


@pytest.mark.parametrize(
    ("allow", "key"),
    [
        (None, None), (["http"], None), ([URL], None), (["https://host"], None),
        (["https://host/"], None), ([f"{URL}=NAME"], "NAME"), (["https://host=NAME"], "NAME"),
        (["http", f"{URL}=NAME"], "NAME"), (["http", "https://other/v1=NAME"], None),
    ],
)  # fmt: skip
def test_servers_that_are_allowed(allow: list[str] | None, key: str | None) -> None:
    assert refuse_server(URL, "here", allow) == key


@pytest.mark.parametrize(
    "allow",
    [
        [], ["hub"], ["https://host.other/v1"], ["https://host/v"], ["http://host/v1"], ["https://"],
        ["https://host:444/v1"], ["https://host/v1/chat"], ["https://user@host/v1"],
        ["https://host/v=NAME"], ["https:///v1"], ["https://[host"],
    ],
)  # fmt: skip
def test_servers_that_are_not(allow: list[str]) -> None:
    with pytest.raises(ConfigError, match="never reaches one that it names"):
        refuse_server(URL, "here", allow)


def test_a_path_of_a_server_does_not_climb() -> None:
    for steps in ("..", "%2e%2E", "..;", "x%5c.."):
        with pytest.raises(ConfigError, match="never reaches"):
            refuse_server(f"https://host/v1/{steps}/admin", "here", ["https://host/v1=NAME"])


def test_hubs() -> None:
    refuse_fetching("owner/name", "here", ["hub"])
    with pytest.raises(ConfigError, match=r"fetches nothing.*--allow hub"):
        refuse_fetching("owner/name", "here", [])


def test_places_to_write(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (tmp_path / "other").mkdir()
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "other")
    refuse_writing(folder / "a" / "b", "here", folder, ())
    refuse_writing(tmp_path / "other" / "x", "here", folder, [str(tmp_path / "other")])
    refuse_writing(tmp_path / "other" / "x", "here", folder, None)
    for place in (tmp_path / "x", folder / ".." / "x", folder / "link" / "x", "~nobody/x", "x"):
        with pytest.raises(ConfigError):
            refuse_writing(place, "here", folder, ["hub", "http", "other:Class"])


def test_links(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "again").symlink_to(folder)
    refuse_links(folder)
    (folder / "inner" / "out").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"a link out of the folder.*--allow"):
        refuse_links(folder)
    refuse_links(folder, [str(tmp_path / "nothing")])
    refuse_links(folder, None)
    (tmp_path / "other").symlink_to(tmp_path / "folder")
