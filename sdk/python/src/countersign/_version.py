"""The version, in a place that every module can import."""

__version__ = "0.1.0"
