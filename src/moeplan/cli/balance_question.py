"""What `moeplan balance` is asked: loads, sizes, model and machine, read and held against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from moeplan.cli.machines import DEFAULT_NIC
from moeplan.cli.options import cluster_of, edited_model, edits_of
from moeplan.errors import Fault, InputError
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import excess_faults

if TYPE_CHECKING:
    from moeplan.routing.expert_loads import ExpertLoads
    from moeplan.specs.cluster import Cluster
    from moeplan.specs.model import ModelSpec

DEFAULT_LAYERS = 58
OF_LOADS = (  # options that --published passes over
    *(("law", "--load"), ("current", "--from"), ("edits", "--set")),
    *((key, f"--{key}") for key in ("ranks", "redundant", "nodes", "groups", "experts", "layers", "model", "gpu")),
    *((key, f"--{key}") for key in ("nic", "bound", "out", "worth", "pause", "chart", "context")),
    *(("min_tps", "--min-tps"), ("window_seconds", "--window-seconds")),
)


class Subject(Struct, frozen=True, kw_only=True):
    """What is balanced: loads, model and cluster where given, sizes."""

    loads: ExpertLoads
    spec: ModelSpec | None
    cluster: Cluster | None
    ranks: int
    slots: int
    nodes: int
    groups: int

    @property
    def expert_bytes(self) -> float | None:
        """One expert of one layer."""
        if self.spec is None or self.spec.experts is None:
            return None
        from moeplan.specs.parameters import routed_bytes

        return routed_bytes(self.spec, mtp=False) / self.spec.moe_layer_count / self.spec.experts.count

    @property
    def sizes(self) -> dict[str, int]:
        """How many slots, ranks, nodes, groups."""
        return {"slots": self.slots, "ranks": self.ranks, "nodes": self.nodes, "groups": self.groups}


def check(files: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise InputError for what is missing or contradicts itself, before anything is read."""
    faults = []
    if options["published"]:
        others = [name for key, name in OF_LOADS if options[key]]
        if others or files:
            fix = f"drop {', '.join([*(['FILE'] if files else []), *others])}"
            faults.append(Fault("--published", "asks nothing about loads of yours", fix))
    else:
        if bool(files) == bool(options["law"]):
            faults.append(Fault("loads", "are missing" if not files else "are given twice", "give FILE or --load LAW"))
        if options["ranks"] is None:
            faults.append(Fault("--ranks", "is missing", "give the GPUs of the EP group"))
    if options["law"] and options["experts"] is None and options["model"] is None:
        faults.append(Fault("--load", "does not say how many experts", "give --experts or --model"))
    faults += [
        Fault(f"--{name}", "is of --load, FILE says it", "drop it")
        for name in ("experts", "layers")
        if files and options[name] is not None
    ]
    faults += [
        Fault(f"--{name}", f"says nothing without --{needs}", f"give --{needs}, or drop it")
        for name, needs, key in (("bound", "from", "current"), ("gpu", "model", "model"), ("nic", "gpu", "gpu"))
        if options[name] is not None and options[key] is None
    ]
    faults += _useless_edits(options)
    if not 0 <= options["share"] <= 1:
        faults.append(Fault("--share", f"is {options['share']:g}", "give the part of a step, 0 to 1"))
    faults += [
        Fault(f"--{name.replace('_', '-')}", f"is {options[name]:g}", "give more than 0 seconds")
        for name in ("window_seconds", "pause")
        if options[name] is not None and not options[name] > 0
    ]
    if options["out"] and not Path(options["out"]).name.endswith(".json"):
        faults.append(Fault("--out", f"is {options['out']!r}", "end it in .json: SGLang goes by the name"))
    if faults:
        raise InputError("options", faults)


def _useless_edits(options: Mapping[str, Any]) -> Iterator[Fault]:
    """Edits of what was not named: nothing would come of them."""
    for edit in () if options["published"] else options["edits"]:
        needed = "model" if edit.startswith("model.") else "gpu"
        if not options[needed]:
            yield Fault(f"--set {edit}", f"says nothing without --{needed}", f"give --{needed}, or drop it")


def subject(files: Sequence[str], options: Mapping[str, Any], catalog: Catalog) -> Subject:
    """Read model, cluster and loads; raise InputError."""
    from moeplan.routing.eplb import check_sizes
    from moeplan.routing.load_files import read_loads
    from moeplan.routing.load_laws import law_loads

    spec = edited_model(catalog, options["model"], options["edits"])[0] if options["model"] else None
    if spec is not None and spec.experts is None:
        raise InputError("model", [Fault(spec.name, "has no experts", "name a Mixture-of-Experts model")])
    experts = spec.experts if spec is not None else None
    cluster = None
    if options["gpu"]:
        cluster = cluster_of(catalog, options["gpu"], options["nic"] or DEFAULT_NIC, None, edits_of(options["edits"]))
    if options["law"]:
        count = options["experts"] or (experts.count if experts is not None else 0)
        layers = options["layers"] or (spec.moe_layer_count if spec is not None else DEFAULT_LAYERS)
        loads = law_loads(options["law"], layers=layers, experts=count, seed=options["seed"])
    else:
        loads = read_loads([Path(name) for name in files])
    if spec is not None and experts is not None:
        _check_model(loads, spec)
    ranks = options["ranks"]
    redundant = options["redundant"] if options["redundant"] is not None else -loads.experts % ranks
    nodes = options["nodes"] or 1
    groups = options["groups"] or (max(experts.n_group, 1) if experts is not None and nodes > 1 else 1)
    sizes = {"slots": loads.experts + redundant, "ranks": ranks, "nodes": nodes, "groups": groups}
    check_sizes(experts=loads.experts, **sizes)
    if excess := list(excess_faults(redundant, experts=loads.experts, ep=ranks, name="--redundant")):
        raise InputError("balance", excess)
    return Subject(loads=loads, spec=spec, cluster=cluster, **sizes)


def _check_model(loads: ExpertLoads, spec: ModelSpec) -> None:
    assert spec.experts is not None, "the caller has refused a dense model"
    faults = []
    if loads.experts != spec.experts.count:
        problem = f"are of {loads.experts} experts, {spec.name} has {spec.experts.count}"
        faults.append(Fault("loads", problem, "name the model they were recorded of"))
    if len(loads.layers) > spec.layer_count or max(loads.layers) >= spec.layer_count:
        problem = f"are of {len(loads.layers)} layers up to {max(loads.layers)}, {spec.name} has {spec.layer_count}"
        faults.append(Fault("loads", problem, "name the model they were recorded of"))
    if faults:
        raise InputError(loads.source, faults)


def model_rows(asked: Subject) -> tuple[tuple[int, ...], int]:
    """The layer of the model that every row of the loads is of, and the layers of the model.

    Rows without numbers of their own that are as many as the layers with experts are those, which come last.
    """
    layers, spec = asked.loads.layers, asked.spec
    if spec is None:
        return layers, max(layers) + 1
    if layers == tuple(range(spec.moe_layer_count)) and spec.moe_layer_count < spec.layer_count:
        first = spec.layer_count - spec.moe_layer_count
        return tuple(range(first, spec.layer_count)), spec.layer_count
    return layers, spec.layer_count
