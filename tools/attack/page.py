"""The page of a running drive, in a browser, and what other pages and hostile clients may not do."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import socket
import time
import urllib.error
import urllib.request

from . import drive
from .cases import case
from .control import expect, parsed
from .drive import Writer
from .errors import Died, Hung, LeftOut
from .ledger import Ledger
from .server import Server, free_port, status

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAULT = '{ name = "late", what = "delay", span = "1 ms", every = 10 }'


def browser_tool():
    """tools/browser as a module."""
    loader = importlib.machinery.SourceFileLoader("browser_tool", str(ROOT / "tools/browser"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("browser_tool", loader))
    loader.exec_module(module)
    return module


def call(port, method, token=None, headers=(), **parameters):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode()
    known = {"Content-Type": "application/json", "X-Doorbell": "1", **dict(headers)}
    if token:
        known["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(f"http://127.0.0.1:{port}/rpc", body, known)
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.load(reply)


def until(what, check, patience=30.0):
    end = time.monotonic() + patience
    while not (found := check()):
        if time.monotonic() > end:
            raise Hung(what)
        time.sleep(0.1)
    return found


# Presses the button with these words, or fills and sends a form.
PRESS = """
const button = [...document.querySelectorAll('button')].find(one => one.textContent === arguments[0]);
button.click();
"""
SEND = """
const form = document.querySelector(`[data-form="${arguments[0]}"]`);
for (const [name, value] of Object.entries(arguments[1])) form.elements[name].value = value;
form.requestSubmit();
"""
TEXT = "return document.querySelector(arguments[0]).textContent;"


@case("page/browser", "the page in Chromium: its numbers, every button, light, dark and as wide as a phone")
def page(context):
    tool = browser_tool()
    port = free_port()
    server = Server(context.program, context.folder, "small-flash", "nbd",
                    ["medium.keep=everything", "medium.pace=modelled", "medium.flash.errors=profile"],
                    extra=["--http", f"127.0.0.1:{port}"])
    try:
        client = server.client()
        writer = Writer(client, Ledger(client.block_bytes, context.seed), context.rng, 2048)
        writer.run(500)
        try:
            browser = tool.Browser()
        except tool.Failed as error:
            raise LeftOut(str(error)) from error
        with browser:
            visit(context, browser, tool, port, writer)
        expect(context, server.wait(60.0), 0, "exit code after stop")
    finally:
        server.kill()


def visit(context, browser, tool, port, writer):
    url = f"http://127.0.0.1:{port}/"
    pictures = os.environ.get("DOORBELL_PICTURES")
    for name, width, height, colours in tool.VIEWS:
        browser.look(width, height, colours)
        browser.log("performance")
        browser.log("browser")
        browser.call("/url", {"url": url})
        end = time.monotonic() + (6.0 if pictures else 1.5)
        while time.monotonic() < end:
            writer.run(50)
        until("the page has no numbers", lambda: browser.script(TEXT, "#commands").startswith("commands"))
        context.row.tried += 1
        for complaint in browser.script(tool.LAYOUT) + browser.script(tool.CONTRAST):
            context.fail("wrong", f"{name}: {complaint}")
        events = [json.loads(entry["message"])["message"] for entry in browser.log("performance")]
        asked = {event["params"]["request"]["url"] for event in events
                 if event["method"] == "Network.requestWillBeSent"}
        elsewhere = {one for one in asked if not one.startswith(url)}
        expect(context, elsewhere, set(), f"{name}: requests elsewhere")
        messages = [entry["message"] for entry in browser.log("browser") if "favicon" not in entry["message"]]
        expect(context, messages, [], f"{name}: messages of the browser")
        if pictures:
            pathlib.Path(pictures).mkdir(parents=True, exist_ok=True)
            browser.picture(pathlib.Path(pictures) / f"page-{name}.png")
    writer.settle()
    # Nothing is under way: what the page shows is what the server counts.
    writes = call(port, "stats")["result"]["drives"][0]["commands"]["write"]["commands"]
    until(f"the page does not show {writes} writes",
          lambda: f"write{writes:,}" in browser.script(TEXT, "#commands"))
    expect(context, browser.script("return document.querySelectorAll('#dies div').length;"),
           len(call(port, "stats")["result"]["drives"][0]["dies"]), "dies")

    def drive_is(name, value):
        return until(f"{name} is not {value}",
                     lambda: call(port, "stats")["result"]["drives"][0][name] == value)

    for words, name, value in (("Pause", "paused", True), ("Resume", "paused", False),
                               ("Save", "paused", False), ("Cut power", "powered", False),
                               ("Restore power", "powered", True)):
        browser.script(PRESS, words)
        drive_is(name, value)
        method = {"Cut power": "power.cut", "Restore power": "power.restore"}.get(words, words.lower())
        until(f"the page does not say that {method} is done",
              lambda: browser.script(TEXT, "#said").startswith(f"{method}: "))
        context.row.tried += 1
    browser.script(SEND, "faults.inject", {"fault": FAULT})
    until("the fault is not on the page", lambda: "late: delay" in browser.script(TEXT, "#faults"))
    browser.script(PRESS, "Clear")
    until("the fault is still there", lambda: browser.script(TEXT, "#faults") == "")
    browser.script(SEND, "wear", {"years": "1", "cycles": "70000"})
    until("the wear is not on the page", lambda: "70,0" in browser.script(TEXT, "#dies"))
    browser.script(SEND, "timing.set", {"key": "channels", "value": "<b>2</b>"})
    until("the page does not say what is wrong",
          lambda: "timing.set: key: found" in browser.script(TEXT, "#said"))
    markup = browser.script("return document.querySelectorAll('#said b, #faults b').length;")
    expect(context, markup, 0, "markup of others")
    browser.script("window.confirm = () => true;")
    browser.script(PRESS, "Stop server")
    until("the page does not say that the server has stopped",
          lambda: "the server has stopped" in browser.script(TEXT, "#state"))
    context.row.tried += 5


@case("page/hostile", "other pages, names that point here, garbage and crowds at the page, and its token")
def hostile(context):
    port = free_port()
    server = Server(context.program, context.folder, "live", "nbd", extra=["--http", f"127.0.0.1:{port}"])
    host, ours = f"Host: 127.0.0.1:{port}", "X-Doorbell: 1"
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "pause"}'
    length = f"Content-Length: {len(body)}"
    try:
        client = server.client()
        post = "POST /rpc HTTP/1.1"
        for lines, expected in (
                ([post, host, length], 403),
                ([post, host, length, ours, "Origin: http://evil.example"], 403),
                ([post, host, length, ours, "Origin: null"], 403),
                ([post, "Host: evil.example", length, ours], 421),
                ([post, f"Host: evil.example:{port}", length, ours,
                  f"Origin: http://evil.example:{port}"], 421),
                ([post, length, ours], 400),
                (["OPTIONS /rpc HTTP/1.1", host, "Access-Control-Request-Headers: x-doorbell"], 405),
                (["GET /rpc HTTP/1.1", host, ours], 405),
                (["GET /other HTTP/1.1", host], 404),
                (["GET / HTTP/1.1", host], 200),
                (["GET / HTTP/1.1", "Host: evil.example"], 421)):
            expect(context, status(port, lines, body), expected, f"status of {lines}")
        paused = call(port, "stats")["result"]["drives"][0]["paused"]
        expect(context, paused, False, "paused by another site")
        forked = call(port, "fork", file=context.path("copy"))
        expect(context, forked["error"]["code"], -32601, "fork by the page")
        expect(context, os.path.exists(context.path("copy")), False, "a copy by the page")
        # Too long, not a length, a line without an end, or too late.
        for lines, more, expected in (
                ([post, host, ours, "Content-Length: 99999999999"], b"x", 413),
                ([post, host, ours, "Content-Length: -1"], b"", 400),
                (["x" * 20_000], b"", 431),
                ([post, host, ours, "Content-Length: 10"], b"short", 408)):
            what = f"status of {lines[0][:20]} {lines[-1][:40]}"
            expect(context, status(port, lines, more), expected, what)
        crowd = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(100)]
        for one in crowd[::3]:
            one.sendall(b"GET / HT")
        drive.write(client, 1, b"p" * client.block_bytes)
        powered = call(port, "stats")["result"]["drives"][0]["powered"]
        expect(context, powered, True, "an answer beside a crowd")
        with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as text:
            threads = int(next(line for line in text if line.startswith("Threads:")).split()[1])
        context.note(f"{threads} threads beside a crowd of 100")
        if threads > 40:
            context.fail("wrong", f"{threads} threads, expected a limit")
        for one in crowd:
            one.close()
        server.expect_alive()
    finally:
        server.kill()
    with_token(context)


def with_token(context):
    try:
        Server(context.program, context.folder, "live", "nbd", name="open",
               extra=["--http", f"0.0.0.0:{free_port()}"]).kill()
        context.fail("wrong", "served at an open address without a token")
    except Died as error:
        expect(context, "loopback" in str(error), True, f"an open address: {error}")
    port, metrics = free_port(), free_port()
    server = Server(context.program, context.folder, "live", "nbd", name="token",
                    extra=["--http", f"0.0.0.0:{port}", "--http-token", "secret",
                           "--metrics", f"127.0.0.1:{metrics}"])
    try:
        for token, code in ((None, 401), ("wrong", 401), ("secre", 401)):
            try:
                call(port, "stats", token)
                context.fail("wrong", f"answered with the token {token}")
            except urllib.error.HTTPError as error:
                expect(context, error.code, code, f"status with the token {token}")
        expect(context, "result" in call(port, "stats", "secret"), True, "an answer with the token")
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=20) as reply:
            parsed(reply.read().decode())
    finally:
        server.kill()
