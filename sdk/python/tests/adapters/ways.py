"""Every way in which a runnable can be called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

Way = Callable[[Any, Any], Any]


def _invoke(it: Any, given: Any) -> Any:
    return it.invoke(given)


def _invoke_in_a_loop(it: Any, given: Any) -> Any:
    async def main() -> Any:
        return it.invoke(given)

    return asyncio.run(main())


def _stream(it: Any, given: Any) -> Any:
    return list(it.stream(given))


def _transform(it: Any, given: Any) -> Any:
    return list(it.transform(iter([given])))


def _batch(it: Any, given: Any) -> Any:
    return it.batch([given])[0]


def _batch_as_completed(it: Any, given: Any) -> Any:
    return list(it.batch_as_completed([given]))


def _ainvoke(it: Any, given: Any) -> Any:
    return asyncio.run(it.ainvoke(given))


def _abatch(it: Any, given: Any) -> Any:
    return asyncio.run(it.abatch([given]))


def _of(items: Callable[[Any, Any], Any]) -> Way:
    def way(it: Any, given: Any) -> Any:
        async def main() -> Any:
            return [item async for item in items(it, given)]

        return asyncio.run(main())

    return way


WAYS: dict[str, Way] = {
    "invoke": _invoke,
    "invoke in a loop": _invoke_in_a_loop,
    "stream": _stream,
    "transform": _transform,
    "batch": _batch,
    "batch_as_completed": _batch_as_completed,
    "ainvoke": _ainvoke,
    "abatch": _abatch,
    "abatch_as_completed": _of(lambda it, given: it.abatch_as_completed([given])),
    "astream": _of(lambda it, given: it.astream(given)),
    "astream_log": _of(lambda it, given: it.astream_log(given)),
    "astream_events": _of(lambda it, given: it.astream_events(given, version="v2")),
    "with_config": lambda it, given: it.with_config(tags=["t"]).invoke(given),
    "bind": lambda it, given: it.bind().invoke(given),
}
