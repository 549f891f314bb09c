"""How the package's modules know each other."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "countersign"


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in PACKAGE.rglob("*.py")}


def imports_of(path: Path) -> set[str]:
    """Every module of the package that a module imports: at its top, for types alone, and inside
    of functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return found & set(MODULES) - {module_of(path)}


def test_no_module_imports_itself_by_way_of_others() -> None:
    """No circle, be it for types alone or within a function: each module can be read, tested and
    replaced with what stands below it."""
    graph = {name: imports_of(path) for name, path in MODULES.items()}
    assert len(graph) > 40
    done: set[str] = set()

    def walk(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " → ".join((*above[above.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name]):
                walk(other, (*above, name))
            done.add(name)

    for name in sorted(graph):
        walk(name, ())


def test_the_core_imports_no_adapter_and_no_framework() -> None:
    """Frameworks are the adapters' alone. The modules beside them are their short names."""
    adapters = "claude_agent crewai langchain langgraph mcp openai_agents pydantic_ai".split()
    short = {f"countersign.{name}" for name in adapters}
    frameworks = "agents claude_agent_sdk crewai langchain_core langgraph mcp pydantic_ai".split()
    for name, path in MODULES.items():
        if name.startswith("countersign.adapters") or name in short:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                assert not module.startswith("countersign.adapters"), name
                assert module.partition(".")[0] not in frameworks
