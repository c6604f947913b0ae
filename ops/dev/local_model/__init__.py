"""A real model on this machine's CPU, behind a server that speaks OpenAI chat completions.

The model is SmolLM2-135M-Instruct in llama.cpp, one thread; both come with the extra `local-model`. Its tokens are real:
it writes every word and every argument itself, and streaming, latency, usage and stopping are those of llama.cpp. But it
has 135 million parameters and cannot choose between a tool and an answer (it reaches for the calculator at "Good
morning!"), so the server in front of it does that part. What the server does for the model, all of it:

1. It decides what is due, from the conversation: for each question with numbers in it a call of `calculate`, one after
   another, if that tool is on offer; then the answer. A call that the client demands (`tool_choice`) is always due.
2. It splits the user's words at the question marks and shows the model one question at a time, without the rest of the
   conversation and without the system prompt, behind a few worked examples.
3. It makes a grammar out of the tool's JSON schema, narrowed for `calculate` to two numbers and a sign: what the model
   writes is the call's arguments, byte for byte. Which numbers and which sign is up to the model: about nine times in
   ten they are right.
4. It shows the model each result with its question and asks for one sentence of at most 200 characters, so that an
   answer always ends. Whether the sentence is true is up to the model, and at times it is not.

Anything else, such as words without a number, goes to the model with the whole conversation, as it is.

`python -m ops.dev.local_model` starts it.
"""

from __future__ import annotations

NAME = "smollm2-135m-instruct"

NOTE = (
    "This is SmolLM2, a real model of 135 million parameters on one thread of this CPU. It writes each expression for the "
    "calculator and each sentence of the answer itself. It is too small to choose between a tool and an answer: a server "
    "in front of it shows it one question at a time, holds it to an expression of two numbers, and says when to answer. "
    "So the calculator's numbers can be relied on, and the model's words cannot."
)
