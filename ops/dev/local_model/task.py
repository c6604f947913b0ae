"""The demo's task for the local model: questions of its size, one call of the calculator each, and the true numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable

TOOLS = ("calculator",)
QUESTIONS = {
    "A notebook costs 3.75 euros. What do 14 notebooks cost?": 52.5,
    "A school has 864 pupils in 36 classes. How many pupils are in each class?": 24,
    "A tank holds 5400 litres and 1875 litres have been used. How many litres are left?": 3525,
    "A printer prints 24 pages a minute. How many pages does it print in 45 minutes?": 1080,
    "What is 1234 times 5678?": 7_006_652,
}
TASK = " ".join(QUESTIONS)


def true_numbers_in(texts: Iterable[str]) -> int:
    """How many of the questions have their true number somewhere in `texts`."""
    numbers = {float(n) for text in texts for n in re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))}
    return sum(number in numbers for number in QUESTIONS.values())
