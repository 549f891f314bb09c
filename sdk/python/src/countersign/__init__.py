"""Python client of Countersign, the service that governs chains of agent actions.

The package is at its beginning: it fixes its name, its version and its supported
Python versions. The client itself is not part of it yet.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
