"""The package as a user meets it: its surface, its types, its wheel."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import countersign
import countersign.testing
from countersign import exceptions, records, tokens, verify

PROJECT = Path(__file__).parents[1]
MYPY_CACHE = PROJECT.parents[1] / ".cache" / "mypy-package"  # the standard library's types

SURFACE = """
APIError ActionDeniedError ApprovalProgress ApprovalTimedOutError BackendUnavailableError Chain
ChainAutoPausedError ChainConfig ChainRecord ChainTimeoutError Client ConfigurationError
EventRecord GovernedRun KillSwitchActiveError OutcomeRecord PolicyDecision PolicyError
PolicyViolationError ReceiptRecord __version__ aclose cancel_approval cancel_approval_sync carry
close create_public_token create_public_token_sync exceptions flush get_chain get_chain_sync
governed governed_run init list_chains list_chains_sync list_public_tokens list_public_tokens_sync
receipts receipts_sync revoke_public_token revoke_public_token_sync verify_approval_v2
verify_approval_v2_sync verify_public_token verify_public_token_sync verify_receipt
verify_receipt_sync verify_receipt_v2 verify_receipt_v2_sync wait_for_approval
wait_for_approval_sync
"""


def test_the_public_surface_is_pinned() -> None:
    assert sorted(countersign.__all__) == sorted(SURFACE.split())
    for name in countersign.__all__:
        assert getattr(countersign, name) is not None
        assert name in dir(countersign)


def test_nothing_else_is_an_attribute() -> None:
    """Editors offer what the package has: not what it imports."""
    script = (
        "import countersign, types; print(*(n for n in vars(countersign) if not n.startswith('_')"
        " and not isinstance(getattr(countersign, n), types.ModuleType)))"
    )
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert set(out.stdout.split()) <= set(countersign.__all__)


def test_what_is_public_is_documented() -> None:
    for module in (countersign, exceptions, records, tokens, verify, countersign.testing):
        assert module.__doc__
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing):
                assert thing.__doc__, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        countersign.nothing  # type: ignore[attr-defined]  # noqa: B018


def run(*command: str | Path, cwd: Path = PROJECT) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


USER = """
import asyncio
import countersign
from countersign.testing import FakeService
from typing_extensions import assert_type

async def main() -> None:
    async with countersign.Chain("x", metadata={"a": 1}) as chain:
        assert_type(chain, countersign.Chain)
        decision = await chain.record_agent_action("a", "t", "n", {"k": 1})
        assert_type(decision, countersign.PolicyDecision)
        allowed: bool = decision.allowed
    with countersign.Chain("y") as other:
        assert_type(other.id, str | None)
    result = await countersign.verify_receipt_v2("id")
    assert_type(result.verified, bool)

with FakeService() as service:
    config = countersign.init(**service.settings())
    assert_type(config, countersign.ChainConfig)

# Each of these is a mistake: mypy reports an ignore that nothing needs.
countersign.govern()  # type: ignore[attr-defined]
from countersign import governd  # type: ignore[attr-defined]
countersign.carry(len)(5)  # type: ignore[arg-type]
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, PROJECT)
    return folder


def test_the_wheel_and_the_sdist_install_into_a_clean_environment(
    built: Path, tmp_path: Path
) -> None:
    (wheel,) = built.glob("*.whl")
    (sdist,) = built.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert "countersign/py.typed" in names
    assert not [n for n in names if n.startswith("tests")]

    home = tmp_path / "venv"
    venv.create(home)  # this one's pip serves it: installing another takes seconds
    python = home / "bin" / "python"
    options = ("--quiet", "--disable-pip-version-check", "--no-compile")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", *options)
    run(*pip, wheel, cwd=tmp_path)
    program = "import countersign; countersign.Chain; print(countersign.__version__)"
    assert (
        run(python, "-W", "error", "-c", program, cwd=tmp_path).strip() == countersign.__version__
    )
    run(*pip, "--force-reinstall", "--no-deps", sdist, cwd=tmp_path)
    assert run(python, "-c", program, cwd=tmp_path).strip() == countersign.__version__

    user = tmp_path / "user.py"
    user.write_text(USER)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", MYPY_CACHE)
    run(*mypy, "--python-executable", python, user, cwd=tmp_path)


def test_older_pythons_are_refused(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (n for n in archive.namelist() if n.endswith("METADATA"))
    assert "Requires-Python: >=3.10" in archive.read(metadata).decode()


def test_importing_loads_nothing_that_it_does_not_need() -> None:
    program = (
        "import sys, countersign; "
        "print(*(m for m in ('asyncio', 'countersign.verify', 'countersign._bundle', "
        "'cryptography', 'countersign.testing', 'pytest') "
        "if m in sys.modules))"
    )
    assert run(sys.executable, "-c", program).strip() == ""


def test_nothing_is_left_open_at_the_end() -> None:
    """Development mode shows what was not closed; a program that leaks would print it."""
    program = """
import asyncio, countersign
from countersign.testing import FakeService

async def main():
    async with countersign.Chain("a") as chain:
        await chain.record_agent_action("a", "t", "n", {})

with FakeService(fast_path=True) as service:
    countersign.init(**service.serve())
    asyncio.run(main())
    with countersign.Chain("b") as chain:
        chain.record_agent_action_sync("a", "t", "n", {})
    asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    # A busy machine makes asyncio remark that a step was slow; that is no leak.
    assert "ResourceWarning" not in done.stderr
    assert "Exception ignored" not in done.stderr
