"""The article's argument «TP 2 instead of half the batch», worked out with measured kernels and a priced all-reduce.

Two GPUs serve b requests within a time. Either each takes b/2 of them with full weights (data parallel), or both take
all b with half of the heads each (tensor parallel), and add their outputs up. The article expects the second to be
better where halving the rows of a product does not halve its time. Experts and their all-to-all are not part of it:
they see the same tokens either way.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from moeplan.layers.attention import attention_back, attention_front
from moeplan.layers.step import Step
from moeplan.ops.collective import all_reduce
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine
from moeplan.specs.deployment import Precision
from moeplan.specs.model import Mla, ModelSpec


class Choice(Struct, frozen=True, kw_only=True):
    """Seconds of one attention layer on each GPU, by operator, for b requests on two GPUs."""

    name: str
    costs: tuple[Cost, ...]

    @property
    def seconds(self) -> float:
        """All operators one after another."""
        return sum(float(cost.seconds) for cost in self.costs)


def half_batch(machine: Machine, model: ModelSpec, *, batch: int, q_len: int, context: int) -> Choice:
    """Each GPU takes half of the requests."""
    return Choice(name="half the batch", costs=_attention(machine, model, batch / 2, q_len, context))


def two_way(machine: Machine, model: ModelSpec, *, batch: int, q_len: int, context: int, tp: int = 2) -> Choice:
    """Both GPUs take all requests with a share of the heads, then all-reduce the output in BF16.

    The latent cache and the projections that make it are whole on both; the query's first projection too.
    """
    attention = model.attention
    assert isinstance(attention, Mla), "the argument is about MLA"
    shared = replace(model, attention=replace(attention, heads=attention.heads // tp))
    reduced = all_reduce("all_reduce", machine, bytes_=batch * q_len * model.hidden * 2.0, ranks=tp)
    return Choice(name=f"TP {tp}", costs=(*_attention(machine, shared, batch, q_len, context), reduced))


def _attention(machine: Machine, model: ModelSpec, batch: float, q_len: int, context: int) -> tuple[Cost, ...]:
    precision = Precision.of(model)
    step = Step(
        model=model,
        machine=machine,
        precision=precision,
        batch=batch,
        q_len=q_len,
        context=context,
        ep=1,
        slots=None,
    )
    return (*attention_front(step), *attention_back(step, window=None))
