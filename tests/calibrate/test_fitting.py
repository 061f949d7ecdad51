"""Least squares on rows whose parameters are known: found again, held, trusted, or refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from moeplan.calibrate import fitting
from moeplan.calibrate.fitting import TRUST, error_of, fit_parameters, held_out
from moeplan.errors import InputError
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape
from moeplan.kernels.rows import Rows
from moeplan.kinds import Array
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import Gpu
from moeplan.specs.precision import weight_format

pytest.importorskip("scipy", reason="scipy is not installed: pip install 'moeplan[fit]'")
CATALOG = Catalog.standard()
H800, H20 = CATALOG.gpu("h800"), CATALOG.gpu("h20")
NO_KERNEL = Kernel(formats={"weights": weight_format("bf16")})
TRUE = {"floor": 5e-6, "bandwidth": 0.7, "idle": 3e-6}


def copying(gpu: Gpu, _kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """floor + bytes / (share · bandwidth); `idle` counts only where a row says so."""
    memory = np.asarray(shape["bytes"]) / (given["bandwidth"] * gpu.memory.bandwidth)
    seconds = given["floor"] + memory + given["idle"] * np.asarray(shape.get("idle", 0.0))
    return Parts(seconds=seconds, compute=0.0, memory=memory)


COPY = Form(
    name="copy",
    shape=("bytes", "kind"),
    whole=("kind",),
    roles=("weights",),
    parameters=(
        Parameter(name="floor", unit="s", start=1e-6, low=1e-7, high=1e-4, meaning="start"),
        Parameter(name="bandwidth", unit="", start=0.9, low=0.3, high=1.0, meaning="share reached"),
        Parameter(name="idle", unit="s", start=2e-6, low=1e-7, high=1e-4, meaning="where a row says so"),
    ),
    parts=copying,
)


def rows(gpu: Gpu = H800, true: Mapping[str, float] = TRUE, *, noise: float = 0.0, **shape: Array) -> Rows:
    columns = shape or {"bytes": np.geomspace(1e5, 1e9, 40), "kind": np.arange(40.0) // 2}
    exact = np.asarray(copying(gpu, NO_KERNEL, columns, true).seconds)
    scatter = np.exp(noise * np.random.default_rng(3).standard_normal(exact.size))
    return Rows(gpu=gpu, shape=columns, seconds=exact * scatter, source="synthetic")


def fit(*samples: Rows, **asked: Any) -> dict[str, float]:
    return fit_parameters(COPY, NO_KERNEL, samples, **asked)


def test_known_parameters_are_found_from_clean_rows() -> None:
    found = fit(rows(idle=np.tile([0.0, 1.0], 20), bytes=np.geomspace(1e5, 1e9, 40)))
    assert found == {name: pytest.approx(value, rel=1e-3) for name, value in TRUE.items()}


def test_known_parameters_are_found_from_noisy_rows_of_two_chips() -> None:
    found = fit(rows(noise=0.03), rows(H20, noise=0.03))
    assert found["floor"] == pytest.approx(5e-6, rel=0.05)
    assert found["bandwidth"] == pytest.approx(0.7, rel=0.05)


def test_the_parameters_of_a_real_form_are_found() -> None:
    form, kernel = form_named("gemm"), Kernel(formats={"weights": weight_format("fp8_block")}, tiles=(64, 128))
    true = {parameter.name: parameter.start for parameter in form.parameters}
    true |= {"floor": 6e-6, "bandwidth": 0.7, "block": 1.6e-7, "store": 2e-6}
    free = {"floor", "bandwidth", "block", "store"}
    m, n, k = (grid.ravel() for grid in np.meshgrid([16.0, 128.0, 2048.0], [512.0, 4096.0, 24576.0], [512.0, 7168.0]))
    shape = {"m": m, "n": n, "k": k}
    seconds = np.asarray(form.parts(H800, kernel, shape, true).seconds)
    sample = Rows(gpu=H800, shape=shape, seconds=seconds, source="synthetic")
    pinned = {name: value for name, value in true.items() if name not in free}
    found = fit_parameters(form, kernel, [sample], pinned=pinned)
    for name in free:
        assert found[name] == pytest.approx(true[name], rel=0.03), name


def test_pinned_parameters_stay() -> None:
    found = fit(rows(), pinned={"floor": 2e-6, "idle": 7e-6})
    assert (found["floor"], found["idle"]) == (2e-6, 7e-6)
    assert found.keys() == TRUE.keys()
    assert 0.3 <= found["bandwidth"] < 0.7  # makes up for the floor


def test_trust_keeps_at_the_start_what_rows_do_not_tell() -> None:
    """Rows of a gigabyte tell the bandwidth; neither the floor nor what no row names."""
    large = rows(bytes=np.geomspace(1e9, 1e10, 20), kind=np.arange(20.0))
    start = {"floor": 4e-6, "idle": 9e-6, "bandwidth": 0.5}
    found = fit(large, start=start, trust=TRUST)
    assert found["bandwidth"] == pytest.approx(0.7, rel=0.02)
    assert found["floor"] == pytest.approx(4e-6, rel=0.2)
    assert found["idle"] == pytest.approx(9e-6, rel=1e-6)
    held = fit(large, start=start, trust=1e4)
    assert held == {name: pytest.approx(value, rel=1e-3) for name, value in start.items()}


def test_every_sample_weighs_the_same() -> None:
    """While they agree to a few %: of rows further off a larger sample has more."""
    few = rows(true=TRUE | {"bandwidth": 0.495}, bytes=np.geomspace(1e8, 1e9, 10), kind=np.arange(10.0))
    many = rows(true=TRUE | {"bandwidth": 0.505}, bytes=np.geomspace(1e8, 1e9, 200), kind=np.arange(200.0))
    pinned = {"floor": 5e-6, "idle": 3e-6}
    assert fit(few, many, pinned=pinned)["bandwidth"] == pytest.approx(0.5, abs=0.001)
    assert fit(many, few, pinned=pinned)["bandwidth"] == pytest.approx(0.5, abs=0.001)


def test_a_row_far_off_moves_little() -> None:
    sample = rows()
    sample.seconds[7] *= 10.0
    found = fit(sample)
    assert found["bandwidth"] == pytest.approx(0.7, rel=0.05)


def test_fewer_rows_than_parameters_are_refused_unless_a_start_is_trusted() -> None:
    three = rows(bytes=np.array([1e5, 1e6, 1e9]), kind=np.arange(3.0))
    with pytest.raises(InputError, match="3 rows cannot fit copy — more rows than its 3 parameters"):
        fit(three)
    assert fit(three, pinned={"idle": 1e-6})["bandwidth"] == pytest.approx(0.7, rel=0.01)
    assert fit(three, trust=TRUST).keys() == TRUE.keys()


def test_no_parameter_leaves_its_bounds() -> None:
    found = fit(rows(true=TRUE | {"bandwidth": 5.0, "floor": 1e-9}))
    for parameter in COPY.parameters:
        assert parameter.low <= found[parameter.name] <= parameter.high * (1 + 1e-12), parameter.name


def test_the_same_rows_give_the_same_numbers() -> None:
    sample = rows(noise=0.1)
    assert fit(sample, rows=20) == fit(sample, rows=20)


def test_whole_shapes_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is predicted once, by a fit that saw no row of its shape."""
    sample, seen = rows(noise=0.05), []
    true = fitting.fit_parameters

    def record(form: Form, kernel: Kernel, samples: list[Rows], **asked: Any) -> dict[str, float]:
        seen.append(set(samples[0].shape["kind"].tolist()))
        return true(form, kernel, samples, **asked)

    monkeypatch.setattr(fitting, "fit_parameters", record)
    error = held_out(COPY, NO_KERNEL, [sample])
    every = set(sample.shape["kind"].tolist())
    assert len(seen) == 4
    left_out = [every - fold for fold in seen]
    assert sum(map(len, left_out)) == len(every)
    assert set().union(*left_out) == every
    assert error.rows == len(sample)
    assert 0.01 < error.median < 0.1


def test_an_error_by_hand() -> None:
    found = error_of([np.array([0.1, -0.2]), np.array([0.3, -0.4, 0.0])])
    assert (found.rows, found.median, found.p90, found.bias) == pytest.approx((5, 0.2, 0.36, 0.0))


def test_without_scipy_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(InputError, match=r"scipy: is not installed — pip install 'moeplan\[fit\]'"):
        fit(rows())
