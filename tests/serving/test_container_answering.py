"""The gateway to a server in a container: what it forwards and refuses, and when it says that the server is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from lockstep.errors import InvalidInputError, LockstepError, OverloadedError, RoutineError
from lockstep.serving import answers
from lockstep.serving.answering import ContainerServer, base, containers
from lockstep.serving.answering.containers import ContainerAnswering
from lockstep.serving.protocols.inference_paths import InferencePath, Verb

Handle = Callable[[web.Request], Awaitable[web.Response]]
PATH = InferencePath(model="m", version=None, verb=Verb.INFER)
BODY = b'{"instances": [[1, 2]], "parameters": {"top": 3}}'


async def healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok")


async def echo(request: web.Request) -> web.Response:
    return web.json_response({"predictions": [await request.text(), request.content_type]})


@asynccontextmanager
async def serving(*, predict: Handle = echo, health: Handle = healthy) -> AsyncIterator[ContainerServer]:
    """Runs a server as a container has it."""
    app = web.Application()
    app.add_routes([web.post("/v1/predict", predict), web.get("/alive", health)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield ContainerServer(url=f"http://{host}:{port}", predict_route="/v1/predict", health_route="/alive")
    finally:
        await runner.cleanup()


@asynccontextmanager
async def answering(*, max_open: int = 8, **handlers: Handle) -> AsyncIterator[ContainerAnswering]:
    async with serving(**handlers) as server, ContainerAnswering(server, max_open=max_open) as made:
        yield made


def ask(body: bytes = BODY, **handlers: Handle) -> bytes:
    async def exchange() -> bytes:
        async with answering(**handlers) as made:
            return (await made.answer(body)).body

    return asyncio.run(exchange())


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_request_reaches_the_container_as_it_is_and_its_answer_the_client() -> None:
    expected = web.json_response({"predictions": [BODY.decode(), "application/json"]})
    assert ask() == expected.body


@pytest.mark.parametrize(
    ("status", "body", "kind", "error", "message"),
    [
        (400, b"no  such\nfield", "text/plain", InvalidInputError, 'answered with status 400: "no such field"'),
        (404, b'{"error": "x"}', "application/json", InvalidInputError, r"status 404: .*error"),
        (429, b"", "text/plain", OverloadedError, "answered with status 429$"),
        (503, b"", "text/plain", OverloadedError, "answered with status 503$"),
        (500, b"<html>", "text/html", RoutineError, "answered with status 500$"),
        (302, b"", "text/plain", RoutineError, "answered with status 302$"),
        (200, b"<html>", "text/html", RoutineError, "Content-Type text/html"),
    ],
)
def test_other_answers_are_errors_that_say_what_the_container_said(
    status: int, body: bytes, kind: str, error: type[LockstepError], message: str
) -> None:
    async def say(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, content_type=kind, headers={"location": "/alive"})

    with pytest.raises(error, match=message):
        ask(predict=say)


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 1000)

    async def say(_: web.Request) -> web.Response:
        return web.json_response({"predictions": ["x" * 2000]})

    with pytest.raises(RoutineError, match="too long"):
        ask(predict=say)


def test_a_container_that_hangs_up_is_an_error() -> None:
    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    with pytest.raises(RoutineError, match="did not answer: ServerDisconnectedError"):
        ask(predict=hang_up)


def test_more_requests_than_allowed_are_rejected_and_a_client_that_gives_up_frees_its_place() -> None:
    async def check() -> None:
        release = asyncio.Event()

        async def slow(_: web.Request) -> web.Response:
            await release.wait()
            return web.json_response({"predictions": []})

        async with answering(predict=slow, max_open=1) as made:
            first = asyncio.create_task(made.answer(BODY))
            await wait_until(lambda: made.num_requests == 1)
            with pytest.raises(OverloadedError, match="1 at the same time"):
                await made.answer(BODY)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            release.set()
            assert (await made.answer(BODY)).body == b'{"predictions": []}'

    asyncio.run(check())


def test_it_is_ready_when_the_health_route_says_so_and_tells_why_it_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(containers, "HEALTH_INTERVAL_S", 0.01)
    said = iter(["loading", "loading", "warming up"])

    async def start(_: web.Request) -> web.Response:
        text = next(said, None)
        return web.Response(status=200 if text is None else 503, text=text)

    assert b"predictions" in ask(health=start)
    assert capsys.readouterr().err == (
        'its container is not ready: GET /alive says 503: "loading"\n'
        'its container is not ready: GET /alive says 503: "warming up"\n'
    )


def test_it_is_stuck_while_the_health_route_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(containers, "HEALTH_INTERVAL_S", 0.01)
    status = 200

    async def health(_: web.Request) -> web.Response:
        return web.Response(status=status)

    async def check() -> None:
        nonlocal status
        async with answering(health=health) as made:
            assert not made.is_stuck
            status = 500
            await wait_until(lambda: made.is_stuck)
            status = 200
            await wait_until(lambda: not made.is_stuck)

    asyncio.run(check())
    assert capsys.readouterr().err == "its container is not healthy: GET /alive says 500\n"


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_container_that_answers_nothing_is_stuck_sooner_if_it_has_no_request(
    monkeypatch: pytest.MonkeyPatch, gives_up: bool
) -> None:
    monkeypatch.setattr(containers, "HEALTH_INTERVAL_S", 0.01)
    monkeypatch.setattr(containers, "SILENT_S", 0.3)
    monkeypatch.setattr(base, "MAX_RUN_S", 1.5)

    async def check() -> None:
        answers = asyncio.Event()
        answers.set()

        async def when_it_answers(_: web.Request) -> web.Response:
            await answers.wait()
            return web.json_response({})

        loop = asyncio.get_running_loop()
        async with answering(predict=when_it_answers, health=when_it_answers) as made:
            answers.clear()
            began_s = loop.time()
            await wait_until(lambda: made.is_stuck)
            assert loop.time() - began_s < 1.4
            answers.set()
            await wait_until(lambda: not made.is_stuck)
            answers.clear()
            call = asyncio.create_task(made.answer(BODY))
            await wait_until(lambda: made.num_requests == 1)
            if gives_up:  # a server with one thread goes on to compute it
                call.cancel()
            began_s = loop.time()
            await wait_until(lambda: made.is_stuck)
            assert loop.time() - began_s > 1.0
            answers.set()
            await wait_until(lambda: not made.is_stuck)
            await asyncio.gather(call, return_exceptions=True)

    asyncio.run(check())


def test_tensors_are_refused() -> None:
    async def check() -> None:
        async with answering() as made:
            with pytest.raises(InvalidInputError, match="takes no tensors"):
                made.describe(PATH)
            with pytest.raises(InvalidInputError, match="takes no tensors"):
                await made.infer(b"{}", PATH, header_length=None)

    asyncio.run(check())
