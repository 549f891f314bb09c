"""How the runs of a governed object begin and end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack, nullcontext, suppress
from dataclasses import replace
from typing import Any, cast

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, patch_config

from countersign._action import new_key
from countersign.adapters._callbacks import Governor, apart_from_past, is_past
from countersign.adapters._langgraph_errors import CONTROL_FLOW, as_bubble_up, body_ending
from countersign.adapters._shared import Run, RunChain, SavedChain, opened_run

__all__ = ["Governance"]

_OPTIONS: dict[str, Any] = {
    "convert_error": as_bubble_up,
    "benign": CONTROL_FLOW,
    "ending": body_ending,
}


class Governance:
    """How the runs of one governed object are recorded."""

    def __init__(self, chain_name: str, metadata: Mapping[str, Any] | None, agent: str) -> None:
        self.chain_name = chain_name
        self.metadata = metadata
        self.agent = agent

    def opened(self, runnable: Any, config: Any, *, anew: bool = False) -> _Opened:
        """A run of the object: its handler, and the configuration to call it with. What is done
        ``anew`` replays nothing, also where it goes on in the chain of an interrupted run."""
        return _Opened(self, runnable, config, anew)

    def extended(self, governed: Any) -> Governance:
        """How the runs of something are recorded that the governed object is a part of."""
        return Governance(self.chain_name, self.metadata, self.agent)

    def _chain(self, earlier: SavedChain | None, anew: bool) -> RunChain:
        if earlier is not None and anew:
            earlier = replace(earlier, branch=new_key())
        return RunChain(self.chain_name, metadata=self.metadata, earlier=earlier)

    def _begun(self, run: Run, config: Any) -> tuple[Governor, RunnableConfig]:
        governor = Governor(run, self.agent)
        with apart_from_past():
            config = _with_handler(config, governor)
            return governor, self.configured(config, cast("RunChain", run.chain))

    # -- what a framework that can be interrupted adds --------------------------------------

    def configured(self, config: RunnableConfig, chain: RunChain) -> RunnableConfig:
        """The configuration from which the run can be found again."""
        return config

    def remembering(self, runnable: Any, config: Any) -> Any:
        """The configuration of a write to the state of an interrupted run, which stays to be found
        after it."""
        return config

    async def remembering_async(self, runnable: Any, config: Any) -> Any:
        return config

    def unfinished(self, runnable: Any, config: Any) -> SavedChain | None:
        """The chain that an earlier, interrupted call left open."""
        return None

    async def unfinished_async(self, runnable: Any, config: Any) -> SavedChain | None:
        return None

    def is_paused(self, runnable: Any, config: Any) -> bool:
        """Whether the call that has just returned is to be resumed."""
        return False

    async def is_paused_async(self, runnable: Any, config: Any) -> bool:
        return False

    def is_pause(self, error: Exception) -> bool:
        """Whether the error interrupts the run to be resumed."""
        return False


class _Opened:
    """See :meth:`Governance.opened`. It is no generator: see :class:`opened_run`."""

    def __init__(self, governance: Governance, runnable: Any, config: Any, anew: bool) -> None:
        self._governance = governance
        self._runnable = runnable
        self._config = config
        self._anew = anew
        self._run: Run
        self._stack: ExitStack
        self._async_stack: AsyncExitStack

    def __enter__(self) -> tuple[Governor, RunnableConfig]:
        governance = self._governance
        with apart_from_past():
            earlier = governance.unfinished(self._runnable, self._config)
            chain = governance._chain(earlier, self._anew)
        with ExitStack() as stack:
            self._run = stack.enter_context(opened_run(chain, **_OPTIONS))
            stack.push(self._learn_pause)
            begun = governance._begun(self._run, self._config)
            self._stack = stack.pop_all()
        return begun

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    async def __aenter__(self) -> tuple[Governor, RunnableConfig]:
        governance = self._governance
        with apart_from_past():
            earlier = await governance.unfinished_async(self._runnable, self._config)
            chain = governance._chain(earlier, self._anew)
        async with AsyncExitStack() as stack:
            self._run = await stack.enter_async_context(opened_run(chain, **_OPTIONS))
            stack.push_async_exit(self._learn_pause_async)
            begun = governance._begun(self._run, self._config)
            self._async_stack = stack.pop_all()
        return begun

    async def __aexit__(self, *raised: Any) -> None:
        await self._async_stack.__aexit__(*raised)

    def _learn_pause(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self._run.paused = self._governance.is_pause(error)
        elif error is None:
            self._run.paused = self._is_paused()
        else:
            # Whoever consumed a stream left it, or something broke the call off.
            self._run.find_pause = self._is_paused

    def _is_paused(self) -> bool:
        with apart_from_past():
            return self._governance.is_paused(self._runnable, self._config)

    async def _learn_pause_async(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, Exception):
            self._run.paused = self._governance.is_pause(error)
            return
        with nullcontext() if error is None else suppress(Exception), apart_from_past():
            self._run.paused = await self._governance.is_paused_async(self._runnable, self._config)


def _with_handler(config: Any, governor: Governor) -> RunnableConfig:
    """The configuration with the handler among its callbacks."""
    config = ensure_config(config)
    callbacks = config.get("callbacks")
    if callbacks is None:
        return patch_config(config, callbacks=[governor])  # type: ignore[arg-type]
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        for handler in filter(is_past, tuple(manager.handlers)):
            manager.remove_handler(handler)
        if not all(handler.run_inline for handler in manager.handlers):
            governor.make_way()
        manager.add_handler(governor, inherit=True)
        return patch_config(config, callbacks=manager)
    kept = [handler for handler in callbacks if not is_past(handler)]
    if not all(handler.run_inline for handler in kept):
        governor.make_way()
    return patch_config(config, callbacks=[*kept, governor])  # type: ignore[arg-type]
