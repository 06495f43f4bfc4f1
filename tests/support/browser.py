"""A headless Chromium over the WebDriver protocol (W3C), by the standard library alone."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key that names an element (W3C WebDriver, 11)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--disable-dev-shm-usage",  # a container's /dev/shm may be small
)  # fmt: skip


# The contrast of an element's text with what is behind it (WCAG 2.2, relative luminance).
CONTRAST = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => v / 255).map(
  (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
let element = document.querySelector(arguments[0]), behind = element;
const ink = light(rgb(getComputedStyle(element).color));
while (behind && (rgb(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0)
  behind = behind.parentElement;
const ground = light(rgb(getComputedStyle(behind || document.body).backgroundColor));
return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
"""


def chromium() -> tuple[str, str] | None:
    """Return the paths of Chromium and its driver, None where either is not installed."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """One window of a running browser."""

    def __init__(self, address: str, session: str) -> None:
        self._base = f"{address}/session/{session}"

    def open(self, path: Path) -> None:
        self.visit(path.as_uri())

    def visit(self, address: str) -> None:
        _asked(f"{self._base}/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script's body in the page and return what it returns."""
        return _asked(f"{self._base}/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str, *arguments: Any, seconds: float = 10) -> Any:
        """Run a script until what it returns is true; return that."""
        end = time.monotonic() + seconds
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < end, f"still not true: {script}"
            time.sleep(0.05)
        return found

    def click(self, selector: str, place: int = 0) -> None:
        """Click in the middle of the element, as a person does."""
        element = self._element(selector, place)
        self.run("arguments[0].scrollIntoView({block: 'center'})", {ELEMENT: element})
        _asked(f"{self._base}/element/{element}/click", {})

    def type(self, selector: str, text: str) -> None:
        element = self._element(selector, 0)
        _asked(f"{self._base}/element/{element}/value", {"text": text})

    def _element(self, selector: str, place: int) -> str:
        found = _asked(f"{self._base}/elements", {"using": "css selector", "value": selector})
        return str(found[place][ELEMENT])

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the view's size, and whether the device prefers dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", {"features": [feature]})

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return _asked(f"{self._base}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def messages(self) -> list[str]:
        """Return the console's messages since the last call."""
        found = _asked(f"{self._base}/se/log", {"type": "browser"})
        return [str(entry["message"]) for entry in found]

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(_asked(f"{self._base}/screenshot")))


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """Start the driver and a browser with an empty profile under ``folder``; end both."""
    found = chromium()
    assert found is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    driver = subprocess.Popen(
        [found[1], f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(address)
        options = {"binary": found[0], "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}"]}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = _asked(f"{address}/session", {"capabilities": {"alwaysMatch": capabilities}})
        try:
            yield Browser(address, made["sessionId"])
        finally:
            _asked(f"{address}/session/{made['sessionId']}", method="DELETE")
    finally:
        driver.terminate()
        driver.wait(timeout=10)


def _wait_for(address: str) -> None:
    for _ in range(600):
        try:
            if _asked(f"{address}/status")["ready"]:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError("the browser's driver does not answer")


def _asked(address: str, body: Any = None, method: str | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, method=method)
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        with error:
            message = error.read().decode()
        raise AssertionError(f"{address}: {message[:500]}") from None
