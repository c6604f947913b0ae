"""A server of raw sockets that misbehaves as a test wants, and the bytes of an ordinary answer in every protocol."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from orchestration.providers.settings import Api

HEADERS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
PATIENCE_S = 20.0


class Peer:
    """One accepted connection, seen from the server."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._unread = b""
        self.saw_disconnect = threading.Event()
        self.is_over = threading.Event()

    def request(self) -> tuple[str, dict[str, str], bytes]:
        """The next request: its first line, its headers, its body."""
        while b"\r\n\r\n" not in self._unread:
            self._more()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", "0"))
        while len(self._unread) < size:
            self._more()
        body, self._unread = self._unread[:size], self._unread[size:]
        return first, headers, body

    def send(self, *parts: bytes) -> None:
        self.sock.sendall(b"".join(parts))

    def answer(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        """A whole answer, not streamed; `_` in a header's name stands for `-`."""
        lines = [f"HTTP/1.1 {status} Whatever", f"content-type: {kind}", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join(lines).encode(), b"\r\n\r\n", body)

    def hang_up(self) -> None:
        """A clean end (FIN)."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """An abortive end (RST)."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def wait_for_disconnect(self) -> None:
        """Return when the client has gone; what it still sends is dropped."""
        while self.sock.recv(65536):
            pass
        raise ConnectionAbortedError("the client has gone")

    def _more(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise ConnectionAbortedError("the client has gone")
        self._unread += data


class FaultServer:
    """Carries out `script` on every connection, each in a thread of its own."""

    def __init__(self, script: Callable[[Peer], None]) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.peers: list[Peer] = []
        self._has_peers = threading.Event()
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def first_peer(self) -> Peer:
        """The first connection, once it is accepted: on a busy machine, a call may be over before that."""
        assert self._has_peers.wait(PATIENCE_S), "nobody has connected"
        return self.peers[0]

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(PATIENCE_S)
        self._listener.close()
        for peer in self.peers:
            peer.is_over.set()
            with suppress(OSError):
                peer.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for peer in self.peers:
            peer.sock.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                sock, _ = self._listener.accept()
                sock.settimeout(PATIENCE_S)
                peer = Peer(sock)
                self.peers.append(peer)
                self._has_peers.set()
                thread = threading.Thread(target=self._serve, args=(peer,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, peer: Peer) -> None:
        try:
            self._script(peer)
            peer.wait_for_disconnect()
        except ConnectionError:
            peer.saw_disconnect.set()
        except OSError:
            peer.is_over.wait(PATIENCE_S)  # the script closed its socket itself, or the client's TLS is none


@contextmanager
def serving(script: Callable[[Peer], None]) -> Iterator[FaultServer]:
    server = FaultServer(script)
    try:
        yield server
    finally:
        server.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def chunks(events: list[bytes]) -> bytes:
    return b"".join(chunk(event) for event in events)


def event(api: Api, name: str, data: dict[str, Any]) -> bytes:
    """One event as the protocol names it: those of Chat Completions have no name."""
    text = json.dumps(data, ensure_ascii=False).encode()
    return b"data: %s\n\n" % text if api is Api.OPENAI_CHAT else b"event: %s\ndata: %s\n\n" % (name.encode(), text)


def opening(api: Api) -> list[bytes]:
    """The events before the first token."""
    if api is Api.OPENAI_CHAT:
        return [_delta({"role": "assistant", "content": ""})]
    if api is Api.OPENAI_RESPONSES:
        return [_response_event(kind, response=_response("in_progress")) for kind in ("created", "in_progress")]
    usage = {"input_tokens": 10, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "served", "content": [], "usage": usage}
    return [event(api, "message_start", {"type": "message_start", "message": message})]


def keep_alive(api: Api) -> bytes:
    if api is Api.OPENAI_CHAT:
        return b": still here\n\n"
    name = "keepalive" if api is Api.OPENAI_RESPONSES else "ping"
    return event(api, name, {"type": name})


def text(api: Api, *pieces: str, index: int = 0) -> list[bytes]:
    """A text, a token a piece."""
    if api is Api.OPENAI_CHAT:
        return [_delta({"content": piece}) for piece in pieces]
    if api is Api.OPENAI_RESPONSES:
        deltas = [
            _response_event("output_text.delta", output_index=index, content_index=0, delta=piece) for piece in pieces
        ]
        return _item(index, _message([]), deltas, _message([_spoken("".join(pieces))]))
    start = {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
    return [
        event(api, "content_block_start", start),
        *(_block_delta(index, {"type": "text_delta", "text": piece}) for piece in pieces),
        event(api, "content_block_stop", {"type": "content_block_stop", "index": index}),
    ]


def call(api: Api, call_id: str, name: str, *pieces: str, index: int = 1) -> list[bytes]:
    """A tool call, its arguments in pieces."""
    if api is Api.OPENAI_CHAT:
        at = index - 1
        head = {"index": at, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        rest = [{"tool_calls": [{"index": at, "function": {"arguments": piece}}]} for piece in pieces]
        return [_delta({"tool_calls": [head]}), *map(_delta, rest)]
    if api is Api.OPENAI_RESPONSES:
        item = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": name}
        kind = "function_call_arguments.delta"
        deltas = [_response_event(kind, output_index=index, delta=piece) for piece in pieces]
        return _item(index, {**item, "arguments": ""}, deltas, {**item, "arguments": "".join(pieces)})
    block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    start = {"type": "content_block_start", "index": index, "content_block": block}
    return [
        event(api, "content_block_start", start),
        *(_block_delta(index, {"type": "input_json_delta", "partial_json": piece}) for piece in pieces),
        event(api, "content_block_stop", {"type": "content_block_stop", "index": index}),
    ]


def ending(api: Api, reason: str = "stop") -> list[bytes]:
    """The end marker and what follows it."""
    if api is Api.OPENAI_CHAT:
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        last = {"model": "served", "choices": [], "usage": usage}
        return [_delta({}, reason), event(api, "", last), b"data: [DONE]\n\n"]
    if api is Api.OPENAI_RESPONSES:
        status = "incomplete" if reason == "length" else "completed"
        return [_response_event(status, response=_response(status))]
    stop = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}[reason]
    delta = {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 5}}
    return [event(api, "message_delta", delta), event(api, "message_stop", {"type": "message_stop"})]


def whole(api: Api, said: str = "Hello there") -> bytes:
    """A whole streamed answer, headers and end included."""
    return HEADERS + chunks([*opening(api), *text(api, said), *ending(api)]) + END


def document(api: Api, said: str = "Hello there") -> bytes:
    """The same answer as one JSON document."""
    if api is Api.OPENAI_CHAT:
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return json.dumps({"model": "served", "choices": [choice], "usage": usage}).encode()
    if api is Api.OPENAI_RESPONSES:
        return json.dumps(_response("completed", _message([_spoken(said)]))).encode()
    usage = {"input_tokens": 10, "output_tokens": 5}
    block = {"type": "text", "text": said}
    whole_message = {"type": "message", "role": "assistant", "model": "served", "content": [block], "usage": usage}
    return json.dumps({**whole_message, "stop_reason": "end_turn"}).encode()


def _delta(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event(Api.OPENAI_CHAT, "", {"model": "served", "choices": [choice]})


def _block_delta(index: int, delta: dict[str, Any]) -> bytes:
    data = {"type": "content_block_delta", "index": index, "delta": delta}
    return event(Api.ANTHROPIC, "content_block_delta", data)


def _response(status: str, *output: dict[str, Any]) -> dict[str, Any]:
    """A response. As the last word of a stream it leaves its items out, as some compatible servers do."""
    why = {"reason": "max_output_tokens"} if status == "incomplete" else None
    usage = None if status == "in_progress" else {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    head = {"id": "resp_1", "object": "response", "status": status, "model": "served", "error": None}
    return {**head, "incomplete_details": why, "output": list(output), "usage": usage}


def _response_event(kind: str, **data: Any) -> bytes:
    return event(Api.OPENAI_RESPONSES, f"response.{kind}", {"type": f"response.{kind}", **data})


def _item(index: int, begun: dict[str, Any], deltas: list[bytes], whole: dict[str, Any]) -> list[bytes]:
    """The events of one output item."""
    added = _response_event("output_item.added", output_index=index, item=begun)
    return [added, *deltas, _response_event("output_item.done", output_index=index, item=whole)]


def _message(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def _spoken(said: str) -> dict[str, Any]:
    return {"type": "output_text", "text": said, "annotations": []}
