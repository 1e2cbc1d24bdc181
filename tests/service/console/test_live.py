"""Live parts: made once for all who look, not sent again to those who have them, and cheap to ask for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import pytest
from tests.service.console.signed_in import signed_in

from lockstep.errors import UnavailableError
from lockstep.jobs.security.access import Scope
from lockstep.service.console import app as console_app
from lockstep.service.console import live
from lockstep.service.console.live import LivePart, LiveParts
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

FRESH_S = 1.0


def part(text: str) -> LivePart:
    return LivePart(content=text.encode(), status=200, etag=f'"{text}"')


@pytest.fixture
def fresh_parts() -> None:
    """Leaves the parts as they are, against the fixture of the other tests."""


class Maker:
    """Makes parts, and counts them."""

    def __init__(self, parts: LiveParts) -> None:
        self.parts = parts
        self.num_made = 0
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def make(self, before: LivePart | None) -> LivePart:
        self.num_made += 1
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return part(f"{self.num_made}")

    async def get(self) -> LivePart:
        return await self.parts.get("key", self.make, fresh_s=FRESH_S)


class Timers:
    """Calls functions when the test says that their time has come."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], object]]] = []

    def __call__(self, seconds: float, function: Callable[[], object]) -> None:
        self.waiting.append((seconds, function))

    def ring(self) -> None:
        for _, function in self.waiting:
            function()
        self.waiting.clear()


def test_readers_share_what_is_made_until_it_is_old_and_a_reader_who_leaves_ends_nothing() -> None:
    async def run() -> None:
        timers = Timers()
        maker = Maker(LiveParts(later=timers))
        readers = [asyncio.ensure_future(maker.get()) for _ in range(50)]
        await asyncio.sleep(0)
        readers[0].cancel()
        await asyncio.sleep(0)
        maker.may_end.set()
        found = await asyncio.gather(*readers, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert {made.content for made in found[1:] if isinstance(made, LivePart)} == {b"1"}
        assert (await maker.get()).content == b"1"
        assert [seconds for seconds, _ in timers.waiting] == [FRESH_S], "it is old that long after it was made"
        timers.ring()
        assert len(maker.parts) == 0, "what is old is not kept"
        assert (await maker.get()).content == b"2"

    asyncio.run(run())


def test_an_error_is_raised_to_all_who_wait_and_not_kept() -> None:
    async def run() -> None:
        maker = Maker(LiveParts())
        maker.error = UnavailableError("the database does not answer")
        maker.may_end.set()
        found = await asyncio.gather(*(maker.get() for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in found] == [UnavailableError] * 3
        assert (maker.num_made, len(maker.parts)) == (1, 0)
        maker.error = None
        assert (await maker.get()).content == b"2"

    asyncio.run(run())


@pytest.fixture
def readers(service: Served) -> Iterator[list[httpx.Client]]:
    """Three browsers: two of viewers of one project, one of the home's operator."""
    keys = [
        service.key(Scope.VIEWER, project="local", label="ann"),
        service.key(Scope.VIEWER, project="local", label="bob"),
        HOME_TOKEN,
    ]
    made = [httpx.Client(base_url=service.url, headers={"origin": service.url}, timeout=60) for _ in keys]
    for browser, key in zip(made, keys, strict=True):
        browser.post("/signin", data={"key": key})
    yield made
    for browser in made:
        browser.close()


def test_what_a_page_has_is_not_sent_again(readers: list[httpx.Client], bench: Bench) -> None:
    bench.create("j", "pass")
    first = readers[0].get("/projects/local/jobs/j/status")
    again = readers[0].get("/projects/local/jobs/j/status", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "csrf_token" not in first.text, "a part is the same for all who look at it"
    bench.step_until_over("j")
    changed = first
    while changed.text == first.text:  # what was made is used for a second
        changed = readers[0].get("/projects/local/jobs/j/status", headers={"if-none-match": "another"})
    assert "Succeeded" in changed.text
    assert changed.headers["etag"] != first.headers["etag"]


def test_those_who_may_see_the_same_share_a_part_and_others_do_not(
    readers: list[httpx.Client], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.create("j", "pass")
    num_made = 0
    part_of = console_app.LivePart.of

    def count(response: object, **options: object) -> LivePart:
        nonlocal num_made
        num_made += 1
        return part_of(response, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(console_app.LivePart, "of", count)
    ann, bob, operator = (browser.get("/projects/local/jobs/j/status").text for browser in readers)
    assert ann == bob
    assert ">Cancel<" not in ann
    assert ">Cancel<" in operator
    assert num_made == 2


def test_a_part_is_not_shown_after_the_reader_has_signed_out(readers: list[httpx.Client]) -> None:
    browser = readers[0]
    token = re.search(r'name="csrf_token" value="(\w+)"', browser.get("/jobs").text)
    assert token is not None
    assert browser.get("/jobs/table").status_code == 200
    kept = dict(browser.cookies)
    browser.post("/signout", data={"csrf_token": token[1]})
    browser.cookies.update(kept)
    late = browser.get("/jobs/table", headers={"hx-request": "true"})
    assert late.status_code == 401


def test_a_list_of_jobs_that_are_over_is_made_again_only_after_a_change(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_made = 0
    part_of = console_app.LivePart.of

    def count(response: object, **options: object) -> LivePart:
        nonlocal num_made
        num_made += 1
        return part_of(response, **options)  # pyright: ignore[reportArgumentType]

    parts = {path: (render, 0.0) for path, (render, _) in console_app.PARTS.items()}
    monkeypatch.setattr(console_app, "PARTS", parts)  # what was made is old at once
    monkeypatch.setattr(console_app.LivePart, "of", count)
    bench.create("first", "pass")
    bench.step_until_over("first")
    other = Served(bench)  # which reads what was changed above
    with closing(other), signed_in(other) as browser:

        def look(query: str = "") -> str:
            return browser.get(f"/jobs/table{query}").text

        shown = look()
        assert "first" in shown
        assert [look(), look(), num_made] == [shown, shown, 1]
        bench.create("second", "pass")
        for _ in range(2):  # a job that is not over takes longer and costs more at each look
            assert "Queued" in look()
        assert num_made == 3
        assert "first" in look("?filter=state:SUCCEEDED")
        look("?filter=state:SUCCEEDED")
        assert num_made == 4, "a list without it is not made again"
        uid = bench.store.get(project="local", job_id="first").uid
        assert bench.store.set_labels(uid, labels={"team": "vision"}, version=None)
        assert "first" in look("?filter=labels.team=vision")
        assert "first" in look("?filter=state:SUCCEEDED")
        assert num_made == 6
        values = {"training_input": {}, "labels": {}, "simulated": False, "outputs": {}}
        bench.store.create(project="elsewhere", job_id="third", **values)
        look("?filter=state:SUCCEEDED")
        assert num_made == 6, "another project's jobs do not matter"


def test_only_so_many_unchanged_parts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "NUM_STEADY_MAX", 2)
    before: list[LivePart | None] = []

    async def run() -> None:
        parts = LiveParts()

        async def make(kept: LivePart | None) -> LivePart:
            before.append(kept)
            return kept or LivePart(content=b"", status=200, etag='""', stamp=1)

        for key in ("a", "b", "a", "c", "a", "b"):
            await parts.get(key, make, fresh_s=0.0)
            await asyncio.sleep(0)
        assert len(parts) == 0

    asyncio.run(run())
    assert [kept is not None for kept in before] == [False, False, True, False, True, False]
