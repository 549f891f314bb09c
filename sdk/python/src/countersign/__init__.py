"""Python client of Countersign, the service that governs chains of agent actions.

::

    import countersign

    countersign.init()  # reads COUNTERSIGN_API_KEY and COUNTERSIGN_URL

    async with countersign.Chain("invoice-run") as chain:
        await chain.record_agent_action("clerk", "tool_call", "pay_invoice", {"amount_usd": 120})
        ...  # the action was allowed: carry it out
    print(chain.receipt["receipt_number"])
"""

import typing as _typing  # the underscore keeps it out of the package's public names

from countersign import exceptions
from countersign._approvals import (
    cancel_approval,
    cancel_approval_sync,
    wait_for_approval,
    wait_for_approval_sync,
)
from countersign._chain import Chain
from countersign._client import Client, aclose, close, flush, init
from countersign._config import ChainConfig
from countersign._decision import PolicyDecision
from countersign._governed import governed
from countersign._progress import ApprovalProgress
from countersign._run import GovernedRun, governed_run
from countersign._scope import carry
from countersign._version import __version__
from countersign.exceptions import (
    ActionDeniedError,
    APIError,
    ApprovalTimedOutError,
    BackendUnavailableError,
    ChainAutoPausedError,
    ChainTimeoutError,
    ConfigurationError,
    KillSwitchActiveError,
    PolicyError,
    PolicyViolationError,
)

if _typing.TYPE_CHECKING:
    from countersign._bundle import BundleCheck as BundleCheck
    from countersign._bundle import BundleError as BundleError
    from countersign._bundle import BundleVerdict as BundleVerdict
    from countersign._bundle import verify_bundle as verify_bundle
    from countersign.records import ChainRecord as ChainRecord
    from countersign.records import EventRecord as EventRecord
    from countersign.records import OutcomeRecord as OutcomeRecord
    from countersign.records import ReceiptRecord as ReceiptRecord
    from countersign.records import get_chain as get_chain
    from countersign.records import get_chain_sync as get_chain_sync
    from countersign.records import list_chains as list_chains
    from countersign.records import list_chains_sync as list_chains_sync
    from countersign.records import receipts as receipts
    from countersign.records import receipts_sync as receipts_sync
    from countersign.tokens import create_public_token as create_public_token
    from countersign.tokens import create_public_token_sync as create_public_token_sync
    from countersign.tokens import list_public_tokens as list_public_tokens
    from countersign.tokens import list_public_tokens_sync as list_public_tokens_sync
    from countersign.tokens import revoke_public_token as revoke_public_token
    from countersign.tokens import revoke_public_token_sync as revoke_public_token_sync
    from countersign.verify import verify_approval_v2 as verify_approval_v2
    from countersign.verify import verify_approval_v2_sync as verify_approval_v2_sync
    from countersign.verify import verify_public_token as verify_public_token
    from countersign.verify import verify_public_token_sync as verify_public_token_sync
    from countersign.verify import verify_receipt as verify_receipt
    from countersign.verify import verify_receipt_sync as verify_receipt_sync
    from countersign.verify import verify_receipt_v2 as verify_receipt_v2
    from countersign.verify import verify_receipt_v2_sync as verify_receipt_v2_sync

__all__ = [
    "APIError",
    "ActionDeniedError",
    "ApprovalProgress",
    "ApprovalTimedOutError",
    "BackendUnavailableError",
    "Chain",
    "ChainAutoPausedError",
    "ChainConfig",
    "ChainRecord",
    "ChainTimeoutError",
    "Client",
    "ConfigurationError",
    "EventRecord",
    "GovernedRun",
    "KillSwitchActiveError",
    "OutcomeRecord",
    "PolicyDecision",
    "PolicyError",
    "PolicyViolationError",
    "ReceiptRecord",
    "__version__",
    "aclose",
    "cancel_approval",
    "cancel_approval_sync",
    "carry",
    "close",
    "create_public_token",
    "create_public_token_sync",
    "exceptions",
    "flush",
    "get_chain",
    "get_chain_sync",
    "governed",
    "governed_run",
    "init",
    "list_chains",
    "list_chains_sync",
    "list_public_tokens",
    "list_public_tokens_sync",
    "receipts",
    "receipts_sync",
    "revoke_public_token",
    "revoke_public_token_sync",
    "verify_approval_v2",
    "verify_approval_v2_sync",
    "verify_public_token",
    "verify_public_token_sync",
    "verify_receipt",
    "verify_receipt_sync",
    "verify_receipt_v2",
    "verify_receipt_v2_sync",
    "wait_for_approval",
    "wait_for_approval_sync",
]

# Most programs record and never verify, so these modules are imported on first use.
_LAZY_MODULES = ("countersign.records", "countersign.verify", "countersign.tokens")

# These need the extra "verify", so `from countersign import *` leaves them out.
_WITH_VERIFY = ("BundleCheck", "BundleError", "BundleVerdict", "verify_bundle")


# Hidden from type checkers: with __getattr__ a module has every attribute for them, also a
# misspelled one.
if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _WITH_VERIFY:
            return getattr(import_module("countersign._bundle"), name)
        if name in __all__:
            for module in map(import_module, _LAZY_MODULES):
                if name in module.__all__:
                    return getattr(module, name)
        raise AttributeError(f"module 'countersign' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
