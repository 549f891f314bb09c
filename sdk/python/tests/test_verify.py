"""Verification helpers and public tokens: the rows of section 4.7."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import logging
import traceback
from typing import Any

import httpx
import pytest

import countersign
from conftest import configure
from countersign import tokens, verify
from countersign.testing import FakeService, example_api_key

TOKEN = "cvt_" + "7" * 43


def run(name: str, sync: bool, *args: Any, **options: Any) -> Any:
    """Call a helper, or its twin."""
    if sync:
        return getattr(countersign, f"{name}_sync")(*args, **options)
    return asyncio.run(getattr(countersign, name)(*args, **options))


both = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])


@pytest.fixture
def receipt_id(fake: FakeService) -> str:
    configure(fake)
    with countersign.Chain("verified") as chain:
        pass
    assert chain.receipt is not None
    return str(chain.receipt["receipt_id"])


@pytest.fixture
def approval_id(fake: FakeService) -> str:
    configure(fake)
    chain = fake._records.open({"name": "x"}, None)
    action = {"agent_name": "a", "action_type": "t", "action_name": "n", "payload": {}}
    script = {"policy_decision": "require_approval"}
    return str(fake._records.record(chain["id"], action, script)["approval_id"])


@both
def test_verify_receipt_is_deprecated_and_works(
    fake: FakeService, receipt_id: str, sync: bool
) -> None:
    with pytest.warns(DeprecationWarning, match="verify_receipt_v2"):
        result = run("verify_receipt", sync, receipt_id)
    assert isinstance(result, verify.ReceiptVerifyResponse)
    assert result.valid
    assert result.receipt_number == "CSN-2026-00001"
    assert (result.chain_id, result.generated_at) == (
        fake.chains[0]["id"],
        fake.receipts[0]["generated_at"],
    )
    assert fake.calls[-1].path == f"/v1/receipts/{receipt_id}/verify"


def test_only_true_is_valid() -> None:
    handler = lambda _: httpx.Response(200, json={"valid": "true"})  # noqa: E731
    countersign.init(example_api_key(), transport=httpx.MockTransport(handler))
    with pytest.warns(DeprecationWarning):
        assert not countersign.verify_receipt_sync("x").valid


@both
def test_verify_receipt_v2(fake: FakeService, receipt_id: str, sync: bool) -> None:
    result = run("verify_receipt_v2", sync, receipt_id)
    assert isinstance(result, verify.VerificationResult)
    assert result.verified
    assert result.integrity.status == result.evidence_chain.status == "valid"
    assert result.asymmetric_signature.key_status == "not_applicable"
    assert result.checks[0] == verify.VerificationCheck("signature", "pass")
    assert result.artifact["id"] == receipt_id
    assert result.admin_context is None


@both
def test_verify_approval_v2(fake: FakeService, approval_id: str, sync: bool) -> None:
    assert run("verify_approval_v2", sync, approval_id).overall_status == "indeterminate"
    fake.approve(approval_id)
    result = run("verify_approval_v2", sync, approval_id)
    assert result.verified
    assert result.asymmetric_signature.status == "valid"
    assert result.tsa.status == result.opentimestamps.status == "not_anchored"


@both
def test_tokens_are_issued_used_listed_and_revoked(
    fake: FakeService, receipt_id: str, sync: bool
) -> None:
    until = datetime.datetime(2027, 1, 1, tzinfo=datetime.timezone.utc)
    issued = run("create_public_token", sync, "receipt", receipt_id, expires_at=until)
    assert issued.expires_at == "2027-01-01T00:00:00.000Z"
    assert fake.calls[-1].headers["idempotency-key"]
    text = issued.token.reveal()
    assert issued.public_path.reveal() == f"/public/v2/verify/{text}"
    assert text not in repr(issued)

    result = run("verify_public_token", sync, text)
    assert isinstance(result, verify.PublicVerificationResult)
    assert result.verified
    assert result.artifact_type == "receipt"

    page = run("list_public_tokens", sync)
    assert [t.token_id for t in page.data] == [issued.token_id]
    assert page.data[0].token is None
    assert page.next_cursor is None

    revoked = run("revoke_public_token", sync, issued.token_id, reason="lost")
    assert (revoked.status, revoked.revocation_reason) == ("revoked", "lost")
    with pytest.raises(countersign.APIError) as gone:
        run("verify_public_token", sync, text)
    assert gone.value.status == 404
    assert text not in str(gone.value)


@both
@pytest.mark.parametrize("fault", [httpx.ConnectError, httpx.ReadTimeout, None])
def test_a_token_is_in_no_exception_and_no_log(
    sync: bool, fault: type[Exception] | None, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert "authorization" not in request.headers
        if fault is None:
            return httpx.Response(404, json={"code": "not_found", "detail": "none"})
        raise fault(f"could not fetch {request.url}")

    countersign.init(
        example_api_key(), transport=httpx.MockTransport(handler), backend_timeout_seconds=0.2
    )
    with caplog.at_level(logging.DEBUG):
        with pytest.raises((countersign.APIError, countersign.BackendUnavailableError)) as raised:
            run("verify_public_token", sync, TOKEN)
    error: BaseException | None = raised.value
    while error is not None:
        assert TOKEN not in repr(error)
        assert TOKEN not in str(vars(error))
        error = error.__cause__ or error.__context__
    assert TOKEN not in caplog.text
    assert TOKEN not in "".join(traceback.format_exception(raised.value)).replace(f'"{TOKEN}"', "")


@pytest.mark.parametrize(
    "name", [n for n in [*verify.__all__, *tokens.__all__] if n.endswith("_sync")]
)
def test_every_helper_has_a_twin_of_the_same_shape(name: str) -> None:
    twin = getattr(countersign, name)
    helper = getattr(countersign, name.removesuffix("_sync"))
    assert inspect.iscoroutinefunction(helper)
    assert not inspect.iscoroutinefunction(twin)
    assert inspect.signature(helper) == inspect.signature(twin)


def test_arguments_are_checked(fake: FakeService) -> None:
    configure(fake)
    with pytest.raises(ValueError, match="artifact_type"):
        countersign.create_public_token_sync("chain", "x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time zone"):
        countersign.create_public_token_sync("receipt", "x", expires_at=datetime.datetime.now())
    with pytest.raises(ValueError, match="non-empty"):
        countersign.verify_public_token_sync("")
    with pytest.raises(countersign.APIError):
        countersign.verify_receipt_v2_sync("../../v1/chains")
    assert fake.calls[-1].path.endswith("/receipts/..%2F..%2Fv1%2Fchains")
