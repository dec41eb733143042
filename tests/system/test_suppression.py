"""Our own requests are no traces of the user's, with or without OpenTelemetry's package of instrumentations."""

from __future__ import annotations

import subprocess
import sys

from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from arttrace.system.suppression import suppress_instrumentation

_WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry.instrumentation"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import arttrace.capture.export.shipping.shipper, arttrace.capture.api, arttrace.rewards
"""


def test_instrumentations_see_that_they_shall_not_record() -> None:
    assert is_instrumentation_enabled()
    with suppress_instrumentation():
        assert not is_instrumentation_enabled()
    assert is_instrumentation_enabled()


def test_what_a_user_installs_needs_no_package_of_instrumentations() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
