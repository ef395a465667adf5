"""One attack at a time: the others wait in the order in which they were asked for, and end when their page is gone."""

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from robustvit.core.errors import UserError
from robustvit.data.picture import Picture, encoded
from robustvit.evaluation.one_picture import AttackedPicture, Seen, attack_picture
from robustvit.evaluation.picture_model import PictureModel
from robustvit.playground.asked import Asked
from robustvit.playground.maps import picture_maps

HEARTBEAT = 1.0
"""Seconds between messages to a page that waits; a page that is gone is noticed when one can't be sent."""
Send = Callable[[dict[str, Any]], None]
"""Sends a message to the page; raises if it is gone or the server stops."""


class Queue:
    """Whose turn it is."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[object] = []

    @contextmanager
    def turn(self, send: Send) -> Iterator[None]:
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
        try:
            while True:
                with self._changed:
                    before = self._waiting.index(ticket)
                    if before == 0:
                        break
                send({"kind": "waiting", "before": before})
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting[0] is ticket, HEARTBEAT)
            yield
        finally:
            with self._changed:
                self._waiting.remove(ticket)
                self._changed.notify_all()


def run(asked: Asked, models: list[PictureModel], titles: list[str], send: Send) -> None:
    """Attack the picture on each model that was asked for; results are messages."""
    for number in asked.models:
        if number >= len(models):
            raise UserError(f"there is no model {number}; reload the page")
    content = asked.content()
    for number in asked.models:
        model = models[number]
        send({"kind": "opening", "model": titles[number]})
        picture = model.picture(asked.name, content)
        target = model.class_number(asked.target, model.num_classes(picture)) if asked.target else None

        def show(seen: Seen, number: int = number) -> None:
            send({"kind": "step", "model": number, **seen.__dict__})

        label, suite, threat = model.known_label(picture), asked.suite, asked.threat
        made = attack_picture(model.module, picture.pixels, suite, threat, label=label, target=target, observe=show)
        send(_message(number, asked, model, titles[number], picture, made))
    send({"kind": "end"})


def _message(
    number: int, asked: Asked, model: PictureModel, title: str, picture: Picture, made: AttackedPicture
) -> dict[str, Any]:
    is_attacked = asked.attack != "clean"
    change, magnified = made.change()
    shown = [made.clean, made.adversarial] if is_attacked else [made.clean]
    maps = picture_maps(model.module, shown) if asked.with_maps else {}
    return {
        "kind": "result",
        "model": number,
        "title": title,
        "resized": picture.resized,
        "verdict": model.verdict(made) if is_attacked else "",
        "is_fooled": made.is_fooled,
        "before": model.top(made.before),
        "after": model.top(made.after) if is_attacked else [],
        "clean": _uri(made.clean),
        "change": _uri(change) if is_attacked else "",
        "magnified": magnified,
        "adversarial": _uri(made.adversarial) if is_attacked else "",
        "maps": {name: [_uri(one) for one in several] for name, several in maps.items()},
        "command": asked.command(title, model.size) if is_attacked else "",
    }


def _uri(pixels: np.ndarray) -> str:
    return f"data:image/png;base64,{base64.b64encode(encoded(pixels)).decode('ascii')}"
