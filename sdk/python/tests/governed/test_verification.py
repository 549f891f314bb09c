"""Against a real service that verifies by v2 and issues public tokens."""

from __future__ import annotations

import asyncio

import pytest

import countersign
from server import Server


@pytest.fixture
def receipt_id(server: Server) -> str:
    server.config()
    with countersign.Chain("verified") as chain:
        pass
    assert chain.receipt is not None
    return str(chain.receipt["receipt_id"])


def test_a_receipt_is_verified(server: Server, receipt_id: str) -> None:
    result = countersign.verify_receipt_v2_sync(receipt_id)
    assert result.verified
    assert result.integrity.status == "valid"
    assert {"signature", "previous_link"} <= {check.name for check in result.checks}
    assert result == asyncio.run(countersign.verify_receipt_v2(receipt_id)) or result.verified_at
    assert result.artifact["id"] == receipt_id


def test_a_token_is_issued_used_and_revoked(server: Server, receipt_id: str) -> None:
    issued = countersign.create_public_token_sync("receipt", receipt_id)
    assert issued.token is not None
    result = countersign.verify_public_token_sync(issued.token.reveal())
    assert result.verified
    assert result.artifact_type == "receipt"
    listed = countersign.list_public_tokens_sync().data
    assert issued.token_id in {token.token_id for token in listed}
    revoked = countersign.revoke_public_token_sync(issued.token_id, reason="lost")
    assert (revoked.status, revoked.revocation_reason) == ("revoked", "lost")
    with pytest.raises(countersign.APIError) as gone:
        countersign.verify_public_token_sync(issued.token.reveal())
    assert gone.value.code == "not_found"


def test_an_approval_is_verified(server: Server) -> None:
    key = server.post("/v1/api-keys", {"name": "agent", "role": "agent"})["key"]
    agent = server.config(api_key=key)

    async def main() -> str:
        async with countersign.Chain("asks", config=agent) as chain:
            waiting = asyncio.create_task(
                chain.record_agent_action("a", "tool_call", "pay", {"amount_usd": 9000})
            )
            found: list[dict[str, str]] = []
            while not found:
                path = f"/v1/approvals?chain_id={chain.id}"
                found = (await asyncio.to_thread(server.get, path))["data"]
            path = f"/v1/approvals/{found[0]['id']}/approve"
            await asyncio.to_thread(server.post, path, {})
            await waiting
            return found[0]["id"]

    approval_id = asyncio.run(main())
    server.config()
    result = countersign.verify_approval_v2_sync(approval_id)
    assert result.verified
    assert result.asymmetric_signature.status == "valid"
