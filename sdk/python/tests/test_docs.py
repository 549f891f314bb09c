"""What the documents show is run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from server import Server

REPOSITORY = Path(__file__).parents[3]
GUIDE = (REPOSITORY / "docs" / "python.md").read_text("utf-8")
VERIFICATION = (REPOSITORY / "docs" / "verification.md").read_text("utf-8")
VECTORS = REPOSITORY / "testdata" / "vectors" / "bundles.json"
README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
FRONT = (REPOSITORY / "README.md").read_text("utf-8")
PUBLIC_INDEX = re.compile(r"pip install ['\"]?countersign")


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("text", [GUIDE, README, FRONT], ids=["guide", "readme", "front"])
def test_the_first_program(
    text: str, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COUNTERSIGN_API_KEY", server.key)
    monkeypatch.setenv("COUNTERSIGN_URL", server.url)
    exec(compile(blocks(text)[0], "first program", "exec"), {"__name__": "__main__"})
    assert re.fullmatch(r"CSN-\d{4}-\d{5,}\n", capsys.readouterr().out)


def test_the_example_of_a_users_test(pytester: pytest.Pytester) -> None:
    (example,) = (block for block in blocks(GUIDE) if "countersign_service" in block)
    pytester.makepyfile(example)
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)


def by_hand(folder: Path, bundle: str, vkey: str) -> str:
    """Runs what the guide shows, and returns what it printed."""
    (folder / "receipt.bundle").write_text(bundle, "utf-8")
    unwrap, prove = (block for block in blocks(VERIFICATION))
    (openssl,) = re.findall(r"```sh\n(openssl .*)\n```", VERIFICATION)
    python = [sys.executable, "-X", "utf8", "-c"]
    told = ""
    for command in ([*python, unwrap, vkey], openssl.split(), [*python, prove, vkey]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
        told += done.stdout + done.stderr
        if done.returncode != 0:
            return f"failed: {told}"
    return told


def test_checking_by_hand(tmp_path: Path) -> None:
    vectors = json.loads(VECTORS.read_text("utf-8"))
    (vkey,), (forgers,) = (vectors["trust"][name]["log_keys"] for name in ("log", "forger"))
    for name in ("alone", "bundle", "first", "last", "share"):
        told = by_hand(tmp_path, vectors["bases"][name], vkey)
        assert "Signature Verified Successfully" in told, (name, told)
        assert "is in the log" in told, (name, told)
    good, other = vectors["bases"]["bundle"], vectors["bases"]["first"]
    changed = json.dumps({**json.loads(good), "receipt": json.loads(other)["receipt"]})
    beyond, forged = (vectors["bases"][n] for n in ("signed: a place beyond the tree", "forged"))
    for bundle, key in ((changed, vkey), (good, forgers), (forged, vkey), (beyond, vkey)):
        assert by_hand(tmp_path, bundle, key).startswith("failed: ")


def test_nothing_tells_anyone_to_install_a_strangers_package() -> None:
    folders = [REPOSITORY / "docs", REPOSITORY / "examples", REPOSITORY / "sdk" / "python" / "src"]
    texts = [
        path for folder in folders for path in folder.rglob("*") if path.suffix in (".md", ".py")
    ]
    assert len(texts) > 20
    for path in [*REPOSITORY.glob("*.md"), *texts]:
        assert not PUBLIC_INDEX.search(path.read_text("utf-8")), path


def test_every_parameter_is_in_the_guide() -> None:
    import inspect

    import countersign

    for name in inspect.signature(countersign.init).parameters:
        assert f"| `{name}` |" in GUIDE
    for name in countersign.exceptions.__all__:
        assert f"`{name}`" in GUIDE
