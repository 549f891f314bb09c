"""What the adapters share.

Every framework has a path on which a denial becomes a text for the model. So the first denial
of a run is latched, every later hook of that run refuses, and the outermost call raises it.
"""

from __future__ import annotations

from countersign.adapters._run import Run, Step, current_run, run_of_call, step_key, usage_of
from countersign.adapters._run_chains import (
    RunChain,
    SavedChain,
    governed_run,
    governed_run_async,
    last_chain,
    opened_run,
)
from countersign.adapters._threads import blocking

__all__ = [
    "Run",
    "RunChain",
    "SavedChain",
    "Step",
    "blocking",
    "current_run",
    "governed_run",
    "governed_run_async",
    "last_chain",
    "missing_extra",
    "opened_run",
    "run_of_call",
    "step_key",
    "usage_of",
]


def missing_extra(extra: str, error: ImportError) -> ImportError:
    """The error for a framework that is not installed, or not in a supported version."""
    return ImportError(
        f"countersign.adapters.{extra} needs a supported version of its framework: "
        f"pip install './sdk/python[{extra}]' from the root of the project's repository; "
        f"the package called countersign on the public index is not this one ({error})",
        name=error.name,
        path=error.path,
    )
