"""Laws and facts of the three all-to-all forms, and the errors that their packaged fits reach."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaged_fits import fit, own_errors

from moeplan.errors import Unsupported
from moeplan.kernels.forms import deepep_low_latency, deepep_normal, nvlink_all_to_all
from moeplan.kernels.forms.form import Form, Kernel
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
H200 = CATALOG.gpu("h200")
FORMS: list[Form] = [module.FORM for module in (deepep_low_latency, deepep_normal, nvlink_all_to_all)]
BASE = {
    "tokens": 128.0,
    "hidden": 7168.0,
    "top_k": 8.0,
    "experts": 256.0,
    "ep": 32.0,
    "combine": 0.0,
    "sms": 20.0,
    "per_node": 8.0,
    "nic_rate": 50e9,
    "nic_latency": 1e-5,
}
SHAPES = st.fixed_dictionaries(
    {
        "tokens": st.integers(1, 8192),
        "hidden": st.sampled_from([2048, 4096, 7168]),
        "top_k": st.integers(1, 10),
        "experts": st.sampled_from([64, 256, 512]),
        "ep": st.sampled_from([8, 16, 32, 64]),
        "combine": st.sampled_from([0, 1]),
        "sms": st.sampled_from([4, 20, 48]),
    }
)
BARS = {"deepep_low_latency": 0.08, "deepep_normal": 0.11}


def kernel(wire: str = "fp8_block") -> Kernel:
    return Kernel(formats={"wire": weight_format(wire)})


def starts(form: Form) -> dict[str, float]:
    return {parameter.name: parameter.start for parameter in form.parameters}


def seconds(form: Form, shape: Mapping[str, float], **given: float) -> float:
    return float(form.parts(H200, kernel(), shape, starts(form) | given).seconds)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_at_most_ten_parameters(form: Form) -> None:
    assert len(form.parameters) <= 10


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@given(shape=SHAPES)
def test_positive_finite_and_longer_than_its_wire(form: Form, shape: dict[str, int]) -> None:
    found = form.parts(H200, kernel(), {**BASE, **shape}, starts(form))
    assert 0.0 < float(found.network) < float(found.seconds) < np.inf
    assert float(found.floor) > 0.0


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@given(shape=SHAPES, name=st.sampled_from(["tokens", "hidden", "top_k"]), times=st.integers(2, 4))
def test_more_bytes_never_take_less_time(form: Form, shape: dict[str, int], name: str, times: int) -> None:
    less = {**BASE, **shape}
    assert seconds(form, {**less, name: less[name] * times}) >= seconds(form, less) * (1 - 1e-9)


@given(shape=SHAPES)
def test_more_sms_are_never_slower(shape: dict[str, int]) -> None:
    form, slow = deepep_normal.FORM, {**BASE, **shape}
    assert seconds(form, {**slow, "sms": slow["sms"] + 4.0}) <= seconds(form, slow) * (1 + 1e-9)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_scalar_equals_its_element_of_an_array(form: Form) -> None:
    tokens, ep = np.meshgrid([1.0, 64.0, 4096.0], [8.0, 16.0, 64.0], indexing="ij")
    found = np.asarray(form.parts(H200, kernel(), {**BASE, "tokens": tokens, "ep": ep}, starts(form)).seconds)
    alone = [[seconds(form, {**BASE, "tokens": t, "ep": e}) for e in ep[0].tolist()] for t in tokens[:, 0].tolist()]
    np.testing.assert_allclose(found, alone, rtol=1e-12)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_wire_grows_with_the_busiest_rank(form: Form) -> None:
    """Balanced over nodes, the busiest GPU has twice the mean: twice the wire."""
    even = form.parts(H200, kernel(), BASE, starts(form)).network
    skewed = form.parts(H200, kernel(), {**BASE, "skew": 2.0}, starts(form)).network
    assert float(skewed) == pytest.approx(2.0 * float(even))


def test_half_the_nics_take_twice_as_long_between_nodes() -> None:
    form = deepep_low_latency.FORM
    lone = {"link": 1.0, "nic": 1.0, "token": 1e-9, "floor": 1e-6, "expert": 1e-10}
    whole, half = (seconds(form, {**BASE, "per_node": 1.0, "nic_rate": rate}, **lone) for rate in (50e9, 25e9))
    assert half / whole == pytest.approx(2.0, rel=0.1)


def test_two_hosts_of_h20_with_four_cards_each() -> None:
    """DeepEP issue 183: EP16 over four bonds per eight GPUs, 25 GB/s each, 873 µs for dispatch and combine.

    All 22.27 MB at 25 GB/s would be 0.89 ms; of DeepEP's kernels of then, which used no NVLink, 15 of 16 messages left.
    """
    shape = {**BASE, "ep": 16.0, "per_node": 1.0, "nic_rate": 25e9}
    both = (("fp8_block", "dispatch", 0.0), ("bf16", "combine", 1.0))
    sizes = [7168 * weight_format(wire).activation_bytes + 16.0 * (1.0 - combine) for wire, _, combine in both]
    payload = 128 * 8 * sum(sizes)
    assert payload == pytest.approx(22.27e6, rel=1e-3)
    assert payload / 25e9 == pytest.approx(0.89e-3, rel=5e-3)
    found = 0.0
    for wire, direction, combine in both:
        known = fit(f"deepep_low_latency.{wire}.deepep-rdma-{direction}", "hopper")
        found += float(known.parts(CATALOG.gpu("h20"), {**shape, "combine": combine}).seconds)
    assert found == pytest.approx(873e-6, rel=0.15)


def test_a_slower_proxy_starts_later() -> None:
    """A fabric whose NIC is posted to by a CPU, EFA, has a longer latency than InfiniBand."""
    cx7, efa = CATALOG.nic("cx7"), CATALOG.nic("efa-p5en")
    small = {**BASE, "tokens": 1.0}
    for form in (deepep_low_latency.FORM, deepep_normal.FORM):
        near = seconds(form, {**small, "nic_latency": cx7.latency})
        assert seconds(form, {**small, "nic_latency": efa.latency}) > near + 5 * cx7.latency


def test_inside_a_node_the_nic_does_not_matter() -> None:
    for form in (deepep_low_latency.FORM, deepep_normal.FORM):
        inside = {**BASE, "ep": 8.0}
        assert seconds(form, {**inside, "nic_rate": 1e9, "nic_latency": 1.0}) == seconds(form, inside)


def test_one_rank_per_expert_uses_few_sms() -> None:
    """8 experts keep 8 SMs busy: DeepEP on H200 takes 304 µs for 1,024 tokens of 4096 to 2 of 8, 129 to 8 of 128."""
    known = fit("deepep_low_latency.fp8_block.deepep-dispatch", "h200")
    shape = {**BASE, "tokens": 1024.0, "hidden": 4096.0, "ep": 8.0}
    few = float(known.parts(H200, {**shape, "top_k": 2.0, "experts": 8.0}).seconds)
    many = float(known.parts(H200, {**shape, "experts": 128.0}).seconds)
    assert few == pytest.approx(304e-6, rel=0.15)
    assert many == pytest.approx(129e-6, rel=0.15)


def test_links_reach_what_deepep_reports() -> None:
    """H800 200 GB/s and H100 450 GB/s one way; large messages reach 70 to 90 % of it."""
    links = {gpu: CATALOG.gpu(gpu).scale_up for gpu in ("h800", "h100")}
    rates = {gpu: link.bandwidth for gpu, link in links.items() if link is not None}
    assert rates == {"h800": 200e9, "h100": 450e9}
    for gpu in rates:
        for recipe in ("deepep_normal.bf16.deepep-combine", "deepep_normal.fp8_block.deepep-dispatch"):
            assert 0.7 <= fit(recipe, gpu).parameters["link"] <= 0.9


def test_a_chip_without_a_link_sends_everything_over_the_nic() -> None:
    alone = {**BASE, "per_node": 1.0}
    given = starts(deepep_low_latency.FORM)
    card = deepep_low_latency.FORM.parts(CATALOG.gpu("l40s"), kernel(), alone, given).seconds
    assert 0 < float(card) < float("inf")
    linked = deepep_low_latency.FORM.parts(CATALOG.gpu("h100"), kernel(), alone, given).seconds
    assert float(card) == pytest.approx(float(linked), rel=0.1)  # nothing crosses a link here, either
    with pytest.raises(Unsupported, match="no scale-up link"):
        nvlink_all_to_all.FORM.parts(CATALOG.gpu("l40s"), kernel(), BASE, starts(nvlink_all_to_all.FORM))


@pytest.mark.parametrize("module", [deepep_low_latency, deepep_normal])
@pytest.mark.parametrize("name", ["fp8_block.deepep-dispatch", "bf16.deepep-combine"])
def test_packaged_fits_reach_the_bar(module: ModuleType, name: str) -> None:
    form = module.FORM.name
    for gpu, error in own_errors(f"{form}.{name}").items():
        assert error.median <= BARS[form], gpu
        assert error.p90 <= 0.25, gpu
