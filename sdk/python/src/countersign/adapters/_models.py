"""What the frameworks say about a model call."""

from __future__ import annotations

from typing import Any

__all__ = ["message_of", "model_name_of", "tokens_of"]


def message_of(message: Any) -> list[Any]:
    # Not its id: that is another one after a replay. The fields are looked up by hand: pydantic
    # takes long to say that there is no attribute of a name.
    fields = vars(message)
    if "tool_calls" not in fields:
        fields = message.__pydantic_extra__ or {}
    return [message.type, message.content, fields.get("tool_calls")]


def model_name_of(serialized: Any, metadata: Any, given: dict[str, Any]) -> str:
    parameters = given.get("invocation_params") or {}
    found = (
        (metadata or {}).get("ls_model_name")
        or parameters.get("model")
        or parameters.get("model_name")
        or (serialized or {}).get("name")
        or given.get("name")
    )
    return str(found or "model")


def tokens_of(response: Any) -> tuple[str | None, int, int] | None:
    """Model, input and output tokens of an answer, where it says so."""
    given = getattr(response, "llm_output", None) or {}
    model = given.get("model_name")
    counts = given.get("token_usage") or {}
    total = [int(counts.get("prompt_tokens") or 0), int(counts.get("completion_tokens") or 0)]
    for generation in (g for batch in response.generations for g in batch):
        message = getattr(generation, "message", None)
        usage = getattr(message, "usage_metadata", None)
        if not usage:
            continue
        model = getattr(message, "response_metadata", {}).get("model_name") or model
        if not counts:
            total[0] += int(usage.get("input_tokens") or 0)
            total[1] += int(usage.get("output_tokens") or 0)
    return (model, total[0], total[1]) if any(total) else None
