"""Chromium, driven through its debugging pipe: real clicks and keys on the page of a file or of a server."""

from __future__ import annotations

import html
import itertools
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.processes.launching import started, wait_until

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip


class Tab:
    """A page in the browser.

    Attributes:
        errors: Errors of scripts and what the browser logged, such as refusals by the Content-Security-Policy.
    """

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._numbers = itertools.count(1)
        self._received = b""
        self._session = ""
        self.errors: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, address: str, *, width: int = 900, height: int = 640) -> None:
        """Open a page in a window of this size and wait until it is there."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        wait_until(lambda: bool(self.evaluate(condition)), lambda: f"{condition}; {self.errors}")

    def move_to(self, selector: str) -> tuple[float, float]:
        """Move the pointer to the middle of an element; where that is."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.evaluate(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({box})")
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector: str) -> None:
        """Click on an element."""
        x, y = self.move_to(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Type text where the focus is."""
        self._call("Input.insertText", text=text)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        message = json.dumps({"id": number, "method": method, "params": params, **session})
        os.write(self._write, message.encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._record(answer)

    def _record(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(event["params"]["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded":
            self.errors.append(event["params"]["entry"]["text"])

    def _next_message(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has ended"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed


@contextmanager
def browsing(folder: Path) -> Iterator[Tab]:
    """Start Chromium with an empty page; ``folder`` is for its files. Skips the test if there is no Chromium."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium: apt-get install chromium")
    (commands_read, commands_write), (answers_read, answers_write) = os.pipe(), os.pipe()
    command = [browser, *OPTIONS, f"--user-data-dir={folder / 'browser'}"]
    line = f"exec {shlex.join(command)} 3<&{commands_read} 4>&{answers_write}"
    browser_ends = (commands_read, answers_write)
    with (
        (folder / "browser.log").open("w") as log,
        started(["bash", "-c", line], pass_fds=browser_ends, stdout=log, stderr=log),
    ):
        for descriptor in browser_ends:
            os.close(descriptor)
        try:
            yield Tab(commands_write, answers_read)
        finally:
            os.close(commands_write)
            os.close(answers_read)


def open_page(page: Path, folder: Path, *, address: str = "", then: str = "") -> str:
    """Open a file; return its HTML. Skips the test if there is no Chromium.

    Args:
        page: The file.
        folder: For the browser's files.
        address: The part of the address after the file name, such as ``#encoder/1/2``.
        then: JavaScript that runs after the page's own.

    Raises:
        AssertionError: A script failed.
    """
    with browsing(folder) as tab:
        tab.open(f"{page.as_uri()}{address}")
        tab.evaluate(then)
        found: str = tab.evaluate("document.documentElement.outerHTML")
        assert tab.errors == []
    return found


def elements(page: str, name: str) -> list[Mapping[str, str]]:
    """The attributes of all elements with this name, in the order of the page."""
    tags = re.findall(rf"<{name}((?:\s[^<>]*)?)>", page)
    return [{key: html.unescape(value) for key, value in re.findall(r'([\w-]+)="([^"]*)"', tag)} for tag in tags]
