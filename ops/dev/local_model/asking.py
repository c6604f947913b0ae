"""What the model is asked for a request: the rules that the package's docstring tells, and nothing that does I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from ops.dev.scripted_provider.asked import Asked, AskedResult, Json, Said

CALCULATE = "calculate"
MOST_CHARS = 200

_NUMBER = r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,4})?"
_EXPRESSION: Json = {"type": "string", "pattern": f"^{_NUMBER} [-+*/] {_NUMBER}$"}
_SENTENCE: Json = {"grammar": rf"root ::= [^\n]{{1,{MOST_CHARS}}}"}

_TO_CALL = "Write the calculation that answers the question, with the numbers in the order of the text."
_EXPRESSIONS = {
    "What is 12 plus 30?": "12 + 30",
    "A ticket costs 9 euros. What do 8 tickets cost?": "9 * 8",
    "Of 250 seats, 40 are taken. How many are free?": "250 - 40",
    "90 apples are put into 6 boxes. How many are in each box?": "90 / 6",
    "A shop sells 12 lamps a day. How many does it sell in 30 days?": "12 * 30",
    "Mia ran 5.5 km and 3.2 km. How far did she run in all?": "5.5 + 3.2",
    "A pot holds 640 grams and 150 are gone. How many are left?": "640 - 150",
    "A meal of 72.60 is shared by 3 people. How much does each pay?": "72.60 / 3",
}
_TO_ANSWER = "Answer the question in one sentence with the result."
_SENTENCES = {
    ("Of 250 seats, 40 are taken. How many are free?", "250 - 40", "210"): "210 seats are free.",
    ("A ticket costs 9 euros. What do 8 tickets cost?", "9 * 8", "72"): "8 tickets cost 72 euros.",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to the model: what it reads, and the fields by which llama.cpp holds its answer to a grammar."""

    messages: Sequence[Json]
    held_to: Json


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request is answered: by the arguments of a call of `tool`, or, without one, by the answers to all asks."""

    tool: str | None
    asks: tuple[Ask, ...]


def plan(asked: Asked) -> Plan:
    """What is due now: a call, a sentence for each result, or a plain answer."""
    turn = _turn(asked.messages)
    questions = _questions(turn)
    results = [result for message in turn for result in message.results]
    tool, is_demanded = _tool(asked)
    to_compute = [q for q in questions if is_demanded or re.search(r"\d", q)]
    if tool is not None and (is_demanded or len(results) < len(to_compute)):
        question = to_compute[min(len(results), len(to_compute) - 1)]
        return Plan(tool["name"], (_to_call(tool, question),))
    if results and to_compute:
        # A question without a result of its own (no calls are allowed any more) gets none.
        return Plan(None, tuple(_to_answer(q, r) for q, r in zip(to_compute, results, strict=False)))
    return Plan(None, (Ask(_plain(asked), {}),))


def _turn(messages: tuple[Said, ...]) -> tuple[Said, ...]:
    """The messages since the last answer: since then the user waits."""
    answers = [i for i, m in enumerate(messages) if m.role == "assistant" and not m.calls]
    return messages[answers[-1] + 1 if answers else 0 :]


def _questions(turn: tuple[Said, ...]) -> list[str]:
    """What the user asks, each question with the sentences that lead to it. At least one."""
    words = [m.text for m in turn if m.role == "user"]
    questions = [q.strip() for text in words for q in re.findall(r"[^?]+\?", text)]
    return questions or [" ".join(words).strip()]


def _tool(asked: Asked) -> tuple[Json | None, bool]:
    """The tool that may be called, and whether the client demands it."""
    if not asked.may_call_tools:
        return None, False
    offered = [cast("Json", t["function"]) for t in cast("list[Json]", asked.body["tools"]) if "function" in t]
    choice: object = asked.body.get("tool_choice")
    if isinstance(choice, dict):
        wanted = cast("Json", choice)["function"]["name"]
        return next((t for t in offered if t["name"] == wanted), None), True
    known = next((t for t in offered if t["name"] == CALCULATE), None)
    if choice == "required":
        return known or next(iter(offered), None), True
    return known, False


def _to_call(tool: Json, question: str) -> Ask:
    schema: Json = dict(tool.get("parameters") or {"type": "object", "properties": {}})
    examples: dict[str, str] = {}
    system = f"Write the arguments for {tool['name']}: {tool.get('description', '')}"
    if tool["name"] == CALCULATE and "expression" in schema.get("properties", {}):
        schema["properties"] = {**schema["properties"], "expression": _EXPRESSION}
        examples = {q: json.dumps({"expression": e}) for q, e in _EXPRESSIONS.items()}
        system = _TO_CALL
    held_to = {"type": "json_schema", "json_schema": {"name": "arguments", "schema": schema}}
    return Ask(_chat(system, examples, question), {"response_format": held_to})


def _to_answer(question: str, result: AskedResult) -> Ask:
    examples = {_with_result(q, CALCULATE, e, r): sentence for (q, e, r), sentence in _SENTENCES.items()}
    arguments: Any = result.call.arguments
    said = cast("Json", arguments).get("expression") if isinstance(arguments, dict) else None
    words = _with_result(question, result.call.name, str(said or json.dumps(arguments)), result.text)
    return Ask(_chat(_TO_ANSWER, examples, words), _SENTENCE)


def _with_result(question: str, tool: str, asked: str, result: str) -> str:
    speaker = "The calculator" if tool == CALCULATE else tool
    return f"{question}\n\n{speaker} says: {asked} = {result}"


def _chat(system: str, examples: dict[str, str], question: str) -> list[Json]:
    shown = [
        {"role": role, "content": text}
        for pair in examples.items()
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    return [{"role": "system", "content": system}, *shown, {"role": "user", "content": question}]


def _plain(asked: Asked) -> list[Json]:
    """The whole conversation. The model's template knows no tools: their results are words of the user."""
    system = [{"role": "system", "content": asked.system}] if asked.system.strip() else []
    roles = {"assistant": "assistant"}
    said = [{"role": roles.get(m.role, "user"), "content": m.text} for m in asked.messages if m.text.strip()]
    return [*system, *said]
