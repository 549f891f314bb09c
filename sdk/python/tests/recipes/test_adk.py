"""The recipe for Google ADK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types

from recipes import ANSWER, cases

# The framework's own.
pytestmark = pytest.mark.filterwarnings("ignore")


class Scripted(BaseLlm):  # type: ignore[misc]
    calls: list[Any] = []  # noqa: RUF012
    seen: list[Any] = []  # noqa: RUF012

    async def generate_content_async(
        self, request: Any, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        self.seen.append(request.model_copy(deep=False).contents[:])
        part = types.Part(text=ANSWER)
        if self.calls:
            name, arguments = self.calls.pop(0)
            part = types.Part(function_call=types.FunctionCall(name=name, args=arguments))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


globals().update(cases("Google ADK", lambda calls: Scripted(model="x", calls=calls, seen=[])))
