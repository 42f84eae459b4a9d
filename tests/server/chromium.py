"""A real Chromium, driven over a pipe by its DevTools protocol, which needs no further package."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory

#: Debian's name first.
NAMES = ("chromium", "chromium-browser", "google-chrome")
#: Seconds that the browser may take for an answer or a page.
PATIENCE_S = 120.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)
#: The browser reads commands from 3 and writes answers to 4.
_ON_PIPE = 'exec 3<&0 4>&1 </dev/null >/dev/null; exec "$@"'


def chromium():
    """The path of the browser; None: there is none here."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser process; each tab of it has cookies of its own."""

    def __init__(self):
        self._folder = TemporaryDirectory(ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [
                "sh",
                "-c",
                _ON_PIPE,
                "sh",
                chromium(),
                *_FLAGS,
                f"--user-data-dir={self._folder.name}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._commands, self._answers = self._process.stdin, self._process.stdout
        self._waiting, self._tabs, self._number = {}, {}, 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, method, session=None, **parameters):
        """The answer to a command."""
        self._number += 1
        number, answer = self._number, SimpleQueue()
        self._waiting[number] = answer
        command = {"id": number, "method": method, "params": parameters}
        command |= {} if session is None else {"sessionId": session}
        self._commands.write(json.dumps(command).encode() + b"\0")
        self._commands.flush()
        message = answer.get(timeout=PATIENCE_S)
        assert "error" not in message, (method, message["error"])
        return message["result"]

    def tab(self, **how):
        """A new tab; see ``Tab``."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        session = attached["sessionId"]
        self._tabs[session] = Tab(self, session, context, **how)
        return self._tabs[session]

    def forget(self, tab):
        """Close a tab."""
        del self._tabs[tab.session]
        self.send("Target.disposeBrowserContext", browserContextId=tab.context)

    def close(self):
        """End the browser."""
        with contextlib.suppress(Empty):
            self.send("Browser.close")
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self._commands.close()
        self._answers.close()
        self._folder.cleanup()

    def _read(self):
        data = b""
        while received := os.read(self._answers.fileno(), 1 << 20):
            *messages, data = (data + received).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._waiting.pop(message["id"]).put(message)
                elif (tab := self._tabs.get(message.get("sessionId"))) is not None:
                    tab.receive(message["method"], message["params"])


class Tab:
    """A page as somebody sees it: language, light or dark, width in pixels, with scripts or without."""

    def __init__(
        self, browser, session, context, *, language="en", scheme="light", width=1280, scripts=True
    ):
        self.browser, self.session, self.context = browser, session, context
        #: What the console had to say of errors, and the dialogs that scripts have opened.
        self.errors, self.dialogs = [], []
        self.width, self._loaded = width, SimpleQueue()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        tag = {"en": "en-US", "zh": "zh-CN"}[language]
        self.send("Network.setExtraHTTPHeaders", headers={"Accept-Language": tag})
        phone = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **phone)
        scheme = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)

    def send(self, method, **parameters):
        """The answer to a command about this tab."""
        return self.browser.send(method, self.session, **parameters)

    def receive(self, method, parameters):
        """Something has happened in it."""
        if method == "Page.loadEventFired":
            self._loaded.put(None)
        elif method == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(parameters["message"])

    def open(self, url):
        """Go to an address, and wait until it is there."""
        self.load(lambda: self.send("Page.navigate", url=url))

    def load(self, act):
        """Do something that leads to another page, and wait until that is there."""
        while not self._loaded.empty():
            self._loaded.get()
        act()
        self.next_load()

    def next_load(self):
        """Wait until a page has come that was not waited for yet."""
        self._loaded.get(timeout=PATIENCE_S)

    def run(self, script):
        """The value of an expression, of a promise when it is kept."""
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def html(self):
        """The document as it is now, also without scripts."""
        root = self.send("DOM.getDocument")["root"]
        return self.send("DOM.getOuterHTML", nodeId=root["nodeId"])["outerHTML"]

    def text(self):
        """What can be read on it."""
        return self.run("document.body.innerText")

    def press(self, key, code=0, text=""):
        """Press a key and release it."""
        kind = "keyDown" if text else "rawKeyDown"
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        self.send("Input.dispatchKeyEvent", type=kind, **pressed)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def tabulator(self):
        """Go on to the next element that takes keys."""
        self.press("Tab", 9)

    def enter(self):
        """Press Enter, which follows links and sends forms."""
        self.press("Enter", 13, "\r")

    def space(self):
        """Press the space bar, which checks boxes."""
        self.press(" ", 32, " ")

    def click(self, text):
        """Follow the first link, or press the first button, with this text."""
        named, every = f"one => one.textContent.trim() === {json.dumps(text)}", "a, button"
        element = f"[...document.querySelectorAll('{every}')].find({named})"
        self.load(lambda: self.run(f"{element}.click()"))

    def fill(self, name, text):
        """Enter a text in the input of this name in the screen."""
        selector = json.dumps(f"main [name={name}]")
        self.run(f"document.querySelector({selector}).value = {json.dumps(text)}")

    def width_of_content(self):
        """How wide the page is, in pixels; more than the tab: it scrolls to the side."""
        return self.send("Page.getLayoutMetrics")["cssContentSize"]["width"]

    def picture(self):
        """What is seen of it, as a PNG in base64."""
        return self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]

    def close(self):
        """Close it."""
        self.browser.forget(self)
