"""Testing code that uses Countersign: an in-memory service with deterministic ids and times.

>>> import countersign
>>> from countersign.testing import FakeService
>>> with FakeService() as service:
...     config = countersign.init(**service.settings())
...     service.script("deny", decision_reason="not today")
...     with countersign.Chain("test") as chain:
...         try:
...             chain.record_agent_action_sync("clerk", "tool_call", "pay", {"amount": 5})
...         except countersign.ActionDeniedError as error:
...             print(error)
tool_call 'pay' by 'clerk' was denied: not today

With pytest, use the fixture ``countersign_service``: a fake service for which ``countersign.init``
has been called.
"""

from countersign.testing._fake import FakeService
from countersign.testing._keys import example_api_key
from countersign.testing._wire import RecordedCall

__all__ = ["FakeService", "RecordedCall", "example_api_key"]
