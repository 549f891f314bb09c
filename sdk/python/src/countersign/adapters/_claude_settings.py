"""What keeps the CLI of the Claude Agent SDK calling its hooks.

In its minimal mode (``--bare``, or ``CLAUDE_CODE_SIMPLE`` in its environment) the CLI calls none,
and its tools would run without a decision. Settings files can set the variable too. What is given
with ``--settings`` comes before those of the user and the project, and turns it off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions

from countersign.exceptions import ConfigurationError

__all__ = ["with_hooks_on"]

_SIMPLE = "CLAUDE_CODE_SIMPLE"
_OFF = ("", "0", "false", "no", "off")


def with_hooks_on(options: ClaudeAgentOptions) -> ClaudeAgentOptions:
    """The options, with settings that keep hooks on. Refuses options that turn them off."""
    settings = _settings_of(options)
    env = settings.get("env")
    env = dict(env) if isinstance(env, Mapping) else {}
    given = {**os.environ, **options.env, **env}.get(_SIMPLE, "")
    if "bare" in options.extra_args or str(given).strip().lower() not in _OFF:
        raise ConfigurationError(
            "the CLI calls no hooks in its minimal mode, and its tools would not be governed: "
            f"leave bare out of extra_args, and {_SIMPLE} out of the environment and the settings"
        )
    return replace(options, settings=json.dumps({**settings, "env": {**env, _SIMPLE: "0"}}))


def _settings_of(options: ClaudeAgentOptions) -> dict[str, Any]:
    """The settings that are given: a JSON object, or the path of a file that holds one."""
    text = (options.settings or "{}").strip()
    try:
        if not (text.startswith("{") and text.endswith("}")):
            text = (Path(options.cwd or "") / text).read_text(encoding="utf-8-sig")
        settings = json.loads(text)
        if not isinstance(settings, dict):
            raise ValueError("they are not a JSON object")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the settings of the CLI cannot be read: {error}") from error
    return settings
