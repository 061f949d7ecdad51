"""How the shape of experts has changed: the built-in models side by side, and what the batch article prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from moeplan.specs.catalog import Catalog
from moeplan.specs.model import ModelSpec
from moeplan.specs.parameters import parameters


class ExpertShape(Struct, frozen=True, kw_only=True):
    """A model's FFN: routed experts of `width`, top_k per token (a dense model: one, always taken).

    Two ratios that are easily mixed up: chosen = k/E, the experts a token takes; active = active over total parameters.
    """

    slug: str
    model: str
    experts: int
    top_k: int
    width: int
    shared_width: int
    expert_parameters: float
    active_parameters: float
    total_parameters: float

    @property
    def chosen(self) -> float:
        """k/E."""
        return self.top_k / self.experts

    @property
    def active(self) -> float:
        """Active over total parameters, embedding and head counted in both."""
        return self.active_parameters / self.total_parameters


def expert_shape(slug: str, model: ModelSpec) -> ExpertShape:
    """The shape of one model; slug: its built-in name."""
    count, experts = parameters(model), model.experts
    width = model.dense_width if experts is None else experts.width
    return ExpertShape(
        slug=slug,
        model=model.name,
        experts=1 if experts is None else experts.count,
        top_k=1 if experts is None else experts.top_k,
        width=width,
        shared_width=0 if experts is None else experts.shared_width,
        expert_parameters=3.0 * model.hidden * width,
        active_parameters=count.active,
        total_parameters=count.total,
    )


def expert_shapes(catalog: Catalog, first: Sequence[str] = ()) -> list[ExpertShape]:
    """All built-in models, those of one shape once, the largest share of chosen experts first.

    Of several with one shape the one in `first` is named, else the first by name.
    """
    return sorted(_distinct(catalog, first), key=lambda shape: (-shape.chosen, -shape.width, shape.model))


def _distinct(catalog: Catalog, first: Sequence[str]) -> Iterator[ExpertShape]:
    seen = set()
    for name in (*first, *catalog.names("models")):
        model = catalog.model(name)
        key = (model.hidden, model.layers, model.attention, model.dense_width, model.experts)
        if key not in seen:
            seen.add(key)
            yield expert_shape(name, model)
