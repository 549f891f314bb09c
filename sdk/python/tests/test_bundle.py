"""The offline verifier of evidence bundles, held to the vectors that every verifier reads."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import countersign
from countersign import BundleError, BundleVerdict, verify_bundle
from countersign.__main__ import main
from countersign._bundle_document import MAX_BYTES, read_object
from countersign._canonical import canonical
from countersign._merkle import leaf_hash, root_from_proof

VECTORS = Path(__file__).parents[3] / "testdata" / "vectors"
BUNDLES: dict[str, Any] = json.loads(
    Path(os.environ.get("COUNTERSIGN_BUNDLE_VECTORS") or VECTORS / "bundles.json").read_text(
        "utf-8"
    )
)
TRUST: dict[str, dict[str, Any]] = BUNDLES["trust"]
WHOLE = BUNDLES["bases"]["bundle"].encode()
CHECKS = (
    "receipt_hash events_digest payload_hashes approval_records approval_signatures inclusion "
    "checkpoint_signature witnesses anchors receipt_signature"
).split()


def edit(document: Any, change: dict[str, Any]) -> None:
    *above, last = change["path"]
    for step in above:
        document = document[step]
    if change["op"] == "set":
        document[last] = change.get("value")
    elif change["op"] == "remove":
        del document[last]
    elif change["op"] == "insert":
        document.insert(last, change["value"])
    else:
        assert change["op"] == "splice"
        splice = change["splice"]
        at, text = splice["at"], document[last].encode()
        text = text[:at] + splice["insert"].encode() + text[at + splice["remove"] :]
        document[last] = text.decode()


def not_checked(verdict: BundleVerdict) -> list[str]:
    return [check.name for check in verdict.checks if check.status == "not_checked"]


@pytest.mark.parametrize("part", range(10))
def test_every_case_of_the_vectors_comes_to_its_verdict(part: int) -> None:
    """A bundle, whole or altered, has the verdict that every verifier gives it, for the same
    checks."""
    bases = {name: json.loads(text) for name, text in BUNDLES["bases"].items()}
    wrong = []
    for case in BUNDLES["cases"][part::10]:
        document = copy.deepcopy(bases[case["base"]])
        for change in case.get("edits", ()):
            edit(document, change)
        verdict = verify_bundle(canonical(document), **TRUST[case["trust"]])
        assert [check.name for check in verdict.checks] == CHECKS
        found = (verdict.status, list(verdict.failed), not_checked(verdict))
        if found != (case["verdict"], case["failed"], case["not_checked"]):
            wrong.append((case["name"], case["trust"], found))
    assert not wrong, f"{len(wrong)} cases, among them {wrong[:5]}"
    assert len(BUNDLES["cases"]) > 500


@pytest.mark.parametrize("file", BUNDLES["files"], ids=lambda file: file["name"])
def test_what_is_no_bundle_is_refused(file: dict[str, str]) -> None:
    for data in (file["text"], file["text"].encode()):
        with pytest.raises(BundleError, match="not a bundle"):
            verify_bundle(data, **TRUST["all"])


def altered(**members: Any) -> bytes:
    return canonical({**json.loads(WHOLE), **members})


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" + WHOLE,
        b"\xef\xbb\xbf" + WHOLE,
        WHOLE + b"\r\n",
        WHOLE.replace(b'"sha256:', b'"\\ud800sha256:', 1),
        WHOLE.replace(b'"tsa"', b"true"),
        WHOLE.replace(b'"tsa"', b"NaN"),
        WHOLE.replace(b'"anchors":[', b'"anchors":[' + b"[" * 100_000),
        altered(entries=None),
        altered(approvals=None),
        altered(signing_keys=""),
        altered(anchors=[None]),
        altered(receipt=["text"]),
        altered(generated_at={}),
    ],
    ids=lambda data: repr(data[-20:]),
)
def test_another_reading_is_refused(data: bytes) -> None:
    """What readers of JSON may take in two ways, or not at all, is not a bundle."""
    with pytest.raises(BundleError, match="not a bundle"):
        verify_bundle(data)


def test_a_bundle_has_a_bound(tmp_path: Path) -> None:
    big = tmp_path / "big.bundle"
    with big.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(BundleError, match="64 MiB"):
        verify_bundle(big)


@given(st.text(st.characters(exclude_categories=())))
def test_a_string_has_one_spelling(text: str) -> None:
    """The form that is compared is exactly what is read: any string survives, and one with half a
    surrogate pair is refused."""
    document = {**json.loads(WHOLE), "generated_at": text}
    spelled = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    try:
        spelled.encode()
    except UnicodeEncodeError:
        with pytest.raises(BundleError):
            verify_bundle(spelled)
        with pytest.raises(BundleError):
            verify_bundle(json.dumps(document, sort_keys=True, separators=(",", ":")))
        return
    assert verify_bundle(spelled, **TRUST["all"]).status == "verified"


def test_the_verdict_says_what_it_is_about(tmp_path: Path) -> None:
    """Bytes, text and a path are the same bundle, with or without a line break."""
    path = tmp_path / "receipt.bundle"
    path.write_bytes(WHOLE + b"\n")
    verdicts = [verify_bundle(data, **TRUST["all"]) for data in (WHOLE, WHOLE.decode(), path)]
    assert verdicts[0] == verdicts[1] == verdicts[2]
    verdict = verdicts[0]
    receipt = json.loads(WHOLE)["receipt"]
    assert verdict.status == "verified"
    assert verdict.failed == ()
    assert verdict.receipt_number == "CSN-2026-00003"
    assert verdict.receipt_id == json.loads(receipt)["receipt_id"]
    assert verdict.receipt_hash == "sha256:" + hashlib.sha256(receipt.encode()).hexdigest()
    assert verdict.organization == "acme"
    assert verdict.summary == "1 agent took 2 actions."
    assert verdict.log_origin == "countersign.example/log"
    assert verdict.tree_size == 5
    assert verdict.witnessed_by == ("witness1.example", "witness2.example")
    with pytest.raises(AttributeError):
        verdict.status = "failed"  # type: ignore[misc]


def test_the_verdict_prints_as_a_table() -> None:
    lines = str(verify_bundle(WHOLE, **TRUST["log"])).splitlines()
    assert lines[0].startswith("VERIFIED  receipt CSN-2026-00003 of organization acme, made 2026")
    assert [line.split()[1] for line in lines[1:]] == CHECKS
    assert lines[1].split()[0] == "✓"
    assert lines[8].split() == "· witnesses not checked: no witness was given".split()


def test_what_a_bundle_says_cannot_steer_a_terminal() -> None:
    receipt = {**json.loads(json.loads(WHOLE)["receipt"]), "organization": "a\x1b[2J\n\u202ez"}
    text = str(verify_bundle(altered(receipt=json.dumps(receipt)), **TRUST["all"]))
    assert text.startswith("FAILED")
    assert len(text.splitlines()) == 11
    assert all(c.isprintable() or c == "\n" for c in text)


def test_a_receipt_that_cannot_be_read_says_nothing() -> None:
    verdict = verify_bundle(altered(receipt="", log_proof=""), **TRUST["all"])
    assert verdict.status == "failed"
    assert (verdict.receipt_number, verdict.organization, verdict.summary) == (None, None, None)
    assert (verdict.log_origin, verdict.tree_size, verdict.witnessed_by) == (None, None, ())
    assert "?" in str(verdict)


def vkey(name: str, algorithm: int, public: bytes) -> str:
    key = bytes([algorithm]) + public
    digest = hashlib.sha256(name.encode() + b"\n" + key).hexdigest()[:8]
    return f"{name}+{digest}+{base64.b64encode(key).decode()}"


LOG_KEY: str = TRUST["all"]["log_keys"][0]
WITNESSES: list[str] = TRUST["all"]["witnesses"]


def public_of(key: str) -> bytes:
    return base64.b64decode(key.split("+", 2)[2])[1:]


def as_note_key(key: str) -> str:
    return vkey(key.split("+")[0], 1, public_of(key))


WRONG_TRUST: dict[str, dict[str, Any]] = {
    "one key for a list": {"log_keys": LOG_KEY},
    "no string": {"log_keys": [LOG_KEY.encode()]},
    "no key": {"log_keys": ["log"]},
    "an empty key": {"log_keys": [""]},
    "another hash": {"log_keys": [LOG_KEY.replace("+e2b7788d+", "+e2b7788e+")]},
    "cut": {"log_keys": [LOG_KEY[:-4]]},
    "a space in its name": {"log_keys": [vkey("a log", 1, bytes(32))]},
    "a witness as the log": {"log_keys": [WITNESSES[0]]},
    "a short key": {"log_keys": [vkey("log", 1, bytes(31))]},
    "an unknown algorithm": {"witnesses": [vkey("w", 6, bytes(32))]},
    "a witness twice": {"witnesses": [WITNESSES[0], WITNESSES[0]]},
    "a witness in both forms": {"witnesses": [WITNESSES[0], as_note_key(WITNESSES[0])]},
    "a quorum below zero": {"quorum": -1},
    "a quorum without witnesses": {"quorum": 1},
    "a quorum that cannot be": {"witnesses": WITNESSES, "quorum": 4},
    "revoked, no witnesses": {"log_keys": [LOG_KEY], "log_key_revoked_at": "2026-11-16T09:30:00Z"},
    "no time": {"witnesses": WITNESSES, "log_key_revoked_at": "yesterday"},
    "no zone": {"witnesses": WITNESSES, "log_key_revoked_at": datetime(2026, 11, 16)},
    **BUNDLES["refused_trust"],
}


@pytest.mark.parametrize("trust", WRONG_TRUST.values(), ids=WRONG_TRUST)
def test_wrong_keys_are_refused(trust: dict[str, Any]) -> None:
    """A mistake in what the reader trusts is not taken for a fault of the bundle."""
    with pytest.raises(ValueError) as raised:
        verify_bundle(WHOLE, **trust)
    assert not isinstance(raised.value, BundleError)


def test_an_error_about_a_key_does_not_repeat_it() -> None:
    secret = base64.b64encode(os.urandom(33)).decode()
    with pytest.raises(ValueError) as raised:
        verify_bundle(WHOLE, log_keys=[f"PRIVATE+KEY+log+00000000+{secret}"])
    assert secret not in str(raised.value)


def test_a_witness_may_be_given_as_a_plain_key() -> None:
    verdict = verify_bundle(
        WHOLE, log_keys=[LOG_KEY], witnesses=map(as_note_key, WITNESSES), quorum=2
    )
    assert verdict.status == "verified"
    assert len(verdict.witnessed_by) == 2


def test_a_revocation_is_a_moment_in_any_zone() -> None:
    """The cosignatures are of 09:30:00Z; the moment itself is not before it."""
    trust = {**TRUST["all"], "log_key_revoked_at": None}
    at = datetime(2026, 11, 16, 9, 30, tzinfo=timezone.utc)
    here = timezone(timedelta(hours=-5))
    almost, late = at + timedelta(milliseconds=999), at + timedelta(seconds=1)
    for moment, status in (
        (at, "failed"),
        (almost, "failed"),  # the cosignature may be of the same second and yet later
        (late, "verified"),
        (late.astimezone(here), "verified"),
    ):
        for given_as in (moment, moment.isoformat()):
            trust["log_key_revoked_at"] = given_as
            assert verify_bundle(WHOLE, **trust).status == status


def test_embedded_json_has_one_reading() -> None:
    """What the service's strict reader refuses is not read here either."""
    vectors = json.loads((VECTORS / "canonical.json").read_text("utf-8"))
    texts = [case["input"] for case in vectors["refused"] if "input" in case]
    assert len(texts) > 20
    for text in texts:
        assert read_object(text) is None, text
    read = [case["input"] for case in vectors["canonical"] if case["input"].lstrip()[:1] == "{"]
    assert len(read) > 5
    for text in read:
        assert read_object(text) is not None, text


def tree(leaves: list[bytes]) -> bytes:
    """The root, by the definition of RFC 9162, section 2.1.1."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    left, right = tree(leaves[:split]), tree(leaves[split:])
    return hashlib.sha256(b"\x01" + left + right).digest()


def path_to(index: int, leaves: list[bytes]) -> Iterator[bytes]:
    """The proof, by the definition of RFC 9162, section 2.1.3.1."""
    if len(leaves) == 1:
        return
    split = 1 << (len(leaves) - 1).bit_length() - 1
    if index < split:
        yield from path_to(index, leaves[:split])
        yield tree(leaves[split:])
    else:
        yield from path_to(index - split, leaves[split:])
        yield tree(leaves[:split])


def test_every_proof_in_every_small_tree() -> None:
    """Each proof leads to the root from its own leaf and index alone, and with a hash more or
    less to no root at all."""
    for size in range(1, 20):
        leaves = [leaf_hash(bytes([i])) for i in range(size)]
        root = tree(leaves)
        for index, leaf in enumerate(leaves):
            proof = list(path_to(index, leaves))
            assert root_from_proof(leaf, index, size, proof) == root
            assert root_from_proof(leaf, index, size, [*proof, root]) is None
            assert not proof or root_from_proof(leaf, index, size, proof[:-1]) is None
            assert root_from_proof(leaf, index - size, size, proof) is None
            for other in range(size + 2):
                if other != index:
                    assert root_from_proof(leaf, other, size, proof) != root


def test_without_the_extra_the_error_says_what_to_install() -> None:
    """The core works without the extra, also with a star; what needs it names it."""
    program = """
import sys
sys.modules["cryptography"] = None
from countersign import *
import countersign
countersign.verify_receipt
try:
    from countersign import verify_bundle
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "countersign[verify]" in done.stdout
    assert "pip install './sdk/python[verify]'" in done.stdout


def test_the_names_of_the_extra_are_public() -> None:
    for name in ("BundleCheck", "BundleError", "BundleVerdict", "verify_bundle"):
        assert getattr(countersign, name).__doc__
    assert issubclass(BundleError, ValueError)


def options(trust: dict[str, Any]) -> list[str]:
    given = [f"--log-key={key}" for key in trust["log_keys"]]
    given += [f"--witness={key}" for key in trust["witnesses"]]
    if "log_key_revoked_at" in trust:
        given.append(f"--log-key-revoked-at={trust['log_key_revoked_at']}")
    return [*given, f"--quorum={trust['quorum']}"]


@pytest.mark.parametrize(
    ("trust", "status"),
    [("all", 0), ("revoked later", 0), ("revoked", 1), ("forger", 1), ("none", 2)],
)
def test_the_command_ends_with_the_verdict(
    trust: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 is for what is verified alone: 1 where a check failed, 2 where nothing was proven."""
    path = tmp_path / "receipt.bundle"
    path.write_bytes(WHOLE)
    assert main(["verify", str(path), *options(TRUST[trust])]) == status
    printed = capsys.readouterr()
    assert printed.out == str(verify_bundle(WHOLE, **TRUST[trust])) + "\n"
    assert ("--log-key" in printed.err) == (trust == "none")


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "receipt.bundle"
    path.write_bytes(WHOLE)
    assert main(["verify", str(path), "--json", *options(TRUST["all"])]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["verdict"] == "verified"
    assert [check["name"] for check in printed["checks"]] == CHECKS
    assert printed["witnessed_by"][0] == {"name": "witness1.example", "at": "2026-11-16T09:30:00Z"}
    assert printed["witnesses_given"] == 3


def test_the_command_refuses_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "receipt.bundle"
    assert main(["verify", str(path)]) == 2
    path.write_text("receipt")
    assert main(["verify", str(path)]) == 2
    path.write_bytes(WHOLE)
    assert main(["verify", str(path), "--log-key=log"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 3
    for arguments in ([], ["verify"], ["verify", str(path), "--quorum=some"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
