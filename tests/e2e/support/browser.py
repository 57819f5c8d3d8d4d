# SPDX-License-Identifier: Apache-2.0
"""Drives Debian's Chromium without a window, over the pipe of its DevTools protocol. Importing this ends the script with code 77
where there is no Chromium."""

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

PATIENCE = 120  # seconds, for anything that has to happen
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    print("skipped: there is no chromium (deploy/setup.sh --tests)", file=sys.stderr)
    sys.exit(77)

KEYS = {"Enter": 13, "Home": 36, "ArrowRight": 39, "Delete": 46}
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no other host
)  # fmt: skip


class Browser:
    """A Chromium with one empty tab, for a `with` statement. errors: exceptions and errors of the console that nobody has caught."""

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            self._start(stack)
            self._received, self._numbers, self._session, self.errors = b"", itertools.count(1), None, []
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.call(f"{domain}.enable")
            self._stack = stack.pop_all()
        return self

    def _start(self, stack):
        """Chromium reads commands from descriptor 3 and answers on 4."""
        theirs = []
        for mine in ("_commands", "_events"):
            read, write = os.pipe()
            here, there = (write, read) if mine == "_commands" else (read, write)
            setattr(self, mine, here)
            stack.callback(os.close, here)
            theirs.append(fcntl.fcntl(there, fcntl.F_DUPFD, 10))  # not 3 or 4 itself
            os.close(there)
        command = ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "bash", CHROMIUM, *FLAGS]
        command += [f"--user-data-dir={self.profile}", "about:blank"]
        none = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, pass_fds=theirs, stdin=none, stdout=none, stderr=none, env={**os.environ, "HOME": self.profile}
        )
        stack.callback(self._stop)
        for descriptor in theirs:
            os.close(descriptor)

    def _stop(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=PATIENCE)
        finally:
            self.process.kill()

    def __exit__(self, *exception):
        self._stack.close()

    def call(self, method, **parameters):
        """The result of a method of the protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _next(self):
        while b"\0" not in self._received:
            if not select.select([self._events], [], [], PATIENCE)[0]:
                raise RuntimeError(f"chromium has said nothing for {PATIENCE} s")
            more = os.read(self._events, 1 << 20)
            if not more:
                raise RuntimeError(f"chromium has ended with code {self.process.wait(timeout=PATIENCE)}")
            self._received += more
        line, _, self._received = self._received.partition(b"\0")
        return json.loads(line)

    def _note(self, event):
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"]["exception"].get("description"))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])

    def js(self, expression):
        """The value of an expression in the page, as JSON."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def await_js(self, expression):
        """Waits until the expression is neither false, zero, empty nor null, and returns it."""
        return self._await(lambda: self.js(expression), expression)

    def await_error(self):
        """The first of `errors`, once there is one."""
        self._await(lambda: self.js("1") and self.errors, "an error in the console")
        return self.errors[0]

    def _await(self, value, what):
        end = time.monotonic() + PATIENCE
        while not (found := value()):
            if time.monotonic() > end:
                raise AssertionError(f"did not come: {what}; the page says: {self.js('document.body.innerText')}")
            time.sleep(0.02)
        return found

    def open(self, url):
        """Leaves the page that is open, forgets its errors, and waits until the new one has loaded."""
        for address in ("about:blank", url):
            self.js("window.left = true")
            self.errors.clear()
            self.call("Page.navigate", url=address)
            self._await(lambda: self._is_open(address), f"the page {address}")

    def _is_open(self, address):
        try:
            return self.js(f"!window.left && location.href === {json.dumps(address)} && document.readyState === 'complete'")
        except RuntimeError:  # it has just taken the place of another
            return False

    def click(self, selector, index=0):
        """With the mouse, in the middle of an element, which must be what is seen there."""
        one = f"document.querySelectorAll({json.dumps(selector)})[{index}]"
        self.await_js(f"!!{one} && !{one}.disabled && {one}.checkVisibility()")
        x, y = self.js(
            f"(() => {{ const e = {one}; e.scrollIntoView({{block: 'center'}}); const r = e.getClientRects()[0];"
            "const p = [r.x + r.width / 2, r.y + r.height / 2];"
            "const seen = document.elementFromPoint(...p); if (!seen || !(e.contains(seen) || seen.contains(e)))"
            "  throw new Error('hidden behind ' + (seen && seen.outerHTML)); return p; })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def fill(self, selector, text):
        """Types a text into a field in place of what it holds."""
        one = f"document.querySelector({json.dumps(selector)})"
        self.await_js(f"!!{one} && !{one}.disabled && {one}.checkVisibility()")
        self.js(f"{one}.focus(), {one}.select()")
        self.key("Delete")
        if text:
            self.call("Input.insertText", text=text)

    def key(self, name):
        """Presses one of KEYS in what has the focus."""
        common = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": "\r"} if name == "Enter" else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def colours(self, scheme):
        """scheme: "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path, width):
        """A PNG of the whole page."""
        self.size(width, 100)
        for _ in range(2):  # boxes whose height is a part of the window's grow once
            self.size(width, self.js("document.documentElement.scrollHeight"))
        self.js("new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
