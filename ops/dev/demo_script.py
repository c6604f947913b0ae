"""What the demo's model does: it works out a small report from files, with tools, and cannot do it without them.

`policy` stands in for a model behind the scripted provider. It knows the task and nothing of the numbers: each request
is answered from the tool results in that request, so other files give another report, and a turn that goes on
elsewhere after a crash goes on with the same answers.

`write_workspace` makes the files, `expected` computes the true numbers on its own, `numbers_in` reads a report.
"""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from ops.dev.scripted_provider.asked import Asked, AskedResult
from ops.dev.scripted_provider.script import Reply, calls, reply

TASK = (
    "The folder invoices/ holds one CSV file for each month, and terms.txt says the VAT and the exchange rate. Work out "
    "what was invoiced in each month, what is still open, and the gross total in EUR and in USD. Use the calculator for "
    "every number, write the result to report.md, read it once more, and tell me the totals."
)
TOOLS = ("files", "calculator", "time")

_CUSTOMERS = ("Nordwind", "Alba & Sons", "Kestrel Ltd", "Atelier Morel", "Tidewater", "Quince Labs")
_MONTHS = ("2026-01", "2026-02", "2026-03")
_COLUMNS = ("invoice", "customer", "hours", "rate", "status")
_CENT = Decimal("0.01")
_TOKEN_CHARS = 4


def write_workspace(folder: Path, *, seed: int = 0) -> None:
    """Write the files that the task speaks of into `folder`; another seed makes other numbers."""
    rng = random.Random(seed)
    (folder / "invoices").mkdir(parents=True, exist_ok=True)
    for month in _MONTHS:
        with (folder / "invoices" / f"{month}.csv").open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(_COLUMNS)
            for n in range(rng.randint(3, 6)):
                hours, rate = rng.randint(2, 120) / 4, rng.randint(120, 300) / 2
                status = rng.choice(("paid", "paid", "open"))
                rows.writerow((f"R{month}-{n + 1:02}", rng.choice(_CUSTOMERS), f"{hours}", f"{rate:.2f}", status))
    vat, usd = rng.choice((7, 19, 20, 21)), rng.randint(10_000, 12_000)
    (folder / "terms.txt").write_text(f"VAT: {vat} %\nExchange rate: 1 EUR = {usd / 10_000:.4f} USD\n")


def expected(folder: Path) -> dict[str, Decimal]:
    """The numbers of a true report about `folder`, computed from its files without any of the demo's own code paths."""
    months: dict[str, Decimal] = {}
    still_open = Decimal(0)
    for path in sorted((folder / "invoices").glob("*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        amounts = [Decimal(r["hours"]) * Decimal(r["rate"]) for r in rows]
        months[path.stem] = sum(amounts, Decimal(0))
        still_open += sum((a for a, r in zip(amounts, rows, strict=True) if r["status"] == "open"), Decimal(0))
    first, second = (folder / "terms.txt").read_text().splitlines()
    net = sum(months.values(), Decimal(0))
    vat = net * Decimal(first.split()[1]) / 100
    true = months | {"Net total": net, "Still open": still_open, "VAT": vat, "Gross total": net + vat}
    true |= {"Gross total in USD": (net + vat) * Decimal(second.split()[-2]), "Open share in %": still_open / net * 100}
    return {name: value.quantize(_CENT, ROUND_HALF_UP) for name, value in true.items()}


def numbers_in(report: str) -> dict[str, Decimal]:
    """The table of a report: each row's name and number."""
    return {name: Decimal(value) for name, value in re.findall(r"^\| (.+?) \| (-?[\d.]+) \|$", report, re.MULTILINE)}


def policy(asked: Asked) -> Reply:
    """The next answer of the demo's model: the calls that it still needs, or its report on what it did."""
    notes = _Notes(asked)
    try:
        return reply(_work(notes), chunk_chars=_TOKEN_CHARS)
    except _Wanted as wanted:
        if asked.may_call_tools:
            made = ((w.tool, w.arguments) for w in wanted.wishes)
            return calls(*made, text=f"I'll {wanted.purpose}.", chunk_chars=_TOKEN_CHARS)
        return reply(f"I could not finish: {len(notes.results)} calls are done, and I still had to {wanted.purpose}.")
    except _GivenUp as given_up:
        return reply(f"I could not finish the report: {given_up}")


def _work(notes: _Notes) -> str:
    """The whole task from top to bottom. It stops at the first thing that is not in the results yet (`_Wanted`)."""
    _, now = notes.need("see what is here", _list(".", "invoices", "terms.txt"), _now())
    listing, terms = notes.need(
        "read the terms and see which months there are", _list("invoices", ".csv"), _read("terms.txt", "VAT")
    )
    vat, usd = _terms(terms)
    names = sorted(set(re.findall(r"[\w.-]+\.csv(?![\w.])", listing)))
    if not names:
        raise _GivenUp("the folder invoices/ holds no CSV file.")
    paths = [f"invoices/{name}" for name in names]
    files = notes.need(f"read {len(names)} months", *(_read(path, ",".join(_COLUMNS)) for path in paths))
    rows = [_rows(path, text) for path, text in zip(paths, files, strict=True)]
    (hits,) = notes.need("look for invoices that are still open", _open_in("invoices", rows))
    open_rows = _ROW.findall(hits)

    months = notes.compute("add up each month", *(_amounts(r) for r in rows))
    net, still_open = notes.compute(
        "add up the months, and what is still open", " + ".join(months), _amounts(open_rows)
    )
    (tax,) = notes.compute("compute the VAT", f"{net} * {vat} / 100")
    (gross,) = notes.compute("add the VAT", f"{net} + {tax}")
    dollars, share = notes.compute("convert, and compare", f"{gross} * {usd}", f"{still_open} / {net} * 100")

    table = dict(zip((name.removesuffix(".csv") for name in names), months, strict=True))
    table |= {"Net total": net, "Still open": still_open, "VAT": tax, "Gross total": gross}
    table |= {"Gross total in USD": dollars, "Open share in %": share}
    count = sum(len(r) for r in rows)
    written = _write_down(
        notes, f"{count} invoices from {len(names)} files, read on {now.strip()[:10]}. Amounts are in EUR.", table
    )
    return _tell(notes.report_name, count, len(open_rows), numbers_in(written))


def _write_down(notes: _Notes, headline: str, table: dict[str, str]) -> str:
    """Write the report and read it back. What counts is what stands in the file, not what the writing said."""
    lines = [f"| {name} | {_money(number)} |" for name, number in table.items()]
    report = "\n".join(["# Invoices", "", headline, "", "| What | Number |", "|---|---|", *lines, ""])
    path = notes.report_name
    for attempt in (1, 2):
        notes.need("write the report", _Wish("write_file", {"path": path, "content": report}), times=attempt)
        (written,) = notes.need("check what I wrote", _read(path), times=attempt)
        if report.strip() in written:
            return written
    raise _GivenUp(f"{path} does not hold what I wrote into it.")


def _tell(path: str, count: int, still_open: int, numbers: dict[str, Decimal]) -> str:
    return (
        f"I have written {path}. The {count} invoices come to {numbers['Net total']} EUR net, that is "
        f"{numbers['Gross total']} EUR or {numbers['Gross total in USD']} USD with {numbers['VAT']} EUR of VAT. "
        f"{still_open} of them are still open: {numbers['Still open']} EUR, {numbers['Open share in %']} % of the net "
        "total."
    )


# -- what the model knows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wish:
    """A call, and whether a text can be its result: tools also answer with errors, which look like any other text."""

    tool: str
    arguments: dict[str, Any]
    fits: Callable[[str], bool] = bool


class _Wanted(Exception):
    """Calls whose results are not there yet; `purpose` finishes the sentence "I want to …"."""

    def __init__(self, purpose: str, wishes: list[_Wish]) -> None:
        super().__init__(purpose)
        self.purpose = purpose
        self.wishes = wishes


class _GivenUp(Exception):
    """The work cannot go on; the text is a sentence for the user."""


class _Notes:
    """The results of one task: those after the user message that set it."""

    def __init__(self, asked: Asked) -> None:
        starts = [i for i, m in enumerate(asked.messages) if m.role == "user" and "invoices/" in m.text]
        since = asked.messages[starts[-1] if starts else 0 :]
        words = " ".join(m.text for m in since if m.role == "user")
        self.results: list[AskedResult] = [r for m in since for r in m.results]
        # The last file name that the user gave, so that a steer can change it on the way.
        self.report_name = (re.findall(r"[\w-]+\.md\b", words) or ["report.md"])[-1]

    def need(self, purpose: str, *wishes: _Wish, times: int = 1) -> list[str]:
        """The `times`-th result of each call that fits it.

        Raises _Wanted with the calls that lack one, _GivenUp when one was made once more in vain.
        """
        found: list[str] = []
        missing: list[_Wish] = []
        for wish in wishes:
            texts = [r.text for r in self.results if (r.call.name, r.call.arguments) == (wish.tool, wish.arguments)]
            fitting = [text for text in texts if wish.fits(text)]
            if len(fitting) >= times:
                found.append(fitting[times - 1])
            elif len(texts) > times:
                raise _GivenUp(f"{wish.tool} said {texts[-1][:200]!r}.")
            else:
                missing.append(wish)
        if missing:
            raise _Wanted(purpose, missing)
        return found

    def compute(self, purpose: str, *expressions: str) -> list[str]:
        """What the calculator made of each expression, as it wrote it."""
        wishes = [_Wish("calculate", {"expression": e}, lambda text: _number(text) is not None) for e in expressions]
        return [str(_number(text)) for text in self.need(purpose, *wishes)]


# -- how the model reads and writes -------------------------------------------------------------------------------

_ROW = re.compile(r"([\w-]+),([^,\n]+),([\d.]+),([\d.]+),(paid|open)\s*$", re.MULTILINE)
_NUMBER = re.compile(r"(?:.*=)?\s*(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*")


def _list(path: str, *names: str) -> _Wish:
    return _Wish("list_files", {"path": path}, lambda text: all(name in text for name in names))


def _read(path: str, beginning: str = "") -> _Wish:
    return _Wish("read_file", {"path": path}, lambda text: beginning in text)


def _now() -> _Wish:
    return _Wish("current_time", {"timezone": "UTC"}, lambda text: re.match(r"\s*\d{4}-\d{2}-\d{2}", text) is not None)


def _open_in(folder: str, rows: list[list[tuple[str, ...]]]) -> _Wish:
    """A search whose hits are as many as the files themselves have; fewer would make the sum of them wrong."""
    count = sum(row[-1] == "open" for file in rows for row in file)
    return _Wish("search_files", {"pattern": ",open$", "path": folder}, lambda text: len(_ROW.findall(text)) == count)


def _terms(text: str) -> tuple[str, str]:
    vat = re.search(r"VAT: ([\d.]+) %", text)
    usd = re.search(r"1 EUR = ([\d.]+) USD", text)
    if vat is None or usd is None:
        raise _GivenUp(f"I cannot read the terms: {text!r}.")
    return vat[1], usd[1]


def _rows(path: str, text: str) -> list[tuple[str, ...]]:
    """The invoices of a file. A line that cannot be read is not passed over: the totals would be wrong."""
    lines = [line for line in text.splitlines() if line.strip() and line != ",".join(_COLUMNS)]
    unread = [line for line in lines if not _ROW.fullmatch(line)]
    if unread:
        raise _GivenUp(f"{path} has a line that I cannot read: {unread[0]!r}.")
    return _ROW.findall(text)


def _amounts(rows: list[tuple[str, ...]]) -> str:
    return " + ".join(f"{hours} * {rate}" for _, _, hours, rate, _ in rows) or "0"


def _number(text: str) -> str | None:
    found = _NUMBER.fullmatch(text)
    return found[1] if found else None


def _money(number: str) -> str:
    """Rounded to cents, half up. The calculator's floats are put right first: 0.285 is no 0.28499999999999998."""
    return str(Decimal(number).quantize(Decimal("0.00000001")).quantize(_CENT, ROUND_HALF_UP))
