# SPDX-License-Identifier: Apache-2.0
"""The page of rivulet-gateway: used with Chromium in front of the real server, and compared with what gRPC gives.
RIVULET_PAGE_SCREENSHOT=FILE: also writes a picture of the page."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request
from concurrent import futures

from rivulet_wheel import CLIENT, SITE, await_idle
from browser import PATIENCE, Browser
from gateway import Gateway

import grpc

import rivulet
import text_models
from command import SOURCE_DIR, ZOO, Server
from rivulet.v1 import inference_pb2

TEXT, IMAGES = "shakespeare-rfa", "mnist-linear"
PROMPT = "ROMEO:"
TEMPERATURE = 0.8  # of the field
SOURCES = CLIENT / "src/rivulet/gateway/page"
TSC = SOURCE_DIR / "build/typescript/node_modules/.bin/tsc"
MOST_BYTES = 64_000
KEY = "a-key-of-the-test"
DIALOGUE = ("--chat-template", ZOO / "dialogue.jinja")


def setUpModule():
    """One server, one gateway and one browser for all tests."""
    server = unittest.enterModuleContext(Server(ZOO / TEXT, ZOO / IMAGES, args=("--threads", "1", "--backend", "cpu")))
    PageTest.gateway = unittest.enterModuleContext(Gateway(server.target, *DIALOGUE))
    PageTest.target = server.target
    PageTest.grpc = unittest.enterModuleContext(rivulet.Client(server.target))
    PageTest.browser = unittest.enterModuleContext(Browser())
    PageTest.browser.size(1180, 900)


class FilesTest(unittest.TestCase):
    @unittest.skipUnless(TSC.exists(), "no build/typescript; deploy/setup.sh --tests makes it")
    def test_its_types_are_right(self):
        done = subprocess.run([TSC, "--listFiles"], cwd=CLIENT, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout)
        unchecked = set(SOURCES.glob("*.js")) - set(map(pathlib.Path, done.stdout.splitlines()))
        self.assertEqual(unchecked, set())

    def test_it_is_small_and_the_installed_package_holds_it(self):
        installed = {path.name: path.read_bytes() for path in (SITE / "rivulet/gateway/page").iterdir()}
        self.assertEqual(installed, {path.name: path.read_bytes() for path in SOURCES.iterdir()})
        self.assertIn("main.js", installed)
        self.assertLess(sum(map(len, installed.values())), MOST_BYTES)

    def test_it_needs_no_other_host(self):
        for path in SOURCES.iterdir():
            found = set(re.findall(r"https?://[^\s\"'<>]+", path.read_text())) - {"http://www.w3.org/2000/svg"}
            self.assertEqual(found, set(), path.name)


class PageTest(unittest.TestCase):
    def setUp(self):
        self.open(self.gateway)
        self.browser.await_js("!document.querySelector('#text').hidden && !document.querySelector('#images').hidden")

    def open(self, gateway):
        self.browser.open(f"{gateway.url}/")

    def text_of(self, selector):
        return self.browser.js(f"document.querySelector('{selector}').textContent")

    def await_text(self, selector, part):
        self.browser.await_js(f"document.querySelector('{selector}')?.textContent.includes({part!r})")

    def await_problem(self, selector, *parts):
        self.browser.await_js(f"!document.querySelector('{selector}').hidden")
        for part in parts:
            self.await_text(selector, part)

    def generate(self, tokens, seed):
        for field, value in (("prompt", PROMPT), ("tokens", tokens), ("seed", seed)):
            self.browser.fill(f"#text-{field}", str(value))
        self.browser.click("#text-generate")
        self.await_text(".branch .name", "A")

    def await_done(self, name):
        branch = f".branch[data-name={name}]"
        self.browser.await_js(f"document.querySelector('{branch}')?.ariaBusy === 'false'")
        self.assertEqual(self.text_of(f"{branch} .buttons .hint"), "done", self.text_of(branch))
        return self.text_of(f"{branch} .text")


class ImagesTest(PageTest):
    def pixels(self):
        """Of each canvas: the red channel and the opacity of every pixel."""
        return self.browser.js(
            "[...document.querySelectorAll('canvas')].map(c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "return [[...d].filter((_, i) => i % 4 === 0), [...d].filter((_, i) => i % 4 === 3)]; })"
        )

    def test_digits_are_those_of_grpc(self):
        browser = self.browser
        browser.js("document.querySelector('#images-count').value = '4'")
        browser.fill("#images-seed", "9")
        browser.key("Enter")  # in the field
        browser.await_js("document.querySelector('#images-status').textContent.includes('drawn')")
        self.assertRegex(self.text_of("#images-status"), r"^4 images drawn: 3,136 values, seed 9, ")
        expected = self.grpc.generate_images(4, model=IMAGES, seed=9, temperature=1.0)
        found = self.pixels()
        self.assertEqual([red for red, _ in found], [image.reshape(-1).tolist() for image in expected])
        self.assertEqual({opacity for _, all in found for opacity in all}, {255})
        self.assertEqual(browser.errors, [])

    def test_they_are_drawn_pixel_by_pixel_until_they_are_stopped(self):
        browser = self.browser
        browser.js("document.querySelector('#images-count').value = '64'")
        browser.click("#images-draw")
        browser.await_js("document.querySelector('#images-progress').value > 0")
        browser.click("#images-stop")
        browser.await_js("document.querySelector('#images-status').textContent.startsWith('64 images stopped')")
        self.assertTrue(await_idle(self.grpc, IMAGES, PATIENCE))
        for _, opacity in self.pixels():
            drawn = sum(map(bool, opacity)) - 1  # the last of them is where the next value goes
            self.assertEqual(opacity, [255] * (drawn + 1) + [0] * (783 - drawn))
        done, most = browser.js("(p => [p.value, p.max])(document.querySelector('#images-progress'))")
        self.assertTrue(0 < done < most, (done, most))
        browser.click("#images-draw")  # goes on working
        browser.await_js("document.querySelector('#images-progress').value > 0")
        browser.click("#images-stop")
        self.assertEqual(browser.errors, [])


class ChatTest(PageTest):
    QUESTIONS = ("What news, my lord?", "O speak again!")

    def answer(self, *said, seed, system=""):
        """That of gRPC after questions and answers in turn, as the template writes them."""
        names = ("ROMEO", "JULIET")
        prompt = system + "".join(f"{names[index % 2]}:\n{text}\n\n" for index, text in enumerate(said)) + "JULIET:\n"
        options = {"max_tokens": 40, "temperature": TEMPERATURE, "stop": ["\n\nROMEO:"]}
        return self.grpc.generate(prompt, model=TEXT, seed=seed, **options).collect().text

    def messages(self, name):
        return self.browser.js(f"[...document.querySelectorAll('.conversation[data-name={name}] .message p')].map(p => p.textContent)")

    def ask(self, question):
        """Returns once it is answered."""
        self.browser.fill("#chat-message", question)
        self.browser.key("Enter")
        self.browser.await_js("document.querySelector('#chat-message').value === '' && document.querySelector('#chat-stop').disabled")

    def test_answers_are_those_of_grpc_and_can_be_undone_and_forked(self):
        browser = self.browser
        self.assertEqual(browser.js("document.querySelector('#chat-message').value"), self.QUESTIONS[0], "a prompt that fits the model")
        browser.fill("#chat-tokens", "40")
        browser.fill("#chat-seed", "7")
        first = self.answer(self.QUESTIONS[0], seed=7)
        second, forked = (self.answer(self.QUESTIONS[0], first, self.QUESTIONS[1], seed=seed) for seed in (7, 8))
        self.assertNotEqual(second, forked)
        self.ask(self.QUESTIONS[0])
        self.assertEqual(self.messages("A"), [self.QUESTIONS[0], first.lstrip()])
        self.ask(self.QUESTIONS[1])
        self.assertEqual(self.messages("A")[2:], [self.QUESTIONS[1], second.lstrip()])
        browser.click(".message.assistant .buttons button:nth-child(4)")  # of the first answer
        self.assertEqual(self.messages("B"), [self.QUESTIONS[0], first.lstrip()])
        self.ask(self.QUESTIONS[1])
        self.assertEqual(self.messages("B")[2:], [self.QUESTIONS[1], forked.lstrip()])
        browser.click(".conversation[data-name=A] .message.assistant .buttons button:nth-child(3)", 1)  # of the second
        self.assertEqual(self.messages("A"), [self.QUESTIONS[0], first.lstrip()])
        self.assertEqual(browser.js("document.querySelector('#chat-message').value"), self.QUESTIONS[1], "to be asked again")
        browser.click("#chat-send")
        browser.await_js("document.querySelectorAll('.conversation[data-name=A] .message').length === 4 && document.querySelector('#chat-stop').disabled")
        self.assertEqual(self.messages("A")[3], second.lstrip(), "in the conversation in which it was undone")
        browser.click("#chat-new")
        self.assertEqual(browser.js("document.querySelectorAll('.conversation').length"), 0)
        self.assertEqual(browser.errors, [])

    def test_an_answer_is_generated_again_with_another_seed(self):
        browser = self.browser
        for field, value in (("tokens", "40"), ("seed", "7"), ("system", "Verona. A street.")):
            browser.fill(f"#chat-{field}", value)
        first, second = (self.answer(self.QUESTIONS[0], seed=seed, system="Verona. A street.\n\n") for seed in (7, 8))
        self.assertNotEqual(first, second)
        self.ask(self.QUESTIONS[0])
        self.assertEqual(self.messages("A"), [self.QUESTIONS[0], first.lstrip()])
        self.ask(self.QUESTIONS[1])
        browser.fill("#chat-message", "unsent")
        browser.click(".message.assistant .buttons button:nth-child(2)")  # of the first answer
        browser.await_js("document.querySelectorAll('.message').length === 2 && document.querySelector('#chat-stop').disabled")
        again = [self.QUESTIONS[0], second.lstrip()]
        self.assertEqual((self.messages("A"), self.text_of(".conversation h3 .hint")), (again, f"{TEXT}, seed 8"))
        browser.fill("#chat-system", "\u0416")
        browser.click(".message.assistant .buttons button:nth-child(2)")
        self.await_problem(".conversation .problem", "(TEXT_NOT_IN_ALPHABET)")
        self.assertEqual((self.messages("A"), self.text_of(".conversation h3 .hint")), (again, f"{TEXT}, seed 8"), "as it was")
        self.assertEqual(browser.js("document.querySelector('#chat-message').value"), "unsent")
        self.assertEqual(browser.js("document.querySelectorAll('.message button').length"), 4)

    def test_an_answer_is_copied_or_selected(self):
        browser = self.browser
        browser.fill("#chat-tokens", "40")
        self.ask(self.QUESTIONS[0])
        answer = self.messages("A")[1]
        browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        copied, selected = "navigator.clipboard.readText()", "getSelection().toString()"
        for before, found, said in (
            ("0", copied, "copied"),
            ("navigator.clipboard.writeText = () => Promise.reject(new Error('no'))", selected, "copy it with Ctrl+C"),
            ("getSelection().empty(), Object.defineProperty(navigator, 'clipboard', {})", selected, "copy it with Ctrl+C"),  # no HTTPS
        ):
            browser.js(f"void ({before})")
            browser.click(".message.assistant .buttons button")
            self.await_text(".conversation > .hint", said)
            browser.await_js(f"{found}.then ? {found}.then(Boolean) : !!{found}")
            # A selection has no line break at its end.
            self.assertEqual(browser.js(found), answer if found == copied else answer.rstrip("\n"))
        self.assertEqual(browser.errors, [])

    def test_it_says_what_the_model_keeps_of_a_conversation(self):
        self.await_text("#chat-memory", "is a linear transformer: its memory of a conversation has a fixed size, however long you talk.")
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        models = (text_models.with_tokenizer("../hybrid/qwen35-text", folder, "hybrid"), text_models.with_tokenizer("mamba2", folder))
        server = self.enterContext(Server(*models, args=("--threads", "1", "--backend", "cpu", "--max-context", "500")))
        gateway = self.enterContext(Gateway(server.target))
        self.open(gateway)
        self.await_text("#chat-memory", "is a hybrid: it keeps a state of fixed size, and a KV cache that grows as you talk.")
        self.await_text("#chat-memory", "A conversation has at most 501 tokens.")
        self.browser.js("(s => { s.value = 'mamba2'; s.dispatchEvent(new Event('change')); })(document.querySelector('#chat-model'))")
        self.await_text("#chat-memory", "is a linear transformer")
        with rivulet.Client(server.target) as client, urllib.request.urlopen(f"{gateway.url}/v1/models/hybrid", timeout=PATIENCE) as answer:
            limit = client.model("hybrid").architecture.max_sequence_tokens
            told = json.load(answer)["rivulet"]
        self.assertEqual((told["attention"], told["max_sequence_tokens"]), ("hybrid", limit))

    def test_an_answer_that_is_stopped_stays(self):
        browser = self.browser
        browser.fill("#chat-tokens", "1000000")
        browser.fill("#chat-message", self.QUESTIONS[0])
        # By the page itself: an answer may end by itself before this test has looked at it.
        answered = "document.querySelectorAll('.message.assistant p')[0]?.textContent.length > 3"
        browser.js(f"void setInterval(() => {{ if ({answered}) document.querySelector('#chat-stop').click(); }}, 1)")
        browser.click("#chat-send")
        self.await_text(".conversation > .hint", "stopped")
        browser.await_js("document.querySelector('#chat-stop').disabled")
        self.assertGreater(len(self.messages("A")[1]), 3)

    def test_an_error_gives_the_question_back(self):
        self.browser.fill("#chat-message", "\u0416")
        self.browser.key("Enter")
        self.await_problem(".conversation .problem", "(TEXT_NOT_IN_ALPHABET)")
        self.assertEqual((self.messages("A"), self.browser.js("document.querySelector('#chat-message').value")), ([], "\u0416"))

    def test_it_comes_first_and_fits_a_phone(self):
        titles = self.browser.js("[...document.querySelectorAll('h2')].map(title => title.textContent)")
        self.assertEqual(titles, ["Chat", "Text", "Images", "Load"])
        self.browser.size(360, 640)
        self.addCleanup(self.browser.size, 1180, 900)
        self.browser.fill("#chat-tokens", "40")
        self.ask(self.QUESTIONS[0])
        self.assertEqual(self.browser.js("document.documentElement.scrollWidth"), 360)
        tops = self.browser.js("[...document.querySelectorAll('.message button')].map(one => one.getBoundingClientRect().top)")
        self.assertEqual((len(tops), len(set(tops))), (4, 1), "in one row")
        self.browser.click("#chat-new")
        self.browser.js("scrollTo(0, 0)")
        for one in ("#chat-message", "#chat-send"):
            bottom, wide = self.browser.js(f"(r => [r.bottom, r.right])(document.querySelector('{one}').getBoundingClientRect())")
            self.assertTrue(0 < bottom <= 640 and wide <= 360, (one, bottom, wide))

    def test_without_a_template_it_says_how_to_give_one(self):
        with Gateway(self.target) as gateway:
            self.open(gateway)
            self.browser.await_js("!document.querySelector('#chat-none').hidden")
            self.await_text("#chat-none", "--chat-template FILE")
            self.assertTrue(self.browser.js("['#chat-form', '#chat-memory'].every(one => document.querySelector(one).hidden)"))
            titles = self.browser.js("[...document.querySelectorAll('h2')].map(title => title.textContent)")
            self.assertEqual(titles, ["Text", "Images", "Chat", "Load"], "what works comes first")


class TextTest(PageTest):
    def test_a_fork_goes_on_beside_the_original(self):
        self.generate(tokens=60, seed=7)
        with self.grpc.open_session(model=TEXT, seed=7) as session:
            options = {"max_tokens": 60, "temperature": TEMPERATURE}
            first = session.generate(PROMPT, **options).collect().text
            self.assertEqual(self.await_done("A"), PROMPT + first)
            (fork,) = session.fork(1, seed=8, position=len(PROMPT) + 20)
            original, copy = session.generate(**options).collect().text, fork.generate(**options).collect().text
            fork.close()
        browser = self.browser
        browser.js("document.querySelector('.choosing input').focus()")
        for key in ("Home", *["ArrowRight"] * 18):
            browser.key(key)
        self.assertEqual(self.text_of(".choosing output"), "after token 19 of 60")
        browser.click(".branch .text span", 20)  # the prompt is the first
        self.assertEqual(self.text_of(".choosing output"), "after token 20 of 60")
        browser.click(".branch .choosing button")
        self.await_text("#branches", "fork of A, seed 8")
        self.assertEqual(self.await_done("A"), PROMPT + first + original)
        self.assertEqual(self.await_done("B"), PROMPT + first[:20] + copy)
        self.assertNotEqual(original[:60], copy)
        self.assertEqual(browser.js("document.querySelectorAll('.branch[data-name=B] .shared').length"), 20)
        self.screenshot()
        self.await_sessions(lambda ids: len(ids) == 2)  # pages of other tests may be closing theirs
        for left in (1, 0):
            browser.click(".branch .buttons button:nth-child(3)")
            browser.await_js(f"document.querySelectorAll('.branch').length === {left}")
        self.await_sessions(lambda ids: not ids)
        browser.await_js(f"document.querySelectorAll('.gauge[data-model={TEXT}] dd')[3].textContent === '0'")
        self.assertEqual(browser.errors, [])

    def await_sessions(self, condition):
        """Waits until the ids of the open sessions satisfy it."""
        end = time.monotonic() + PATIENCE
        while not condition(ids := {session.id for session in self.grpc.sessions(model=TEXT)}):
            self.assertLess(time.monotonic(), end, ids)

    def screenshot(self):
        file = os.environ.get("RIVULET_PAGE_SCREENSHOT")
        if file:
            for field, value in (("tokens", "120"), ("seed", "4")):
                self.browser.fill(f"#chat-{field}", value)
            self.browser.fill("#chat-message", "What news, my lord?")
            self.browser.key("Enter")
            self.browser.await_js("document.querySelectorAll('.message button').length === 4")
            self.browser.js("document.querySelector('#images-count').value = '16'")
            self.browser.fill("#images-seed", "1")
            self.browser.click("#images-draw")
            self.browser.await_js("document.querySelector('#images-progress').value > 7500")
            self.browser.js("document.activeElement.blur(), scrollTo(0, 0)")
            self.browser.screenshot(file, 1180)
            self.browser.size(1180, 900)

    def test_a_text_streams_while_the_gauges_show_it_and_goes_on_after_a_stop(self):
        browser = self.browser
        self.generate(tokens=1_000_000, seed=3)
        browser.await_js("document.querySelectorAll('.branch .text span').length > 10")
        slots = self.grpc.model(TEXT).limits.slots
        browser.await_js(f"document.querySelector('.gauge[data-model={TEXT}] dd').textContent === '1 of {slots}'")
        browser.await_js(f"document.querySelector('.gauge[data-model={TEXT}] meter').value === 1")
        browser.await_js(f"document.querySelector('.gauge[data-model={TEXT}] .rate').textContent !== '0'")
        before = browser.js("document.querySelectorAll('.branch .text span').length")
        browser.await_js(f"document.querySelectorAll('.branch .text span').length > {before}")
        browser.click(".branch .buttons button:nth-child(2)")
        self.await_text(".branch .buttons .hint", "stopped")
        text = self.text_of(".branch .text")
        browser.await_js(f"document.querySelector('.gauge[data-model={TEXT}] dd').textContent === '0 of {slots}'")
        browser.fill("#text-tokens", "20")
        browser.click(".branch .buttons button:first-child")
        self.await_text(".branch .buttons .hint", "done")
        whole = PROMPT + self.grpc.generate(PROMPT, model=TEXT, seed=3, temperature=TEMPERATURE, max_tokens=len(text) + 20 - len(PROMPT)).collect().text
        self.assertEqual(self.text_of(".branch .text"), whole)
        self.assertEqual(browser.errors, [])

    def test_an_error_of_the_server_is_shown_in_its_words(self):
        self.browser.fill("#text-prompt", "\u0416")
        self.browser.click("#text-generate")
        with self.assertRaises(rivulet.InvalidArgument) as caught:
            self.grpc.generate("\u0416", model=TEXT, max_tokens=1).collect()
        self.await_problem("#text-problem", caught.exception.message, "(TEXT_NOT_IN_ALPHABET)")
        self.assertEqual(self.browser.js("document.querySelectorAll('.branch').length"), 0)
        self.generate(tokens=5, seed=1)
        self.assertTrue(self.browser.js("document.querySelector('#text-problem').hidden"))

    def test_leaving_the_page_closes_its_sessions(self):
        self.generate(tokens=5, seed=1)
        self.await_done("A")
        ids = {session.id for session in self.grpc.sessions(model=TEXT)}
        self.assertTrue(ids)
        self.browser.open("about:blank")
        self.await_sessions(lambda left: not left & ids)


class PageItselfTest(PageTest):
    def get(self, path):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=PATIENCE)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def test_its_links_lead_to_the_documentation_of_this_version(self):
        pages, left = {}, ["/"]
        while left:
            path = left.pop()
            status, headers, body = self.get(path)
            self.assertEqual((status, headers["content-type"].partition(";")[0]), (200, "text/html"), path)
            pages[path] = body.decode()
            for picture in re.findall(r'<img[^>]* src="([^"]+)"', pages[path]):
                self.assertEqual(self.get(urllib.parse.urljoin(path, picture))[0], 200, f"{path}: {picture}")
            links = {urllib.parse.urljoin(path, link) for link in re.findall(r'<a href="([^"]+)"', pages[path])}
            left += {link.partition("#")[0] for link in links if link.startswith("/")} - pages.keys() - set(left)
            for page, _, heading in (link.partition("#") for link in links if "#" in link):
                self.assertIn(f'id="{heading}"', self.get(page)[2].decode(), f"{path}: {page}#{heading}")
        docs = {path.stem.replace("README", "") for path in (SOURCE_DIR / "docs").glob("*.md")}
        self.assertEqual(pages.keys(), {"/"} | {f"/docs/{name}" for name in docs})
        self.assertIn("<h1 id=\"concepts\">", pages["/docs/concepts"])

    def test_only_its_own_scripts_run(self):
        paths = {"/": "text/html", "/page/main.js": "text/javascript", "/page/style.css": "text/css", "/page/icon.svg": "image/svg+xml"}
        for path, kind in paths.items():
            status, headers, _ = self.get(path)
            self.assertEqual((status, headers["content-type"].partition(";")[0]), (200, kind))
            policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
            self.assertEqual((policy["default-src"], policy["script-src"], policy["style-src"]), ("'none'", "'self'", "'self'"))
            self.assertEqual(headers["x-content-type-options"], "nosniff")
        self.assertEqual(self.get("/page/absent.js")[0], 404)
        self.assertEqual(self.browser.errors, [])
        run = "(() => { const s = document.createElement('script'); s.append('window.ran = 1'); document.body.append(s); })()"
        self.browser.js(run)
        self.assertIsNone(self.browser.js("window.ran"))
        self.assertIn("blocked", self.browser.await_error())
        markup = "(() => { try { document.body.innerHTML = '<b>a</b>'; return 'set'; } catch (e) { return e.name; } })()"
        self.assertEqual(self.browser.js(markup), "TypeError")

    def test_everything_that_is_used_has_a_name(self):
        self.generate(tokens=5, seed=1)
        self.await_done("A")
        roles = ("button", "textbox", "spinbutton", "combobox", "slider", "meter", "progressbar", "region")
        nodes = self.browser.call("Accessibility.getFullAXTree")["nodes"]
        found = [(node["role"]["value"], node.get("name", {}).get("value")) for node in nodes if not node["ignored"]]
        used = [(role, name) for role, name in found if role in roles]
        self.assertEqual([role for role, name in used if not name], [])
        for expected in (("textbox", "Message"), ("textbox", "System prompt"), ("button", "Send"), ("button", "Draw"), ("spinbutton", "Temperature"), ("textbox", "Prompt"), ("region", "Text A"), ("button", "Fork here")):
            self.assertIn(expected, used)

    def test_it_follows_the_colours_of_the_system(self):
        seen = []
        for scheme in ("dark", "light"):
            self.browser.colours(scheme)
            seen.append(self.browser.js("['body', 'button.primary'].map(s => getComputedStyle(document.querySelector(s)).backgroundColor)"))
        self.assertTrue(all(dark != light for dark, light in zip(*seen)), seen)

    def test_the_loss_of_server_and_gateway_is_said(self):
        with Server(ZOO / TEXT, args=("--threads", "1", "--backend", "cpu")) as server:
            with Gateway(server.target) as gateway:
                self.open(gateway)
                self.generate(tokens=1_000_000, seed=1)
                self.browser.await_js("document.querySelectorAll('.branch .text span').length > 1")
                server.process.kill()
                self.browser.await_js("!document.querySelector('.branch .problem').hidden")
                self.await_problem("#problem", "(")
                self.await_text("#connection", "not connected")
                gateway.stop()
                self.await_problem("#problem", "The gateway does not answer.")


class ServerWithKeys:
    """Serves no models, and only to those who bring KEY."""

    def __enter__(self):
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        kinds = {name: (getattr(inference_pb2, f"{name}Request"), getattr(inference_pb2, f"{name}Reply")) for name in ("ListModels", "GetLoad")}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._answer(reply), request.FromString, reply.SerializeToString)
            for name, (request, reply) in kinds.items()
        }
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("rivulet.v1.InferenceService", handlers)])
        self.target = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()
        return self

    def _answer(self, reply):
        def answer(request, context):
            if dict(context.invocation_metadata()).get("authorization") != f"Bearer {KEY}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "the call has no key that the server knows")
            return reply()

        return answer

    def __exit__(self, *exception):
        self.server.stop(None).wait()


class KeysTest(PageTest):
    def setUp(self):
        pass

    def test_a_server_with_keys_is_asked_with_the_key_that_is_typed(self):
        browser = self.browser
        with ServerWithKeys() as server, Gateway(server.target) as gateway:
            self.open(gateway)
            for wrong in (None, "another-key"):
                if wrong:
                    browser.fill("#key", wrong)
                    browser.key("Enter")
                browser.await_js("!document.querySelector('#key-form').hidden && document.querySelector('#key').value === ''")
                self.await_problem("#problem", "the call has no key that the server knows")
                self.await_text("#connection", "a key is needed")
            browser.fill("#key", KEY)
            browser.click("#key-form button")
            self.await_problem("#problem", "The server has no models.")
            self.assertTrue(browser.js("document.querySelector('#key-form').hidden"))
            kept = browser.js("[localStorage.length, sessionStorage.length, document.cookie, document.querySelector('#key').value]")
            self.assertEqual(kept, [0, 0, "", ""])


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
