"""The server of the playground: Python's own, on loopback, for one person.

Three addresses need no framework: with `http.server` the playground works in every installation, and has no further
packages whose versions must fit. It refuses requests for another host name (DNS rebinding), requests that another site
sends (Origin), and bodies beyond a bound before it reads them.
"""

import json
import threading
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from pydantic import ValidationError

from robustvit.core.component import explain
from robustvit.core.errors import UserError
from robustvit.data.picture import MOST_BYTES
from robustvit.evaluation.picture_model import PictureModel
from robustvit.playground.asked import ATTACKS, BODY, MOST_STEPS, Asked
from robustvit.playground.jobs import Queue, run
from robustvit.playground.page import page

LOOPBACK = "127.0.0.1"
SAMPLES = 100
PATIENCE = 30
"""Seconds that a client may take to send or receive."""
DIGITS = len(str(BODY))
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class StoppedError(Exception):
    """The server ends."""


class Playground(ThreadingHTTPServer):
    """Serves the page and attacks what it asks for."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, models: list[PictureModel], titles: list[str], port: int = 0) -> None:
        super().__init__((LOOPBACK, port), Handler)
        self.models, self.titles, self.queue = models, titles, Queue()
        self.stopping = threading.Event()

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"

    @cached_property
    def page(self) -> bytes:
        attacks = {name: one.__dict__ for name, one in ATTACKS.items() if name != "clean"}
        facts = {"models": self.titles, "attacks": attacks, "samples": SAMPLES, "most_steps": MOST_STEPS}
        return page(facts)

    def stop(self) -> None:
        """Pages that wait or watch get a message."""
        self.stopping.set()
        self.shutdown()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Playground
    timeout = PATIENCE
    server_version, sys_version = "robustvit", ""

    def do_GET(self) -> None:
        if not self._is_for_us():
            return
        if self.path == "/":
            self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif self.path == "/samples.png":
            content = resources.files("robustvit.data").joinpath("cifar10_sample.png").read_bytes()
            self._answer(HTTPStatus.OK, content, "image/png")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {self.path[:60]}")

    def do_POST(self) -> None:
        if not (self._is_for_us() and self._is_from_us()):
            return
        if self.path != "/attack":
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {self.path[:60]}")
            return
        size = self.headers.get("Content-Length", "")
        if not size:  # of a body in chunks
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "the request doesn't say its size (Content-Length)")
            return
        if not (size.isascii() and size.isdigit() and len(size) <= DIGITS) or int(size) > BODY:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a picture of at most {MOST_BYTES:,} bytes is read")
            return
        try:
            asked = Asked.model_validate_json(self.rfile.read(int(size)))
        except ValidationError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, explain(error, "request"))
            return
        self._stream(asked)

    def _stream(self, asked: Asked) -> None:
        """Messages, a line each, until the attack has ended or the page is gone."""
        self._begin(HTTPStatus.OK, "application/x-ndjson")
        try:
            with self.server.queue.turn(self._tell):
                run(asked, self.server.models, self.server.titles, self._tell)
        except (UserError, ValidationError) as error:
            text = str(error) if isinstance(error, UserError) else explain(error, "request")
            self._last({"kind": "error", "text": text})
        except StoppedError:
            self._last({"kind": "error", "text": "the server was stopped"})
        except (BrokenPipeError, ConnectionError, TimeoutError):
            self.close_connection = True  # the page is gone, and nobody waits for the attack
        except Exception as error:  # whatever a model raises: the page would wait forever
            self._last({"kind": "error", "text": f"the attack failed: {type(error).__name__}: {error}"[:500]})
            raise

    def _tell(self, message: dict[str, Any]) -> None:
        if self.server.stopping.is_set():
            raise StoppedError
        self._send(message)

    def _send(self, message: dict[str, Any]) -> None:
        self.wfile.write(json.dumps(message, allow_nan=False, default=float).encode() + b"\n")

    def _last(self, message: dict[str, Any]) -> None:
        try:
            self._send(message)
        except OSError:
            self.close_connection = True

    def _is_for_us(self) -> bool:
        """Whether the browser was asked for this very address, not for a name that somebody lets point here."""
        if self.headers.get("Host", "") in self._hosts():
            return True
        self._refuse(HTTPStatus.FORBIDDEN, f"this server answers at {self.server.address} alone")
        return False

    def _is_from_us(self) -> bool:
        """Whether the page that asks is ours; browsers name it with every POST."""
        if self.headers.get("Origin", "") in {f"http://{host}" for host in self._hosts()}:
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "only the page of this server may ask for an attack")
        return False

    def _hosts(self) -> set[str]:
        return {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}

    def _begin(self, status: HTTPStatus, kind: str, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def _answer(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self._begin(status, kind, len(content))
        self.wfile.write(content)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self.close_connection = True  # what it still sends is not read
        self._answer(status, json.dumps({"kind": "error", "text": text}).encode(), "application/json")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the page shows what happens."""
