"""DeepSeek's decode profile on H800: the bars that the first release holds."""

import pytest

from moeplan.specs.catalog import Catalog
from moeplan.validate.profile import ProfileComparison, compare_profile


@pytest.fixture(scope="module")
def comparison() -> ProfileComparison:
    return compare_profile(Catalog.standard())


def test_the_layer_is_within_12_percent(comparison: ProfileComparison) -> None:
    assert comparison.layer.measured == pytest.approx(1421e-6)
    assert abs(comparison.layer.error) < 0.08


def test_no_large_compute_operator_is_off_by_more_than_35_percent(comparison: ProfileComparison) -> None:
    large = [item for item in comparison.operators if item.kind == "kernel" and (item.share or 0) > 0.05]
    assert {item.name for item in large} == {
        "attn.mqa_core",
        "attn.o_proj",
        "moe.up_gate_grouped_gemm",
        "moe.down_grouped_gemm",
    }
    assert {item.name: item.error for item in large if abs(item.error) > 0.20} == {}


def test_the_operators_of_the_profile_add_up_to_most_of_its_layer(comparison: ProfileComparison) -> None:
    """Guards the observations file: 1,138 µs of kernels in a layer of 1,421, the rest is exposed communication."""
    kernels = sum(2 * item.measured for item in comparison.operators if item.kind == "kernel")
    assert 0.75 < kernels / comparison.layer.measured < 0.85


def test_throughput_is_nearer_than_the_simulators(comparison: ProfileComparison) -> None:
    peers = [abs(rate / 2324 - 1) for _, _, rate, how in comparison.peers if how == "run for a comparison"]
    assert len(peers) == 4
    assert abs(comparison.throughput.error) < min(peers)


def test_both_figures_of_throughput_are_shown(comparison: ProfileComparison) -> None:
    """The derived one takes 88 ms, the profile's own step 96: the second error is the step's from the other side."""
    assert comparison.throughput_of_step.measured == pytest.approx(128 * 1.6 / 0.096, rel=1e-3)
    assert 1 + comparison.throughput_of_step.error == pytest.approx(1 / (1 + comparison.step.error))
