"""What the documents show is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server import Server

REPOSITORY = Path(__file__).parents[3]
GUIDE = (REPOSITORY / "docs" / "python.md").read_text("utf-8")
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
