"""LangGraph in the matrix. Run as a program, it is the process that is killed."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from matrix import Framework, Work, replay
from scripted_agents import QUESTION, Marks, ScriptedModel
from ways import WAYS, Way

from countersign.adapters.langgraph import govern

__all__ = ["FRAMEWORK", "FileSaver"]


class FileSaver(InMemorySaver):
    """Keeps its checkpoints in a file, so that another process finds them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._keeping = threading.Lock()  # LangGraph saves in threads of its own
        if path.exists():
            storage, self.writes, self.blobs = pickle.loads(path.read_bytes())
            for thread, spaces in storage.items():
                for space, checkpoints in spaces.items():
                    self.storage[thread][space].update(checkpoints)

    def _keep(self) -> None:
        with self._keeping:
            storage = {thread: dict(spaces) for thread, spaces in self.storage.items()}
            new = self._path.with_suffix(".new")
            new.write_bytes(pickle.dumps((storage, self.writes, self.blobs)))
            new.rename(self._path)

    def put(self, *args: Any, **kwargs: Any) -> Any:
        put = super().put(*args, **kwargs)
        self._keep()
        return put

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        super().put_writes(*args, **kwargs)
        self._keep()


def governed_agent(work: Work, chain_name: str) -> Any:
    """An agent that calls one tool after the other, with a thread of its own."""
    marks = Marks()
    tools = [marks.tool(name, work.body(name)) for name in work.tools]
    folder = os.environ.get("COUNTERSIGN_MATRIX_FOLDER")
    saver = FileSaver(Path(folder) / "checkpoints") if folder else InMemorySaver()
    model = ScriptedModel(script=[[name] for name in work.tools])
    graph = create_agent(model, tools, checkpointer=saver, name="clerk")
    made: Any = govern(graph, chain_name)
    return made.with_config(configurable={"thread_id": "1"})


def called(way: Way) -> Callable[[Any], Any]:
    def style(graph: Any) -> Any:
        return way(graph, None if graph.get_state({"configurable": {}}).next else QUESTION)

    return style


FRAMEWORK = Framework(
    "langgraph",
    governed_agent,
    {name: called(way) for name, way in WAYS.items()},
    quick=("invoke", "ainvoke", "stream", "astream"),
    program=__file__,
    resumes=True,
)

if __name__ == "__main__":
    replay(FRAMEWORK)
