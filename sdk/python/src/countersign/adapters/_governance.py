"""How the runs of a governed object begin and end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any, cast

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, patch_config

from countersign._action import new_key
from countersign.adapters._callbacks import Governor, apart_from_past, is_past
from countersign.adapters._langgraph_errors import CONTROL_FLOW, as_bubble_up, body_ending
from countersign.adapters._shared import Run, RunChain, SavedChain, opened_run, opened_run_async

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

    @contextmanager
    def opened(
        self, runnable: Any, config: Any, *, anew: bool = False
    ) -> Iterator[tuple[Governor, RunnableConfig]]:
        """A run of the object: its handler, and the configuration to call it with. What is done
        ``anew`` replays nothing, also where it goes on in the chain of an interrupted run."""
        with apart_from_past():
            chain = self._chain(self.unfinished(runnable, config), anew)
        with opened_run(chain, **_OPTIONS) as run:
            try:
                yield self._begun(run, config)
            except Exception as error:
                run.paused = self.is_pause(error)
                raise
            except BaseException:
                # Whoever consumed a stream left it, or something broke the call off.
                with suppress(Exception), apart_from_past():
                    run.paused = self.is_paused(runnable, config)
                raise
            with apart_from_past():
                run.paused = self.is_paused(runnable, config)

    @asynccontextmanager
    async def opened_async(
        self, runnable: Any, config: Any, *, anew: bool = False
    ) -> AsyncIterator[tuple[Governor, RunnableConfig]]:
        """:meth:`opened` on the running event loop."""
        with apart_from_past():
            chain = self._chain(await self.unfinished_async(runnable, config), anew)
        async with opened_run_async(chain, **_OPTIONS) as run:
            try:
                yield self._begun(run, config)
            except Exception as error:
                run.paused = self.is_pause(error)
                raise
            except BaseException:
                with suppress(Exception), apart_from_past():
                    run.paused = await self.is_paused_async(runnable, config)
                raise
            with apart_from_past():
                run.paused = await self.is_paused_async(runnable, config)

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
