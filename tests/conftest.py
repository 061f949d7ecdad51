"""Every test sees the packaged data alone, and the same random cases, on whatever machine it runs."""

from __future__ import annotations

import pytest
from hypothesis import settings

from moeplan.kernels import silicon_place

# A failure must be of a change, not of the day's draw; `--hypothesis-profile=default` draws anew.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _no_silicon_tables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of aiconfigurator-core change answers where they are installed; the tests of them are left alone."""
    monkeypatch.delenv(silicon_place.ENVIRONMENT, raising=False)
    if request.path.name != "test_silicon.py":
        monkeypatch.setattr(silicon_place, "_named", lambda folder: folder or None)
