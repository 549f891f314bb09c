"""The adapter for the Claude Agent SDK against the real service, with a stand-in for the CLI."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from claude_agent_runs import prepare
from claude_agent_scripts import Call, transport
from claude_agent_sdk import (
    ClaudeAgentOptions,
    HookMatcher,
    PermissionResultAllow,
    ResultMessage,
)
from office import Office
from waits import threads_of_waiting_runs

import countersign
from countersign.adapters import last_chain
from countersign.adapters.claude_agent import GovernedClient, query


class Bodies(list[Any]):
    def __call__(self, name: str, given: dict[str, Any]) -> str:
        self.append((name, given))
        if name.startswith("fail"):
            raise KeyError("secret")
        return "ok"


def run(calls: list[Call], bodies: Bodies, **options: Any) -> Any:
    """The transport after the run; what the run raised is raised."""
    cli = transport(calls, bodies)

    async def main() -> Any:
        async for message in query(prompt="go", transport=cli, agent_name="clerk", **options):
            if isinstance(message, ResultMessage):
                assert message.result == "done"
        return last_chain()

    chain = asyncio.run(main())
    return cli, chain


def test_the_chain_tells_who_did_what(office: Office) -> None:
    """Built-in tools are recorded under their names; a subagent has the agent as its parent; the
    usage of an answer is recorded once."""
    bodies = Bodies()
    calls = [
        Call("Bash", {"command": "ls"}, "t1"),
        Call("Read", {"path": "a"}, "t2", subagent="helper"),
        Call("fail_tool", {}, "t3"),
    ]
    _, chain = run(calls, bodies, chain_name="names")
    assert office.story(chain.id) == [
        "clerk: tool_call Bash",
        "helper: tool_call Read",
        "clerk: tool_call fail_tool",
        "clerk: llm_usage scripted-1",
    ]
    events = office.server.events(str(chain.id))
    assert [e.get("parent_agent_name") for e in events] == [None, "clerk", None, None]
    assert events[0]["payload"] == {"command": "ls"}
    assert events[3]["metadata"]["input_tokens"] == 10
    assert office.outcomes(chain.id) == [("succeeded", None), ("succeeded", None), ("failed", None)]
    assert office.receipt_is_valid(chain.receipt)


def test_a_denial_can_be_told_to_the_model(office: Office) -> None:
    """The tool's result is the true reason, the chain has the denial, and the run goes on."""
    bodies = Bodies()
    calls = [Call("denied_wipe", {}, "t1"), Call("write_note", {}, "t2")]
    cli, chain = run(calls, bodies, chain_name="told", on_denial="tell_model")
    assert [name for name, _ in bodies] == ["write_note"]
    assert "This is never done." in cli.cli.told[0]
    assert office.server.events(str(chain.id))[0]["status"] == "denied"
    assert chain.receipt is not None


def test_a_call_id_that_is_used_again_permits_nothing(office: Office) -> None:
    bodies = Bodies()
    calls = [Call("write_note", {"n": 1}, "same"), Call("denied_wipe", {"n": 1}, "same")]
    with pytest.raises(countersign.ActionDeniedError):
        run(calls, bodies, chain_name="same")
    assert bodies == [("write_note", {"n": 1})]


def test_what_your_hooks_make_of_the_input_is_decided(office: Office) -> None:
    """A hook, or can_use_tool, that changes the input makes another call of it: recorded, and
    decided, before it runs."""
    bodies = Bodies()

    async def doubles(given: Any, call_id: Any, context: Any) -> Any:
        changed = {"n": given["tool_input"]["n"] * 2}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": changed}}

    async def adds(name: str, given: Any, context: Any) -> Any:
        return PermissionResultAllow(updated_input={"n": given["n"] + 1})

    options = ClaudeAgentOptions(
        hooks={"PreToolUse": [HookMatcher(hooks=[doubles])]}, can_use_tool=adds
    )
    calls = [Call("write_note", {"n": 4}, "t1", asks=True)]
    _, chain = run(calls, bodies, options=options, chain_name="changed")
    assert bodies == [("write_note", {"n": 9})]
    recorded = [e["payload"] for e in office.server.events(str(chain.id))[:3]]
    assert recorded == [{"n": 4}, {"n": 8}, {"n": 9}]


def _allowing(changed: dict[str, Any]) -> ClaudeAgentOptions:
    """A ``PermissionRequest`` hook that allows a call with another input."""

    async def allows(given: Any, call_id: Any, context: Any) -> Any:
        decision = {"behavior": "allow", "updatedInput": changed}
        return {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}}

    return ClaudeAgentOptions(hooks={"PermissionRequest": [HookMatcher(hooks=[allows])]})


def test_what_a_permission_hook_makes_of_the_input_is_decided(office: Office) -> None:
    """A PermissionRequest hook that changes the input makes another call of it. One that leaves it
    as it is does not."""
    bodies = Bodies()
    calls = [
        Call("write_note", {"n": 4}, "t1", asks=True),
        Call("write_note", {"n": 5}, "t2", asks=True),
    ]
    _, chain = run(calls, bodies, options=_allowing({"n": 5}), chain_name="permitted")
    assert bodies == [("write_note", {"n": 5})] * 2
    recorded = [e["payload"] for e in office.server.events(str(chain.id))[:3]]
    assert recorded == [{"n": 4}, {"n": 5}, {"n": 5}]
    assert office.outcomes(chain.id) == [("succeeded", None)] * 3


@pytest.mark.parametrize("on_denial", ["raise", "tell_model"])
def test_what_a_permission_hook_makes_of_the_input_can_be_denied(
    office: Office, on_denial: str
) -> None:
    """The changed call does not run if it is denied, whatever the hook has allowed."""
    bodies = Bodies()
    call = Call("pay_invoice", {"amount_usd": 1}, asks=True)
    options = _allowing({"amount_usd": 9000})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            run, [call], bodies, options=options, chain_name="refused", on_denial=on_denial
        )
        office.decide("deny")
        if on_denial == "raise":
            with pytest.raises(countersign.ActionDeniedError):
                running.result(60)
        else:
            running.result(60)
    assert bodies == []


def test_can_use_tool_does_not_record_again_what_was_recorded(office: Office) -> None:
    async def allows(name: str, given: Any, context: Any) -> Any:
        return PermissionResultAllow()

    options = ClaudeAgentOptions(can_use_tool=allows)
    _, chain = run([Call("Bash", {"command": "ls"}, asks=True)], Bodies(), options=options)
    assert office.outcomes(chain.id) == [("succeeded", None)]


def test_a_hook_that_cannot_decide_keeps_the_tool_from_running(office: Office) -> None:
    """The CLI is told to block where the hook fails, and to wait as long as people take."""
    from countersign.adapters._agent_runs import Governance
    from countersign.adapters.claude_agent import _Hooks

    options = _Hooks(Governance("x").begin("clerk")).added_to(None)
    assert options.hooks is not None
    (ours,) = options.hooks["PreToolUse"]
    assert ours.on_failure == "block"
    assert ours.timeout is not None
    assert 24 * 3600 < ours.timeout < 2**31 / 1000


MINIMAL: dict[str, dict[str, Any]] = {
    "flag": {"extra_args": {"bare": None}},
    "environment": {"env": {"CLAUDE_CODE_SIMPLE": "1"}},
    "settings": {"settings": '{"env": {"CLAUDE_CODE_SIMPLE": "true"}}'},
    "file": {"settings": "mine.json"},
}


@pytest.mark.parametrize("options", MINIMAL.values(), ids=MINIMAL.keys())
def test_a_cli_without_hooks_is_refused(
    office: Office, tmp_path: Path, options: dict[str, Any]
) -> None:
    """In its minimal mode the CLI calls no hooks: it is not started in it."""
    (tmp_path / "mine.json").write_text(MINIMAL["settings"]["settings"])
    bodies = Bodies()
    with pytest.raises(countersign.ConfigurationError, match="calls no hooks"):
        given = ClaudeAgentOptions(cwd=tmp_path, **options)
        run([Call("Bash", {"command": "ls"})], bodies, options=given)
    assert bodies == []


def test_the_environment_of_the_process_counts_too(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CLI inherits it."""
    monkeypatch.setenv("CLAUDE_CODE_SIMPLE", "1")
    with pytest.raises(countersign.ConfigurationError, match="calls no hooks"):
        run([], Bodies())


def test_settings_files_cannot_turn_hooks_off(office: Office) -> None:
    """What the CLI is started with comes before the files of the user and the project. The settings
    that were given stay."""
    given = ClaudeAgentOptions(settings='{"model": "x", "env": {"A": "b"}}')
    client = GovernedClient(given, transport([], Bodies()), chain_name="settings")

    async def main() -> None:
        async with client:
            pass

    asyncio.run(main())
    assert json.loads(str(client.options.settings)) == {
        "model": "x",
        "env": {"A": "b", "CLAUDE_CODE_SIMPLE": "0"},
    }
    with pytest.raises(countersign.ConfigurationError, match="cannot be read"):
        run([], Bodies(), options=ClaudeAgentOptions(settings="missing.json"))


def test_a_tool_that_ran_unasked_ends_the_run(office: Office) -> None:
    """Whatever turned the CLI's hooks off: at the result of a tool that nobody was asked about,
    the run ends."""
    unasked = Call("Bash", {"command": "ls"}, "t1", unasked=True)
    with pytest.raises(RuntimeError, match="without asking the PreToolUse hook"):
        run([unasked], Bodies(), chain_name="unasked")
    (chain,) = office.chains("unasked")
    assert chain["status"] == "failed"


def test_a_client_is_one_run(office: Office) -> None:
    """Several prompts are one chain. A denial is raised by what is called next, and at the end."""
    bodies = Bodies()

    async def main() -> Any:
        client = GovernedClient(
            transport=transport([Call("write_note", {}, "t")], bodies), chain_name="session"
        )
        async with client:
            for _ in range(2):
                await client.query("go")
                assert [m async for m in client.receive_response()]
        return last_chain()

    chain = asyncio.run(main())
    assert chain.receipt is not None
    assert len(bodies) == 2
    assert office.outcomes(chain.id) == [("succeeded", None)] * 2

    async def swallowed() -> None:
        calls = [Call("denied_wipe", {}, "t")]
        async with GovernedClient(transport=transport(calls, bodies)) as client:
            await client.query("go")
            with pytest.raises(countersign.ActionDeniedError):
                [m async for m in client.receive_response()]

    with pytest.raises(countersign.ActionDeniedError):
        asyncio.run(swallowed())


def test_a_client_that_cannot_connect(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its chain has failed, although its block was never entered."""
    cli = transport([], Bodies())

    async def refuse() -> None:
        raise ConnectionError("no CLI")

    monkeypatch.setattr(cli, "connect", refuse)

    async def main() -> None:
        async with GovernedClient(transport=cli, chain_name="unconnected"):
            raise AssertionError("connected")

    with pytest.raises(ConnectionError):
        asyncio.run(main())
    assert [chain["status"] for chain in office.chains("unconnected")] == ["failed"]


def test_a_stream_that_is_left_early(office: Office) -> None:
    """Whoever has read enough has not failed: the chain is completed."""

    async def main() -> None:
        messages: Any = query(prompt="go", transport=transport([], Bodies()), chain_name="early")
        async for _ in messages:
            break
        await messages.aclose()

    asyncio.run(main())
    assert [c["status"] for c in office.chains("early")] == ["completed"]


# The SDK leaves pipes of a process open that it ends early, with and without an adapter.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
@pytest.mark.parametrize("command", ["ls", "denied"])
def test_a_cli_in_a_process_of_its_own(
    command: str, office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK's own transport, over the pipes of a process that stands in for the CLI."""
    note = tmp_path / "note"
    name = "Bash" if command == "ls" else "denied_bash"
    script = [{"name": name, "given": {"command": command}, "call_id": "t"}]
    note.with_suffix(".script").write_text(json.dumps(script))
    program = tmp_path / "claude"
    stand_in = Path(__file__).with_name("claude_agent_scripts.py")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stand_in}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("COUNTERSIGN_STAND_IN", str(note))
    options = ClaudeAgentOptions(cli_path=str(program))

    async def main() -> Any:
        denied = False
        try:
            async for _ in query(prompt="go", options=options, chain_name="process"):
                pass
        except countersign.ActionDeniedError:
            denied = True
        gc.collect()  # while the loop is there
        return denied, last_chain()

    denied, chain = asyncio.run(main())
    gc.collect()  # here, where it is known what the SDK leaves open
    assert denied is (command == "denied")
    if denied:
        assert not note.exists()
    else:
        assert note.read_text() == "Bash ls\n"
        assert office.outcomes(chain.id) == [("succeeded", None)]


def test_waiting_runs_hold_no_threads(office: Office) -> None:
    """Async runs that wait for people wait on their event loop."""
    runs, threads = threads_of_waiting_runs(office, prepare)
    assert threads < runs / 4
