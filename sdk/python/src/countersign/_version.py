"""The version, in a module that every other can import."""

__version__ = "0.1.0"
