"""The page at "/", used in headless Chromium: what it shows is what the server says to other clients."""

from __future__ import annotations

import json
import re

import pytest

from chromium import CHROMIUM, needs_chromium
from serving import PATIENCE, Server

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = needs_chromium
QUESTION = "Tell me a story."


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as tool:
        with tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]) as running:
            yield running


@pytest.fixture(scope="module")
def server(stories, net_package):
    with Server(f"stories={stories}", f"net={net_package}", "--rows", 2) as running:
        yield running


@pytest.fixture
def page(browser, server):
    """Loaded. Nothing may be asked of another host, and no script may fail."""
    context = browser.new_context()
    found = context.new_page()
    found.set_default_timeout(PATIENCE * 1e3)
    errors: list[str] = []
    found.on("pageerror", lambda error: errors.append(str(error)))
    found.on("request", lambda request: errors.append(request.url) if not request.url.startswith((here, "data:")) else None)
    here = f"http://127.0.0.1:{server.port}/"
    found.goto(here)
    playwright.expect(found.get_by_label("Model")).to_have_value("stories")
    yield found
    assert not errors
    context.close()


def setting(page, **fields: object) -> None:
    if not page.locator("details#settings").get_attribute("open") == "":
        page.get_by_text("Settings").first.click()
    for label, value in fields.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(str(value))


def ask(page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")


def answer(page, number: int = 1) -> str:
    """The text of an answer, once it is whole."""
    playwright.expect(page.locator("#log .note").nth(number - 1)).not_to_be_empty()
    return page.locator("#log .assistant").nth(number - 1).text_content()


def chat(server, *texts: str, **fields: object) -> dict:
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    system = fields.pop("system", None)
    messages = ([{"role": "system", "content": system}] if system else []) + messages
    (choice,) = server.good("/v1/chat/completions", model="stories", messages=messages, **fields)["choices"]
    return choice


def test_a_chat_of_two_turns(page, server):
    setting(page, Temperature=0, Most_tokens=20, System_message="Be kind.")
    same = {"temperature": 0, "max_tokens": 20, "system": "Be kind."}
    ask(page, QUESTION)
    first = answer(page)
    assert first == chat(server, QUESTION, **same)["message"]["content"]
    note = page.locator("#log .note").first.text_content()
    assert re.fullmatch(r"20 tokens, \d+\.\d per second, the first after \d+ ms; cut off", note)
    ask(page, "Then?")
    assert answer(page, 2) == chat(server, QUESTION, first, "Then?", **same)["message"]["content"]
    page.get_by_role("button", name="New chat").click()
    assert page.locator("#log li").count() == 0
    ask(page, "Then?")
    assert answer(page) == chat(server, "Then?", **same)["message"]["content"]


def test_seeds_and_top_p(page, server):
    setting(page, Temperature=0.9, Top_p=0.8, Seed=7, Most_tokens=20)
    ask(page, QUESTION)
    assert answer(page) == chat(server, QUESTION, temperature=0.9, top_p=0.8, seed=7, max_tokens=20)["message"]["content"]


def test_tokens_tell_how_likely_they_were(page, server):
    setting(page, Temperature=0, Most_tokens=12)
    ask(page, QUESTION)
    answer(page)
    expected = chat(server, QUESTION, temperature=0, max_tokens=12, logprobs=True, top_logprobs=4)["logprobs"]["content"]
    tokens = page.locator("#log .assistant .token")
    assert tokens.all_text_contents() == [entry["token"] for entry in expected]
    for i in (0, 5):
        tokens.nth(i).hover()
        lines = tokens.nth(i).get_attribute("title").split("\n")
        assert len(lines) == 4 and lines[0].startswith(json.dumps(expected[i]["token"]))
        assert all(re.fullmatch(r'".*"  \d+\.\d %', line) for line in lines)


def test_an_answer_is_stopped(page, server):
    stop, send = (page.get_by_role("button", name=name) for name in ("Stop", "Send"))
    page.evaluate("""() => {  // the stream is held after its first part, so that there is time to stop it
        const events = eventsOf;
        eventsOf = async function* (body) {
            let parts = 0;
            for await (const event of events(body)) {
                yield event;
                if (++parts === 3) await new Promise((resolve) => running.signal.addEventListener("abort", resolve));
            }
        };
    }""")
    ask(page, QUESTION)
    playwright.expect(page.locator("#log .assistant .token").first).to_be_visible()
    playwright.expect(send).to_be_hidden()
    stop.click()
    playwright.expect(page.locator("#log .note").first).to_contain_text("Stopped.")
    playwright.expect(send).to_be_visible()
    playwright.expect(stop).to_be_hidden()
    server.wait_for(lambda: server.gauge("vllm:num_requests_running") == 0)


def test_a_schema_and_a_wrong_one(page):
    setting(page, Temperature=0, JSON_schema_of_the_answer='{"enum": ["yes", "no"]}')
    ask(page, QUESTION)
    assert json.loads(answer(page)) in ("yes", "no")
    setting(page, JSON_schema_of_the_answer='{"type": "string", "contentEncoding": "base64"}')
    ask(page, QUESTION)
    note = page.locator("#log .note.error")
    playwright.expect(note).to_contain_text("contentEncoding")
    # What was refused is not part of the conversation.
    setting(page, JSON_schema_of_the_answer='{"enum": ["yes"]}')
    ask(page, QUESTION)
    assert json.loads(answer(page, 3)) == "yes"


def test_a_form_for_any_model(page, server):
    page.get_by_label("Model").select_option("net")
    name = server.get("/v2/models/net")[1]["inputs"][0]["name"]
    playwright.expect(page.get_by_label("Message", exact=True)).to_be_hidden()
    page.get_by_label(f"Sizes of {name}").fill("2, 4")
    page.get_by_label(f"Numbers of {name}").fill("1 2 3 4, 5 6 7 8")
    page.get_by_role("button", name="Run").click()
    playwright.expect(page.get_by_role("status")).to_contain_text(" ms")
    inputs = [{"name": name, "datatype": "FP32", "shape": [2, 4], "data": [1, 2, 3, 4, 5, 6, 7, 8]}]
    (out,) = server.good("/v2/models/net/infer", inputs=inputs)["outputs"]
    head, numbers = page.locator("#result").text_content().split("\n")
    assert head == f"{out['name']}: FP32 [2, 2]"
    assert [float(x) for x in numbers.split(", ")] == out["data"]
    page.get_by_label(f"Sizes of {name}").fill("2, 5")
    page.get_by_label(f"Numbers of {name}").fill("1")
    page.get_by_role("button", name="Run").click()
    playwright.expect(page.locator("#status.error")).not_to_be_empty()


def test_with_the_keyboard_alone(page):
    """In the order of the page, and everything has a name for those who do not see it."""
    names = []
    page.locator("body").press("Tab")
    for _ in range(5):
        names.append(page.evaluate("() => { const at = document.activeElement; return at.id || at.localName; }"))
        page.keyboard.press("Tab")
    assert names == ["model", "clear", "summary", "text", "go"]
    page.get_by_text("Settings").first.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("0")
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.type("5")
    page.get_by_label("Message", exact=True).focus()
    page.keyboard.type("Once")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("more")
    page.keyboard.press("Enter")
    assert answer(page)
    assert page.locator("#log .user").text_content() == "Once\nmore"
    assert page.evaluate("document.activeElement.id") == "text"
    log = page.get_by_role("list", name="Conversation")
    assert log.get_attribute("aria-live") == "polite"
    for control in page.locator("button:visible, input:visible, select:visible, textarea:visible").all():
        assert control.evaluate("(one) => one.labels?.[0]?.textContent.trim() || one.ariaLabel || one.textContent.trim()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(page, scheme):
    """Text stands out from what it is on: at least 4.5 to 1 (WCAG 2.2, 1.4.3)."""
    page.emulate_media(color_scheme=scheme)
    setting(page, Temperature=0, Most_tokens=3, JSON_schema_of_the_answer="{")
    ask(page, QUESTION)
    playwright.expect(page.locator("#log .note.error")).not_to_be_empty()
    back = 255 if scheme == "light" else 18  # Chromium's Canvas
    for place in ("body", "#log .user", "#log .note.error"):
        colour = page.locator(place).first.evaluate("(one) => getComputedStyle(one).color")
        assert contrast([float(x) for x in re.findall(r"[\d.]+", colour)[:3]], [back] * 3) >= 4.5, (place, colour)


def contrast(a: list[float], b: list[float]) -> float:
    """Of sRGB colours, 0 to 255, as WCAG defines it."""

    def luminance(colour: list[float]) -> float:
        linear = [x / 3294.6 if x <= 10.31 else ((x / 255 + 0.055) / 1.055) ** 2.4 for x in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_key_is_asked_for(browser, stories, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    with Server(f"stories={stories}", "--api-keys", keys) as server, browser.new_context() as context:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/")
        playwright.expect(page.locator("#status.error")).not_to_be_empty()
        setting(page, API_key="secret")
        page.get_by_label("API key").press("Tab")
        playwright.expect(page.get_by_label("Model")).to_have_value("stories")
        setting(page, Most_tokens=5)
        ask(page, QUESTION)
        assert answer(page)
