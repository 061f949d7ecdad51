"""What a table adds to a fit: fitted over measured time, between and beyond its rows, by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from moeplan.kernels.correction import AXES, NEAR, Correction, points_of
from moeplan.kernels.fit import Fit, FitError
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.forms.form import Form, Kernel, Parameters, Parts, Shape
from moeplan.kernels.origin import Origin
from moeplan.kinds import Array
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import Gpu
from moeplan.specs.precision import weight_format

GPU = Catalog.standard().gpu("h800")
KERNEL = Kernel(formats={"weights": weight_format("bf16")})
NOTHING = FitError(rows=0, median=0.0, p90=0.0, bias=0.0)


def simple(name: str) -> Fit:
    """A form that takes a nanosecond per row of m (per group), whatever the weights."""

    def parts(_gpu: Gpu, _kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
        rows = np.asarray(shape["m"], dtype=float) * np.asarray(shape.get("groups", 1.0))
        return Parts(seconds=given["row"] * rows, compute=0.0, memory=0.0)

    own = form_named(name)
    form = Form(name=name, shape=own.shape, whole=own.whole, roles=own.roles, parameters=(), parts=parts)
    return Fit(title="simple", form=form, kernel=KERNEL, parameters={"row": 1e-9}, error=NOTHING, gpus=())


def columns(**values: list[float]) -> dict[str, Array]:
    return {name: np.array(column, dtype=float) for name, column in values.items()}


def gemm(*rows: tuple[float, float, float, float], best: Origin = Origin.MEASURED) -> Correction:
    """Rows of m, n, k, and fitted over measured time."""
    m, n, k, speed = (list(column) for column in zip(*rows, strict=True))
    seconds = np.array(m) * 1e-9 / np.array(speed)
    return Correction.of("rows", GPU, columns(m=m, n=n, k=k), seconds, simple("gemm"), best)


TABLE = gemm((16, 100, 200, 0.5), (64, 100, 200, 1.5), (16, 1000, 200, 2.0), (256, 1000, 200, 3.0))


def at(correction: Correction, **shape: float) -> tuple[float, Origin]:
    found = correction.at(shape)
    return float(found.speed), found.origin


@pytest.mark.parametrize(
    ("m", "n", "speed", "origin"),
    [
        (16, 100, 0.5, Origin.MEASURED),
        (64, 100, 1.5, Origin.MEASURED),
        (32, 100, 1.0, Origin.INTERPOLATED),  # half way in log(m)
        (4, 100, 0.5, Origin.EXTRAPOLATED),
        (9999, 100, 1.5, Origin.EXTRAPOLATED),
        (64, 1000, 2.5, Origin.INTERPOLATED),
    ],
)
def test_ratios_by_hand(m: float, n: float, speed: float, origin: Origin) -> None:
    found = TABLE.at({"m": m, "n": n, "k": 200})
    assert found.speed == pytest.approx(speed, rel=1e-9)
    assert (found.origin, found.distance, found.nearest) == (origin, 0.0, (n, 200))


def test_the_nearest_weight_shape_by_the_logarithms_of_both_sides() -> None:
    found = TABLE.at({"m": 16.0, "n": 120.0, "k": 100.0})
    assert found.nearest == (100.0, 200.0)
    assert found.distance == pytest.approx(math.log(1.2) + math.log(2))
    assert found.speed == pytest.approx(0.5)
    assert TABLE.at({"m": 16.0, "n": 500.0, "k": 200.0}).nearest == (1000.0, 200.0)
    assert pytest.approx(math.log(4)) == NEAR


def test_equally_near_shapes_are_told_apart_by_their_size() -> None:
    """The order of the rows does not matter."""
    rows = [(16.0, 100.0, 200.0, 0.5), (16.0, 400.0, 200.0, 2.0)]
    for order in (rows, rows[::-1]):
        assert gemm(*order).at({"m": 16.0, "n": 200.0, "k": 200.0}).nearest == (100.0, 200.0)


def test_a_table_can_make_a_row_no_surer_than_itself() -> None:
    capped = gemm((16, 100, 200, 0.5), (64, 100, 200, 1.5), best=Origin.ASSUMED)
    assert [at(capped, m=m, n=100, k=200)[1] for m in (16, 32, 99)] == [Origin.ASSUMED] * 3


def test_an_array_of_rows_is_answered_at_once() -> None:
    m = np.array([4.0, 16.0, 32.0, 64.0, 9999.0])
    found = TABLE.at({"m": m, "n": 100.0, "k": 200.0})
    assert np.asarray(found.speed) == pytest.approx([0.5, 0.5, 1.0, 1.5, 1.5])
    assert found.origin is Origin.EXTRAPOLATED
    inside = TABLE.at({"m": m[1:4], "n": 100.0, "k": 200.0})
    assert inside.origin is Origin.INTERPOLATED


def test_equal_rows_are_averaged_as_ratios() -> None:
    assert at(gemm((16, 100, 200, 0.5), (16, 100, 200, 1.5)), m=16, n=100, k=200)[0] == pytest.approx(1.0)


def test_groups_are_the_other_axis_of_a_grouped_product() -> None:
    shape = columns(groups=[2, 8], m=[64, 64], n=[100, 100], k=[200, 200])
    fitted = np.array([128.0, 512.0]) * 1e-9
    correction = Correction.of(
        "rows", GPU, shape, fitted / np.array([1.0, 3.0]), simple("grouped_gemm"), Origin.MEASURED
    )
    assert not correction.of_both
    found = correction.at({"groups": 4.0, "m": 64.0, "n": 100.0, "k": 200.0})
    assert found.speed == pytest.approx(2.0)
    assert found.origin is Origin.INTERPOLATED
    both = Correction.of("rows", GPU, {**shape, "both": np.ones(2)}, fitted, simple("grouped_gemm"), Origin.MEASURED)
    assert both.of_both


@pytest.mark.parametrize(
    ("form", "shape", "name", "series", "line"),
    [
        ("gemm", {"m": 3.0, "n": 5.0, "k": 7.0}, (5.0, 7.0), 1.0, 3.0),
        ("batched_gemm", {"copies": 2.0, "m": 3.0, "n": 5.0, "k": 7.0}, (5.0, 7.0), 2.0, 3.0),
        ("grouped_gemm", {"groups": 2.0, "m": 3.0, "n": 5.0, "k": 7.0}, (5.0, 7.0), 2.0, 3.0),
        ("mla_decode", {"batch": 2.0, "heads": 3.0, "q_len": 5.0, "context": 7.0}, (), 15.0, 14.0),
        (
            "gqa_decode",
            {"batch": 2.0, "heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0, "q_len": 5.0, "context": 7.0},
            (32.0, 8.0, 128.0),
            10.0,
            7.0,
        ),
    ],
)
def test_the_axes_of_every_form(
    form: str, shape: Mapping[str, float], name: tuple[float, ...], series: float, line: float
) -> None:
    axes = AXES[form]
    assert tuple(shape[column] for column in axes.names) == name
    assert float(np.asarray(axes.series(shape))) == series
    assert float(np.asarray(axes.line(shape))) == line
    assert set(axes.names) <= set(form_named(form).shape)


def test_points_are_rows_by_their_weight_shape() -> None:
    shape = columns(m=[1, 2, 4], n=[8, 8, 9], k=[3, 3, 3])
    found = points_of(GPU, shape, np.array([1e-9, 1e-9, 2e-9]), simple("gemm"))
    assert found.keys() == {(8.0, 3.0), (9.0, 3.0)}
    assert found[8.0, 3.0] == [pytest.approx((1.0, 1.0, 1.0)), pytest.approx((1.0, 2.0, 2.0))]
    assert found[9.0, 3.0] == [pytest.approx((1.0, 4.0, 2.0))]
