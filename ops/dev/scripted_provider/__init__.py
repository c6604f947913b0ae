"""A model provider that says what a script says, over real HTTP, in the shapes of OpenAI (chat completions and responses)
and Anthropic.

It streams, counts tokens, breaks off, hangs and refuses malformed requests as the real ones do, so that the product
runs against it without knowing. Start it with `python -m ops.dev.scripted_provider`, or in a thread for tests.
"""
