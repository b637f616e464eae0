"""What plain decoding means ships with the package, for the audit; the tests' name for it."""

from slipstream.testing.reference import plain_run_law

__all__ = ["plain_run_law"]
