"""Governs agents of the Claude Agent SDK.

::

    async for message in query(prompt="refund order 7", options=options, agent_name="clerk"):
        ...
    print(countersign.adapters.last_chain().receipt["receipt_number"])

Hooks: ``PreToolUse``, before every tool of the CLI: the built-in ones (``Bash``, ``Write``,
``Task``), those of subagents and those of MCP servers; ``PostToolUse`` and ``PostToolUseFailure``
for the outcome; ``can_use_tool`` and your own ``PreToolUse`` and ``PermissionRequest`` hooks, since
what they make of the input is recorded and decided again. The messages tell what the model used.

They cannot see model calls before they are made: only the usage is recorded, afterwards. Nor can
they see hooks of settings files that change a tool's input, what a shell command does in its turn,
or the type of a tool's error. Arguments are recorded as the CLI tells them, without defaults. The
CLI runs the tools in a process of its own, and is trusted to ask; the result of a tool that it did
not ask about ends the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from countersign._permit import Denied, OnDenial, Permit
from countersign._scope import entered
from countersign.adapters._agent_runs import (
    AgentAction,
    AgentRun,
    Governance,
    record_only,
    request_permit,
)
from countersign.adapters._outcomes import Ending, ending_of
from countersign.adapters._shared import missing_extra

try:
    import claude_agent_sdk as sdk
    from claude_agent_sdk import (
        AssistantMessage,
        ClaudeAgentOptions,
        HookMatcher,
        PermissionResultAllow,
        PermissionResultDeny,
        ToolResultBlock,
        UserMessage,
    )

    from countersign.adapters._claude_settings import with_hooks_on
except ImportError as error:
    raise missing_extra("claude-agent", error) from error

__all__ = ["GovernedClient", "query"]

_WAIT = 7 * 24 * 3600.0
"""Seconds: longer than an approval waits by default, and less than a timer of the CLI can hold."""
_CHAIN = "claude_agent_workflow"
_AGENT = "claude"


async def query(
    *,
    prompt: Any,
    options: ClaudeAgentOptions | None = None,
    transport: Any = None,
    chain_name: str = _CHAIN,
    metadata: Mapping[str, Any] | None = None,
    agent_name: str = _AGENT,
    on_denial: OnDenial = "raise",
) -> AsyncIterator[Any]:
    """``claude_agent_sdk.query`` as a governed run.

    The first denial is raised from the loop that reads the messages, and ends the CLI. With
    ``on_denial="tell_model"`` the denial of a tool call is the tool's result, and the run goes on.
    """
    async with Governance(chain_name, metadata, on_denial).opened(agent_name) as run:
        hooks = _Hooks(run)
        messages: Any = sdk.query(
            prompt=prompt, options=hooks.added_to(options), transport=transport
        )
        try:
            while True:
                with entered(run):
                    try:
                        message = await messages.__anext__()
                    except StopAsyncIteration:
                        break
                await hooks.note(message)
                run.check()
                yield message
        finally:
            await messages.aclose()


class GovernedClient(sdk.ClaudeSDKClient):
    """A ``ClaudeSDKClient`` whose session, from connecting to disconnecting, is one governed run.

    The first denial is raised by whatever is called next: reading messages, sending a prompt, or
    disconnecting.
    """

    def __init__(
        self,
        options: ClaudeAgentOptions | None = None,
        transport: Any = None,
        *,
        chain_name: str = _CHAIN,
        metadata: Mapping[str, Any] | None = None,
        agent_name: str = _AGENT,
        on_denial: OnDenial = "raise",
    ) -> None:
        super().__init__(options, transport)
        self._given = self.options
        self._governance = Governance(chain_name, metadata, on_denial)
        self._agent_name = agent_name
        self._opened: AbstractAsyncContextManager[AgentRun] | None = None
        self._hooks: _Hooks | None = None

    async def connect(self, prompt: Any = None) -> None:
        await self.disconnect()
        opened = self._governance.opened(self._agent_name)
        run = await opened.__aenter__()
        hooks = _Hooks(run)
        try:
            self.options = hooks.added_to(self._given)
            with entered(run):
                await super().connect(prompt)
        except BaseException as error:
            # Here, because a block that was not entered is not left either.
            await opened.__aexit__(type(error), error, error.__traceback__)
            raise
        self._opened, self._hooks = opened, hooks

    async def query(self, prompt: Any, session_id: str = "default") -> None:
        if self._hooks is not None:
            self._hooks.run.check()
        await super().query(prompt, session_id)

    async def receive_messages(self) -> AsyncIterator[Any]:
        async for message in super().receive_messages():
            if self._hooks is not None:
                await self._hooks.note(message)
                self._hooks.run.check()
            yield message
        if self._hooks is not None:
            self._hooks.run.check()

    async def disconnect(self) -> None:
        await self._leave(None)

    async def __aexit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> bool:
        await self._leave(exc_val)
        return False

    async def _leave(self, error: BaseException | None) -> None:
        opened, self._opened, self._hooks = self._opened, None, None
        try:
            await super().disconnect()
        finally:
            if opened is not None:
                kind = None if error is None else type(error)
                await opened.__aexit__(kind, error, error.__traceback__ if error else None)


class _Hooks:
    """The hooks of one run."""

    def __init__(self, run: AgentRun) -> None:
        self.run = run
        # By the call's id. One that is used again permits nothing: each use is recorded.
        self._permits: defaultdict[str, list[Permit]] = defaultdict(list)
        self._inputs: dict[str, Any] = {}
        self._known: set[str] = set()  # the calls that were asked about
        self._counted: set[str] = set()

    def added_to(self, options: ClaudeAgentOptions | None) -> ClaudeAgentOptions:
        """The options with our hooks beside those that are there."""
        options = with_hooks_on(options or ClaudeAgentOptions())
        hooks: dict[Any, list[HookMatcher]] = {k: list(v) for k, v in (options.hooks or {}).items()}
        for event, wrap in (
            ("PreToolUse", self._theirs),
            ("PermissionRequest", self._theirs_permitting),
        ):
            if event in hooks:
                hooks[event] = [
                    replace(matcher, hooks=[wrap(hook) for hook in matcher.hooks], timeout=_WAIT)
                    for matcher in hooks[event]
                ]
        ours = HookMatcher(hooks=[self._before], timeout=_WAIT, on_failure="block")
        hooks["PreToolUse"] = [ours, *hooks.get("PreToolUse", ())]
        for event in ("PostToolUse", "PostToolUseFailure"):
            hooks[event] = [HookMatcher(hooks=[self._after]), *hooks.get(event, ())]
        asked = self._asked(options.can_use_tool) if options.can_use_tool else None
        return replace(options, hooks=hooks, can_use_tool=asked)

    # -- before --------------------------------------------------------------------------

    async def _before(self, given: Any, call_id: str | None, context: Any) -> Any:
        self._known.add(call_id or "")
        denial = await self._decide(given, call_id, given.get("tool_input"))
        return {} if denial is None else self._refusal(denial)

    def _theirs(self, hook: Any) -> Any:
        """Your hook: what it makes of the input is recorded, since that is carried out."""

        async def wrapped(given: Any, call_id: str | None, context: Any) -> Any:
            output = await hook(given, call_id, context)
            changed = (output or {}).get("hookSpecificOutput", {}).get("updatedInput")
            if changed is None or changed == given.get("tool_input"):
                return output
            denial = await self._decide(given, call_id, changed)
            return output if denial is None else self._refusal(denial)

        return wrapped

    def _theirs_permitting(self, hook: Any) -> Any:
        """Your ``PermissionRequest`` hook, which can change the input of what it allows."""

        async def wrapped(given: Any, call_id: str | None, context: Any) -> Any:
            output = await hook(given, call_id, context)
            decision = (output or {}).get("hookSpecificOutput", {}).get("decision") or {}
            changed = decision.get("updatedInput")
            if changed is None or changed == given.get("tool_input"):
                return output
            denial = await self._decide(given, call_id, changed)
            if denial is None:
                return output
            ends = self.run.denial is not None
            refusal = {"behavior": "deny", "message": denial, "interrupt": ends}
            return {
                "hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": refusal}
            }

        return wrapped

    def _asked(self, can_use_tool: Any) -> Any:
        async def wrapped(name: str, given: Any, context: Any) -> Any:
            answer = await can_use_tool(name, given, context)
            if not isinstance(answer, PermissionResultAllow):
                return answer
            final = given if answer.updated_input is None else answer.updated_input
            call_id = context.tool_use_id
            if call_id is not None and self._inputs.pop(call_id, None) == final:
                return answer  # as it was recorded, by the hook before
            who = {"tool_name": name, "agent_id": context.agent_id}
            denial = await self._decide(who, call_id, final)
            if denial is None:
                return answer
            return PermissionResultDeny(message=denial, interrupt=self.run.denial is not None)

        return wrapped

    async def _decide(self, given: Any, call_id: str | None, arguments: Any) -> str | None:
        """Record a call. Returns why it must not be carried out. Never raises: what a hook raises
        does not keep the CLI from running the tool."""
        run = self.run
        try:
            name = str(given["tool_name"])
            payload = arguments if isinstance(arguments, Mapping) else {"input": arguments}
            permit = await request_permit(
                run, self._action_of(given, name, payload), tell_model=run.tell_model
            )
        except Exception as error:
            run.deny(error)
            return str(error)
        if isinstance(permit, Denied):
            return permit.text
        run.begin(permit)
        if call_id is not None:
            self._permits[call_id].append(permit)
            self._inputs[call_id] = arguments
        return None

    def _action_of(self, given: Any, name: str, payload: Mapping[str, Any]) -> AgentAction:
        run = self.run
        if given.get("agent_id"):  # inside of a subagent
            agent = str(given.get("agent_type") or given["agent_id"])
            return AgentAction(agent, name, payload, parent=run.agent)
        return AgentAction(run.agent, name, payload, parent=run.parent)

    def _refusal(self, text: str) -> dict[str, Any]:
        output: dict[str, Any] = {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": "deny",
                "permissionDecisionReason": text,
            }
        }
        if self.run.denial is not None:
            output |= {"continue_": False, "stopReason": text}
        return output

    # -- after ---------------------------------------------------------------------------

    async def _after(self, given: Any, call_id: str | None, context: Any) -> Any:
        self._inputs.pop(call_id or "", None)
        for permit in self._permits.pop(call_id or "", []):
            await self.run.end(permit, _ending(given))
        return {}

    async def note(self, message: Any) -> None:
        """Record what a model call took. The parts of one answer repeat it."""
        if isinstance(message, UserMessage) and isinstance(message.content, list):
            self._check_results(message.content)
        if not isinstance(message, AssistantMessage) or not message.usage:
            return
        if message.message_id is not None:
            if message.message_id in self._counted:
                return
            self._counted.add(message.message_id)
        usage = message.usage
        kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        took = sum(int(usage.get(kind) or 0) for kind in kinds)
        model = message.model or "model"
        action = AgentAction(self.run.agent, model, {}, "llm_call", self.run.parent)
        await record_only(self.run, action.usage(took, int(usage.get("output_tokens") or 0)))

    def _check_results(self, content: list[Any]) -> None:
        """End the run if a tool has run that the CLI did not ask about. What the CLI does not run
        at all, such as a tool that it does not have, it answers with an error."""
        for block in content:
            is_done = isinstance(block, ToolResultBlock) and not block.is_error
            if is_done and block.tool_use_id not in self._known:
                self.run.deny(RuntimeError(_NOT_ASKED))


_NOT_ASKED = (
    "the CLI has run a tool without asking the PreToolUse hook, so the run was ended; the action "
    "is not recorded. Look for a setting that turns the CLI's hooks off"
)


def _ending(given: Any) -> Ending:
    if given.get("hook_event_name") != "PostToolUseFailure":
        return ending_of(None)
    # Its error is a text, which could hold anything.
    return Ending("unknown", "interrupted") if given.get("is_interrupt") else Ending("failed")
