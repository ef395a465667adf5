"""Laws of the playground's server: whom it answers, what it refuses, and that it works for nobody who is gone."""

import base64
import http.client
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import robustvit as rv
from robustvit.data.picture import encoded, sample_picture
from robustvit.data.preprocess import Preprocess
from robustvit.evaluation.one_picture import attack_picture
from robustvit.evaluation.picture_model import PictureModel
from robustvit.playground import jobs
from robustvit.playground.asked import ATTACKS, BODY, Asked
from robustvit.playground.maps import picture_maps
from robustvit.playground.server import LOOPBACK, Playground
from robustvit.threats import LpBall
from test_one_picture import Linear

PATIENCE = 60


class Gate(Linear):
    """Waits, from its fourth gradient on, until the test lets it go: an attack in the middle of its search."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0
        self.reached, self.open = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += x.requires_grad
        if self.passes > 3:
            self.reached.set()
            assert self.open.wait(PATIENCE)
        return super().forward(x)


@pytest.fixture
def serve() -> Iterator[Callable[..., Playground]]:
    servers: list[Playground] = []

    def begin(*modules: torch.nn.Module) -> Playground:
        models = [PictureModel(rv.resolve_model(module)) for module in modules or (Linear(),)]
        server = Playground(models, [f"model{place}" for place in range(len(models))])
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return server

    yield begin
    for server in servers:
        for model in server.models:
            getattr(model.module, "open", threading.Event()).set()
        server.stop()
        server.server_close()


def asked(**changes: Any) -> dict[str, Any]:
    usual = {"name": "sample:30", "models": [0], "norm": "inf", "eps": 8 / 255, "attack": "pgd", "steps": 5}
    return {**usual, "with_maps": False, **changes}


def post(server: Playground, body: dict[str, Any] | bytes, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=PATIENCE)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    usual = {"Origin": server.address.rstrip("/"), "Content-Type": "application/json"}
    connection.request("POST", "/attack", content, {**usual, **headers})
    return connection.getresponse()


def messages(answer: http.client.HTTPResponse) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.read().splitlines()]


def test_an_attack_is_what_the_command_makes(serve: Callable[..., Playground]) -> None:
    answer = messages(post(serve(), asked()))
    assert [one["kind"] for one in answer[:1] + answer[-2:]] == ["opening", "result", "end"]
    steps = [one for one in answer if one["kind"] == "step"]
    assert [one["steps"] for one in steps] == list(range(1, len(steps) + 1))
    result = answer[-2]
    clean = sample_picture("sample:30", Preprocess()).pixels
    made = attack_picture(Linear(), clean, "pgd-5", LpBall("inf", 8 / 255))
    assert base64.b64decode(result["adversarial"].partition(",")[2]) == encoded(made.adversarial)
    assert result["is_fooled"] == made.is_fooled
    assert result["command"] == "robustvit attack sample:30 --model model0 --attack pgd-5 --norm inf --eps 8/255"


def test_two_models_have_a_result_each(serve: Callable[..., Playground]) -> None:
    answer = messages(post(serve(Linear(0), Linear(1)), asked(models=[1, 0])))
    assert [one["model"] for one in answer if one["kind"] == "result"] == [1, 0]


def test_every_attack_of_the_page_runs_in_its_norms(serve: Callable[..., Playground]) -> None:
    server = serve()
    for name, choice in ATTACKS.items():
        for norm in choice.norms:
            answer = messages(post(server, asked(attack=name, norm=norm, eps=0.02, steps=2)))
            assert answer[-1] == {"kind": "end"}, (name, norm, answer[-1])


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"models": [7]}, 200, "there is no model 7"),
        ({"name": "sample:100"}, 200, "sample:0 to sample:99"),
        ({"name": "broken.png", "data": "bm90aGluZw=="}, 200, "broken.png: not a readable picture"),
        ({"name": "broken.png", "data": "***"}, 200, "not sent as base64"),
        ({"target": "unicorn"}, 200, "no class 'unicorn'"),
        ({"steps": 10**6}, 400, "steps"),
        ({"eps": -1}, 400, "eps"),
        ({"attack": "rm -rf"}, 400, "attack"),
        ({"more": 1}, 400, "more"),
        ({"eps": 2.0}, 200, "covers every image"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    serve: Callable[..., Playground], changes: dict[str, Any], status: int, text: str
) -> None:
    answer = post(serve(), asked(**changes))
    assert answer.status == status
    last = messages(answer)[-1]
    assert last["kind"] == "error"
    assert text in last["text"]


def test_other_hosts_and_other_pages_are_refused(serve: Callable[..., Playground]) -> None:
    server = serve()
    for headers in (
        {"Host": f"evil.example:{server.server_port}"},
        {"Host": LOOPBACK},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
    ):
        assert post(server, asked(), **headers).status == 403, headers
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=PATIENCE)
    connection.request("GET", "/", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 403
    connection = http.client.HTTPConnection("localhost", server.server_port, timeout=PATIENCE)
    connection.request("GET", "/")
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert server.server_address[0] == LOOPBACK


def test_a_body_beyond_the_bound_is_refused_before_it_is_read(serve: Callable[..., Playground]) -> None:
    server = serve()
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=PATIENCE)
    for length in (str(BODY + 1), "many", "-1", "²", "9" * 5000):
        connection.putrequest("POST", "/attack")
        connection.putheader("Origin", server.address.rstrip("/"))
        connection.putheader("Content-Length", length)
        connection.endheaders()  # nothing follows: an answer means that nothing was read
        answer = connection.getresponse()
        assert answer.status == 413
        assert "at most 16,777,216 bytes" in answer.read().decode()
        connection.close()
    chunked = post(server, b"0", **{"Transfer-Encoding": "chunked"})
    assert (chunked.status, "Content-Length" in chunked.read().decode()) == (411, True)


def test_one_attack_at_a_time_and_the_others_wait_in_order(
    serve: Callable[..., Playground], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "HEARTBEAT", 0.02)
    gate = Gate()
    server = serve(gate)
    first = post(server, asked(eps=0.0001))
    assert gate.reached.wait(PATIENCE)
    second = post(server, asked(attack="clean"))
    line = json.loads(second.readline())
    assert line == {"kind": "waiting", "before": 1}
    gate.open.set()
    assert messages(first)[-1] == {"kind": "end"}
    assert messages(second)[-1] == {"kind": "end"}


def test_an_attack_ends_when_its_page_is_gone(
    serve: Callable[..., Playground], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "HEARTBEAT", 0.02)
    gate = Gate()
    server = serve(gate)
    first = post(server, asked(eps=0.0001, steps=2000))
    assert gate.reached.wait(PATIENCE)
    first.close()
    gate.open.set()
    after = messages(post(server, asked(attack="clean")))  # its turn comes when the first one has given up
    assert after[-1] == {"kind": "end"}
    assert gate.passes < 1000


def test_a_server_that_stops_says_so(serve: Callable[..., Playground]) -> None:
    gate = Gate()
    server = serve(gate)
    answer = post(server, asked(eps=0.0001))
    assert gate.reached.wait(PATIENCE)
    threading.Thread(target=server.stop, daemon=True).start()
    assert server.stopping.wait(PATIENCE)
    gate.open.set()
    assert messages(answer)[-1] == {"kind": "error", "text": "the server was stopped"}


def test_a_model_that_fails_does_not_leave_the_page_waiting(serve: Callable[..., Playground], capsys: Any) -> None:
    class Failing(Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.requires_grad:
                raise RuntimeError("out of order")
            return super().forward(x)

    last = messages(post(serve(Failing()), asked()))[-1]
    assert last["kind"] == "error"
    assert "out of order" in last["text"]


def test_names_of_models_stay_text(serve: Callable[..., Playground]) -> None:
    server = serve()
    server.titles[0] = "</script><script>alert(1)</script>"
    assert b"</script><script>alert" not in server.page


def test_maps_are_pictures_of_the_size_that_the_model_gets() -> None:
    clean = sample_picture("sample:3", Preprocess()).pixels
    maps = picture_maps(rv.load_model("zoo:speedrun"), [clean, clean])
    assert set(maps) == {"attention, last block", "attention, all blocks", "EigenCAM"}
    assert {one.shape for several in maps.values() for one in several} == {(32, 32, 3)}
    assert picture_maps(Linear(), [clean]) == {}


def test_the_command_of_a_request_can_be_pasted() -> None:
    odd = Asked(**asked(name="my cat; rm.png", target="a b", norm="2", eps=0.5, attack="apgd-ce", steps=9))
    words = "--attack apgd-ce:steps=9 --norm 2 --eps 0.5 --target 'a b'"
    assert odd.command("zoo:speedrun") == f"robustvit attack 'my cat; rm.png' --model zoo:speedrun {words}"
    for name in ("-rf.png", "sample:3"):  # files of these names
        assert Asked(**asked(name=name, data="")).command("m").startswith(f"robustvit attack ./{name} --model m")
    assert odd.command("m", 64).endswith("--eps 0.5 --size 64 --target 'a b'")


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted() -> None:
    words = [sys.executable, "-m", "robustvit", "playground", "zoo:speedrun", "--port", "0", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            assert b"zoo:speedrun" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
