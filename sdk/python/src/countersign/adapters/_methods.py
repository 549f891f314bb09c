"""What the methods of the frameworks' objects do, so that every one of them is governed.

A method that is named in none of these tables is taken for one that calls models or tools: it
is a run of its own. So the method of a new version, or of your own class, is governed before
anybody has looked at it.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["CALL_STYLES", "DERIVING", "PLAIN", "calling", "deriving", "methods_of"]

CALL_STYLES = frozenset(
    """invoke ainvoke stream astream transform atransform stream_events astream_events astream_log
    batch abatch batch_as_completed abatch_as_completed iter
    update_state aupdate_state bulk_update_state abulk_update_state""".split()
)
"""The ways of calling that are written out in ``_runnables.py``."""

DERIVING = frozenset(
    """as_tool assign bind bind_tools configurable_alternatives configurable_fields copy map
    model_copy partial pick pipe with_alisteners with_config with_fallbacks with_listeners
    with_retry with_structured_output with_types""".split()
)
"""Methods that make another object of this one. What they make is governed too."""

PLAIN = frozenset(
    """aclear_cache aget_graph aget_state aget_state_history aget_subgraphs append asdict
    attach_branch attach_edge attach_node clear_cache combine_embeddings config_schema
    create_outputs dict extend get_config_jsonschema get_context_jsonschema
    get_format_instructions get_graph get_input_jsonschema get_input_schema get_name
    get_num_tokens get_num_tokens_from_messages get_output_jsonschema get_output_schema
    get_prompts get_state get_state_history get_subgraphs get_token_ids json lookup_tool
    model_dump model_dump_json model_post_init prepare pretty_print pretty_repr
    prompt_length save save_agent template_is_valid to_json to_json_not_implemented validate
    validate_chains validate_llm_output validate_template validate_tools validate_variable_names
    add_documents aadd_documents aembed_documents aembed_query embed_documents embed_query
    aformat aformat_messages aformat_prompt format format_messages format_prompt""".split()
)
"""Methods that read, describe, format, or write what the caller gives. No model or tool of an
agent is called in them; what they do call has no callbacks that could be governed."""


_METHODS = (
    types.FunctionType,
    functools.partialmethod,
    functools.singledispatchmethod,
    type(functools.lru_cache(bool)),
)
"""What a class has that an object calls with itself. The last three are no functions."""


def methods_of(kind: type) -> Iterator[str]:
    """The public methods of a class, and ``__call__``."""
    for name in dir(kind):
        is_public = name == "__call__" or not name.startswith("_")
        if is_public and isinstance(inspect.getattr_static(kind, name), _METHODS):
            yield name


def deriving(name: str) -> Callable[..., Any]:
    """A method whose result is governed as a whole."""

    def derive(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._extended(self._original_method(name)(*args, **kwargs))

    return derive


def calling(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is a run of its own, whichever models and tools it calls."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await self._acalled(self._original_method(name), *args, **kwargs)

        return acall

    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        def aiterate(self: Any, *args: Any, **kwargs: Any) -> Any:
            # The configuration is not its parameter: it finds the callbacks by itself.
            return self._astreamed(
                lambda *_: self._original_method(name)(*args, **kwargs), None, None
            )

        return aiterate

    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def iterate(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self._streamed(
                lambda *_: self._original_method(name)(*args, **kwargs), None, None
            )

        return iterate

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._called(self._original_method(name), *args, **kwargs)

    return call
