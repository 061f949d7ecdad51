"""Every test sees the packaged data alone, whatever tables the machine that runs it has."""

from __future__ import annotations

import pytest

from moeplan.kernels import silicon_place


@pytest.fixture(autouse=True)
def _no_silicon_tables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of aiconfigurator-core change answers where they are installed; the tests of them are left alone."""
    monkeypatch.delenv(silicon_place.ENVIRONMENT, raising=False)
    if request.path.name != "test_silicon.py":
        monkeypatch.setattr(silicon_place, "_named", lambda folder: folder or None)
