"""Any Python function, governed, and an agent that cannot hide a denial.

It needs neither a network nor a model's key: the model is a script, and without an API key the
service is the one that tests use. From the repository's root:

    pip install ./sdk/python
    python examples/python/governed_functions.py

Beside a service (`make run`), with COUNTERSIGN_API_KEY set, the same program ends in a signed
receipt. The public index has another package called countersign.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import countersign
from countersign.testing import FakeService


@countersign.governed
def get_invoice(number: int) -> dict[str, Any]:
    """Look an invoice up."""
    return {"number": number, "amount_usd": 120.0}


@countersign.governed(redact=["iban"])
def pay_invoice(number: int, amount_usd: float, iban: str = "DE00 0000 0000") -> str:
    """Pay an invoice. Each call is recorded and decided before this runs."""
    return f"paid {amount_usd:g} USD for invoice {number}"


@countersign.governed(on_denial="tell_model")
def send_reminder(customer: str) -> str:
    """Remind a customer. A denial reaches the model as the result."""
    return f"reminded {customer}"


TOOLS: dict[str, Callable[..., Any]] = {
    "get_invoice": get_invoice,
    "pay_invoice": pay_invoice,
    "send_reminder": send_reminder,
}


def run_agent(script: list[tuple[str, dict[str, Any]]]) -> str:
    """What many frameworks do: whatever a tool raises becomes a text for the model."""
    for tool, arguments in script:
        try:
            result = TOOLS[tool](**arguments)
        except Exception as error:
            result = f"the tool failed: {type(error).__name__}"
        print(f"  {tool}: {result}")
    return "the agent says: all done"


def main(service: FakeService | None) -> None:
    print("a run in which everything is allowed:")
    with countersign.governed_run("invoices", agent="clerk") as run:
        script: list[tuple[str, dict[str, Any]]] = [
            ("get_invoice", {"number": 7}),
            ("pay_invoice", {"number": 7, "amount_usd": 120.0}),
            ("send_reminder", {"customer": "ACME"}),
        ]
        print(run_agent(script))
    if run.chain.receipt is not None:
        receipt = run.chain.receipt
        print(f"receipt {receipt['receipt_number']}: {receipt['total_actions']} actions")

    if service is None:
        return
    print("a run in which the payment is denied, and whose agent does not say so:")
    service.script("allow")
    service.script("deny", decision_reason="over budget")
    try:
        with countersign.governed_run("invoices", agent="clerk"):
            script = [
                ("get_invoice", {"number": 8}),
                ("pay_invoice", {"number": 8, "amount_usd": 9000.0}),
                ("send_reminder", {"customer": "ACME"}),
            ]
            print(run_agent(script))
    except countersign.ActionDeniedError as denial:
        print(f"the run was denied: {denial}")


if __name__ == "__main__":
    if os.environ.get("COUNTERSIGN_API_KEY"):
        countersign.init(environment="development")
        main(None)
    else:
        with FakeService() as fake:
            countersign.init(**fake.settings())
            main(fake)
