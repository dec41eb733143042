"""The environment of programs that fork and whose standard error is read: from 3.12 on CPython says there of each fork
that the process has threads, capture's among them."""

from __future__ import annotations

UNSAID = {"PYTHONWARNINGS": "ignore:This process:DeprecationWarning"}
