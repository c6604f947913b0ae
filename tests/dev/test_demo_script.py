"""The demo's model works out its report with the real tools, and says nothing that did not come out of them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import anthropic
import openai
import pytest

from ops.dev import demo_script
from ops.dev.demo_script import TASK, expected, numbers_in, write_workspace
from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.script import Call, Text
from orchestration.ports import ToolContext
from orchestration.tools.calculator import calculate
from orchestration.tools.clock import current_time
from orchestration.tools.definition import ToolError
from orchestration.tools.files import list_files, read_file, search_files, write_file
from orchestration.tools.toolbox import RegistryToolbox
from tests.support.provider import ScriptedProvider

Message: TypeAlias = Any
Use: TypeAlias = Callable[[str, dict[str, Any]], str]

SPECS = RegistryToolbox().specs(demo_script.TOOLS)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    write_workspace(tmp_path, seed=7)
    return tmp_path


def hands(workspace: Path) -> Use:
    """The real tools, used by hand."""
    ctx = ToolContext(UUID(int=1), UUID(int=2), "call", workspace, threading.Event())
    in_workspace = {f.__name__: f for f in (list_files, read_file, search_files, write_file)}
    others: dict[str, Callable[..., str]] = {"calculate": calculate, "current_time": current_time}

    def use(name: str, arguments: dict[str, Any]) -> str:
        try:
            return in_workspace[name](ctx, **arguments) if name in in_workspace else others[name](**arguments)
        except ToolError as error:
            return f"Error: {error}"

    return use


def iterate(messages: list[Message], use: Use, *, may_call_tools: bool = True) -> str | None:
    """One iteration: an answer of the policy and its tools, put into `messages`. Returns its last words, if they are."""
    body = {
        "model": "scripted-demo",
        "messages": messages,
        "tools": [{"type": "function", "function": {"name": s.name}} for s in SPECS],
        "tool_choice": "auto" if may_call_tools else "none",
    }
    said = demo_script.policy(Asked("openai", body, b""))
    words = "".join(p.text for p in said.parts if isinstance(p, Text))
    made = {f"call_{len(messages)}_{i}": p for i, p in enumerate(said.parts) if isinstance(p, Call)}
    if not made:
        messages.append({"role": "assistant", "content": words})
        return words
    functions = {i: {"name": c.name, "arguments": c.arguments} for i, c in made.items()}
    asked = [{"id": i, "type": "function", "function": f} for i, f in functions.items()]
    messages.append({"role": "assistant", "content": words, "tool_calls": asked})
    answers = {i: use(c.name, json.loads(c.arguments)) for i, c in made.items()}
    messages += [{"role": "tool", "tool_call_id": i, "content": answer} for i, answer in answers.items()]
    return None


def carry_on(messages: list[Message], use: Use, *, iterations: int = 40) -> str:
    """Iterate until the last words; the last iteration may call no tool."""
    for n in range(iterations):
        words = iterate(messages, use, may_call_tools=n < iterations - 1)
        if words is not None:
            return words
    raise AssertionError("it never came to an end")


def task() -> list[Message]:
    return [{"role": "system", "content": "Be careful."}, {"role": "user", "content": TASK}]


def calls_of(messages: list[Message]) -> list[list[str]]:
    return [[c["function"]["name"] for c in m["tool_calls"]] for m in messages if m.get("tool_calls")]


@pytest.mark.parametrize("seed", range(12))
def test_the_report_tells_the_true_numbers_of_the_files(tmp_path: Path, seed: int):
    write_workspace(tmp_path, seed=seed)

    words = carry_on(task(), hands(tmp_path))

    true = expected(tmp_path)
    assert numbers_in((tmp_path / "report.md").read_text()) == true
    for name in ("Net total", "Gross total", "Gross total in USD", "VAT", "Still open"):
        assert str(true[name]) in words


def test_the_work_takes_some_ten_iterations_and_every_tool(workspace: Path):
    messages = task()

    carry_on(messages, hands(workspace))

    made = calls_of(messages)
    assert 9 <= len(made) + 1 <= 12
    assert sum(len(c) > 1 for c in made) >= 4
    assert {name for names in made for name in names} == {spec.name for spec in SPECS}


def test_other_files_give_other_numbers_in_the_same_session(workspace: Path):
    messages = task()
    carry_on(messages, hands(workspace))
    before = numbers_in((workspace / "report.md").read_text())

    write_workspace(workspace, seed=8)
    messages.append({"role": "user", "content": TASK})
    carry_on(messages, hands(workspace))

    after = numbers_in((workspace / "report.md").read_text())
    assert after == expected(workspace)
    assert after != before


def test_the_numbers_are_the_calculators_not_the_models(workspace: Path):
    honest = hands(workspace)

    def use(name: str, arguments: dict[str, Any]) -> str:
        answer = honest(name, arguments)
        return str(Decimal(answer) + 1000) if name == "calculate" else answer

    carry_on(task(), use)

    reported, true = numbers_in((workspace / "report.md").read_text()), expected(workspace)
    assert reported["2026-01"] == true["2026-01"] + 1000
    assert reported["Net total"] == true["Net total"] + 4000


def test_a_tool_that_fails_once_is_asked_again(workspace: Path):
    honest = hands(workspace)
    failed: set[str] = set()

    def use(name: str, arguments: dict[str, Any]) -> str:
        key = f"{name}{arguments}"
        if key not in failed and name != "write_file":
            failed.add(key)
            return "Not run: the turn was interrupted before this call started."
        return honest(name, arguments)

    carry_on(task(), use)

    assert numbers_in((workspace / "report.md").read_text()) == expected(workspace)


def test_a_write_whose_outcome_is_unknown_is_checked_and_made_once_more(workspace: Path):
    honest = hands(workspace)
    writes: list[str] = []

    def use(name: str, arguments: dict[str, Any]) -> str:
        if name == "write_file":
            writes.append(arguments["path"])
            if len(writes) == 1:
                return "Outcome unknown: the worker was lost while this call was under way."
        return honest(name, arguments)

    carry_on(task(), use)

    assert writes == ["report.md", "report.md"]
    assert numbers_in((workspace / "report.md").read_text()) == expected(workspace)


def test_a_write_whose_outcome_is_unknown_but_good_is_not_made_again(workspace: Path):
    honest = hands(workspace)
    writes: list[str] = []

    def use(name: str, arguments: dict[str, Any]) -> str:
        answer = honest(name, arguments)
        if name == "write_file":
            writes.append(answer)
            return "Outcome unknown: the worker was lost while this call was under way."
        return answer

    carry_on(task(), use)

    assert len(writes) == 1


def test_a_steer_may_name_another_file(workspace: Path):
    messages, use = task(), hands(workspace)
    for _ in range(5):
        iterate(messages, use)

    messages.append({"role": "user", "content": "Please call it summary.md."})
    words = carry_on(messages, use)

    assert "summary.md" in words
    assert not (workspace / "report.md").exists()
    assert numbers_in((workspace / "summary.md").read_text()) == expected(workspace)


def test_without_tools_it_says_what_is_left_undone(workspace: Path):
    messages = task()

    words = carry_on(messages, hands(workspace), iterations=4)

    assert re.match(r"I could not finish: 7 calls are done, and I still had to look for invoices", words)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda w: (w / "terms.txt").unlink(), "list_files said"),
        (lambda w: (w / "terms.txt").write_text("VAT: none"), "I cannot read the terms"),
        (lambda w: [f.unlink() for f in (w / "invoices").iterdir()], "The folder is empty"),
        (lambda w: (w / "invoices" / "2026-02.csv").write_text("invoice,customer,hours,rate,status\nx,y\n"), "'x,y'"),
    ],
)
def test_what_it_cannot_read_it_says_and_writes_nothing(workspace: Path, harm: Callable[[Path], object], sentence: str):
    harm(workspace)

    words = carry_on(task(), hands(workspace))

    assert words.startswith("I could not finish the report")
    assert sentence in words
    assert not (workspace / "report.md").exists()


def test_it_works_through_the_openai_sdk_word_by_word(
    provider: ScriptedProvider, openai_client: openai.OpenAI, workspace: Path
):
    model = provider.script("demo", demo_script.policy)
    tools: list[Any] = [
        {"type": "function", "function": {"name": s.name, "description": s.description, "parameters": s.parameters}}
        for s in SPECS
    ]
    use, messages = hands(workspace), task()
    while messages[-1]["role"] != "assistant":
        whole = _added_up(
            openai_client.chat.completions.create(
                model=model,
                messages=messages,
                tools=tools,
                stream=True,
            )
        )
        messages.append(whole)
        for call in whole.get("tool_calls", []):
            answer = use(call["function"]["name"], json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer})

    assert numbers_in((workspace / "report.md").read_text()) == expected(workspace)
    assert str(expected(workspace)["Gross total"]) in messages[-1]["content"]


def _added_up(chunks: Any) -> Message:
    text, made = "", dict[int, Message]()
    for chunk in chunks:
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for part in delta.tool_calls or []:
            call = made.setdefault(
                part.index, {"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}}
            )
            call["function"]["name"] += part.function.name or ""
            call["function"]["arguments"] += part.function.arguments or ""
    return {"role": "assistant", "content": text} | ({"tool_calls": list(made.values())} if made else {})


def test_it_works_through_the_anthropic_sdk(
    provider: ScriptedProvider, anthropic_client: anthropic.Anthropic, workspace: Path
):
    model = provider.script("demo", demo_script.policy)
    tools: list[Any] = [{"name": s.name, "description": s.description, "input_schema": s.parameters} for s in SPECS]
    use = hands(workspace)
    messages: list[Any] = [{"role": "user", "content": TASK}]
    while messages[-1]["role"] == "user":
        with anthropic_client.messages.stream(model=model, max_tokens=1000, messages=messages, tools=tools) as stream:
            message = stream.get_final_message()
        messages.append({"role": "assistant", "content": [b.to_dict(mode="json") for b in message.content]})
        results = [
            {"type": "tool_result", "tool_use_id": b.id, "content": use(b.name, b.input)}
            for b in message.content
            if b.type == "tool_use"
        ]
        if results:
            messages.append({"role": "user", "content": results})

    assert numbers_in((workspace / "report.md").read_text()) == expected(workspace)
