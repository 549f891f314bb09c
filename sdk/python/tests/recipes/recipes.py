"""Runs the recipes of docs/adapters.md as they stand there, with scripted models."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import countersign
from countersign.testing import FakeService
from server import Server

GUIDE = (Path(__file__).parents[4] / "docs" / "adapters.md").read_text("utf-8")
CALL = ("pay", {"invoice": 7, "amount_usd": 6000.0})
ANSWER = "all done"


class Bank:
    """What the tool does, and what else happens at that moment."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.then: Callable[[], None] = lambda: None

    def pay(self, invoice: int, amount_usd: float) -> str:
        assert amount_usd == CALL[1]["amount_usd"]
        self.paid.append(invoice)
        self.then()
        return f"invoice {invoice} is paid"


def recipe(title: str) -> str:
    """The program under a heading of the guide."""
    found = re.search(rf"### {re.escape(title)}\n.*?```python\n(.*?)```", GUIDE, re.DOTALL)
    assert found, title
    return found[1]


class Recipe:
    """One framework's cases. ``make`` makes a model that calls tools as it is told, answers
    ``ANSWER`` at the end, and notes in ``seen`` what it is sent."""

    def __init__(self, title: str, make: Callable[[list[tuple[str, Any]]], Any]) -> None:
        self._source = recipe(title)
        self._make = make

    def run(self, bank: Bank, calls: int = 1, tell: bool = False) -> tuple[str, str]:
        """What the agent answers, and all that its model saw."""
        source = self._source
        if tell:
            told = source.replace(
                "@countersign.governed\n", '@countersign.governed(on_denial="tell_model")\n'
            )
            assert told != source
            source = told
        # Some frameworks read a tool's source.
        path = Path(inspect.getfile(type(self))).parent / "program.py"
        names: dict[str, Any] = {"bank": bank, "__name__": "program"}
        linecache.cache[str(path)] = (len(source), None, source.splitlines(True), str(path))
        exec(compile(source, str(path), "exec"), names)
        model = self._make([CALL] * calls)
        result = names["run"](model)
        answer = asyncio.run(result) if inspect.iscoroutine(result) else result
        return str(answer), str(model.seen)

    # -- the cases -------------------------------------------------------------------------

    def allow(self, server: Server) -> None:
        """On the real service: recorded, asked, approved, carried out once, outcome recorded."""
        done = threading.Event()

        def on_wait(progress: countersign.ApprovalProgress) -> None:
            if progress.waiting and not done.is_set():
                done.set()
                path = f"/v1/approvals/{progress.approval_id}/approve"
                threading.Thread(target=server.post, args=(path,)).start()

        key = server.post("/v1/api-keys", {"name": "recipe", "role": "agent"})["key"]
        countersign.init(key, backend_url=server.url, on_wait=on_wait)
        bank = Bank()
        answer, seen = self.run(bank)
        assert ANSWER in answer
        assert "invoice 7 is paid" in seen
        assert bank.paid == [7]
        chain = server.get("/v1/chains?limit=1")["data"][0]
        (event,) = server.events(chain["id"])
        assert chain["status"] == "completed"
        assert (event["action_name"], event["payload"]) == CALL
        assert event["outcome"]["outcome"] == "succeeded"

    def deny(self, fake: FakeService) -> None:
        """The body does not run, and the denial surfaces whatever the agent answered."""
        countersign.init(**fake.settings())
        bank = Bank()
        fake.script("deny", decision_reason="over budget")
        with pytest.raises(countersign.ActionDeniedError, match="over budget"):
            self.run(bank)
        assert bank.paid == []
        assert len(fake.events) == 1
        assert fake.chains[0]["status"] == "failed"

    def tell_model(self, fake: FakeService) -> None:
        """The model gets the true reason as the tool's result, and the run goes on."""
        countersign.init(**fake.settings())
        bank = Bank()
        fake.script("deny", decision_reason="over budget")
        answer, seen = self.run(bank, tell=True)
        assert ANSWER in answer
        assert "was denied: over budget" in seen
        assert bank.paid == []
        assert fake.chains[0]["status"] == "completed"

    def stop_midway(self, fake: FakeService) -> None:
        """The kill switch, thrown while the first tool runs: the second one does not run."""
        countersign.init(**fake.settings())
        bank = Bank()
        bank.then = fake.activate_kill_switch
        with pytest.raises(countersign.KillSwitchActiveError):
            self.run(bank, calls=2)
        assert bank.paid == [7]

    def service_down(self, fake: FakeService) -> None:
        """The service is gone while the first tool runs: the second one does not run."""
        countersign.init(**fake.settings())
        bank = Bank()
        bank.then = fake.go_offline
        with pytest.raises(countersign.BackendUnavailableError):
            self.run(bank, calls=2)
        assert bank.paid == [7]
        fake.come_back()


def cases(title: str, make: Callable[[list[tuple[str, Any]]], Any]) -> dict[str, Any]:
    """The tests of one framework, for its module's namespace."""
    it = Recipe(title, make)

    def test_allowed_and_recorded(server: Server) -> None:
        it.allow(server)

    def test_denied(fake: FakeService) -> None:
        it.deny(fake)

    def test_told_to_the_model(fake: FakeService) -> None:
        it.tell_model(fake)

    def test_stopped_midway(fake: FakeService) -> None:
        it.stop_midway(fake)

    def test_service_down(fake: FakeService) -> None:
        it.service_down(fake)

    tests = (
        test_allowed_and_recorded,
        test_denied,
        test_told_to_the_model,
        test_stopped_midway,
        test_service_down,
    )
    return {test.__name__: test for test in tests}
