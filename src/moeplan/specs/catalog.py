"""Name -> file -> thing. A user's folder adds to the packaged data or overrides it, file by file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from moeplan.errors import Fault, InputError, UnknownName, together
from moeplan.specs.cluster import Cluster, Nic
from moeplan.specs.gpu import Gpu
from moeplan.specs.hf_config import model_from_config
from moeplan.specs.loading import build, read_mapping
from moeplan.specs.model import ModelSpec

if TYPE_CHECKING:
    from moeplan.specs.cluster_file import ClusterFile

Kind = Literal["gpus", "nics", "clusters", "models"]
_SUFFIXES = {"gpus": (".yaml", ".yml"), "nics": (".yaml", ".yml"), "clusters": (".yaml", ".yml"), "models": (".json",)}
ENVIRONMENT = "MOEPLAN_DATA"


class Catalog(Struct, frozen=True):
    """Folders that hold gpus/, nics/, clusters/, models/ and kernels/; the first that has a name wins."""

    roots: tuple[Path, ...]

    @classmethod
    def standard(cls, data: str | Path | None = None) -> Catalog:
        """The packaged data, under the user's folder (argument, else the environment's MOEPLAN_DATA) if there is one.

        Raises InputError when the user's folder is not a folder.
        """
        chosen = data if data is not None else os.environ.get(ENVIRONMENT) or None
        packaged = Path(__file__).resolve().parents[1] / "data"  # importlib.resources costs 15 ms to import
        if chosen is None:
            return cls((packaged,))
        folder = Path(chosen)
        if not (str(chosen) and os.path.isdir(folder)):
            where = "--data" if data is not None else ENVIRONMENT
            fix = "give a folder with gpus/, nics/, clusters/, models/ or kernels/ inside"
            raise InputError(where, [Fault(str(folder), "is no folder", fix)])
        return cls((folder, packaged))

    @property
    def packaged(self) -> Catalog:
        """The packaged data alone: what was measured was measured on the packaged chips."""
        return self if len(self.roots) == 1 else Catalog(self.roots[-1:])

    def overrides_gpu(self, slug: str) -> bool:
        """Whether the user's folder has a file for a packaged GPU."""
        own = {path.stem for root in self.roots[:-1] for end in _SUFFIXES["gpus"] for path in root.glob(f"gpus/*{end}")}
        return slug in own and slug in self.packaged.names("gpus")

    def gpu(self, name: str) -> Gpu:
        """Return the GPU of that name or alias; raise UnknownName or InputError."""
        path = self.path("gpus", name)
        return replace(_load_gpu(path, path.stat().st_mtime_ns), slug=path.stem)

    def nic(self, name: str) -> Nic:
        """Return the NIC of that name or alias; raise UnknownName or InputError."""
        path = self.path("nics", name)
        return replace(_load_nic(path, path.stat().st_mtime_ns), slug=path.stem)

    def cluster(self, name: str) -> Cluster:
        """Return the cluster of that name, its GPU and NIC loaded; raise UnknownName or InputError."""
        written = self.cluster_file(name)
        together(
            str(self.path("clusters", name)),
            lambda: self.gpu(written.gpu),
            lambda: self.nic(written.nic),
        )
        return Cluster(
            gpu=self.gpu(written.gpu),
            nic=self.nic(written.nic),
            gpus_per_node=written.gpus_per_node,
            nics_per_node=written.nics_per_node,
            nodes=written.nodes,
            leaf_nodes=written.leaf_nodes,
            oversubscription=written.oversubscription,
        )

    def cluster_file(self, name: str) -> ClusterFile:
        """Return that cluster as written, with its sources; raise UnknownName or InputError."""
        from moeplan.specs.cluster_file import ClusterFile

        path = self.path("clusters", name)
        return build(ClusterFile, read_mapping(path), str(path))

    def model(self, name: str) -> ModelSpec:
        """Return the model of that built-in name, alias or repository, or of a config.json (or the folder with it)."""
        given = Path(name)
        if os.path.isfile(given / "config.json"):  # unlike Path.is_file, says no to a name that no path can have
            given = given / "config.json"
        if os.path.isfile(given):
            return _load_model(given, given.stat().st_mtime_ns)
        if given.suffix == ".json" or name.startswith((".", "/", "~")):
            raise InputError("model", [Fault(name, "no such file", "give the path of a config.json")])
        path = self.path("models", name)
        return _load_model(path, path.stat().st_mtime_ns)

    def kernel_table(self, gpu: str, family: str) -> Path | None:
        """Return the table (.csv or .parquet) with that GPU's measured kernels of a family, or None.

        Raises InputError when a folder has both.
        """
        for root in self.roots:
            found = [
                path for end in (".csv", ".parquet") if (path := root / "kernels" / gpu / f"{family}{end}").is_file()
            ]
            if len(found) > 1:
                fault = Fault(f"{family}", "is there as .csv and as .parquet", "keep one of them")
                raise InputError(str(root / "kernels" / gpu), [fault])
            if found:
                return found[0]
        return None

    def data_file(self, *parts: str) -> Path:
        """Return a file of figures by its path inside the data folders; the user's wins."""
        return next(path for root in self.roots if (path := root.joinpath(*parts)).is_file())

    def path(self, kind: Kind, name: str) -> Path:
        """Resolve a name or alias to its file; raise UnknownName with near names."""
        given = name.lower().strip()
        if len(self.roots) == 1:  # packaged names are lower case: no need to list what there is
            for suffix in _SUFFIXES[kind] if os.path.basename(given) == given else ():
                if given != "index" and os.path.isfile(found := self.roots[0] / kind / f"{given}{suffix}"):
                    return found
        files = {path.stem.lower(): path for path in reversed(list(self._files(kind)))}
        if given in files:  # a file's own name before an alias
            return files[given]
        aliases = self._aliases(kind)
        if aliases.get(given) in files:
            return files[aliases[given]]
        known = {*self.names(kind), *aliases}
        raise UnknownName({"gpus": "gpu", "nics": "nic"}.get(kind, kind.rstrip("s")), name, known)

    def names(self, kind: Kind) -> list[str]:
        """All names of a kind, sorted, aliases left out."""
        return sorted({path.stem for path in self._files(kind)})

    def _aliases(self, kind: Kind) -> dict[str, str]:
        found: dict[str, str] = {}
        for root in reversed(self.roots):
            index = root / kind / "index.yaml"
            for slug, words in read_mapping(index).items() if index.is_file() else ():
                if not isinstance(words or [], list):
                    fault = Fault(str(slug), f"holds {words!r}", "write a list of names, such as [a, b]")
                    raise InputError(str(index), [fault])
                found.update({str(word).lower(): str(slug).lower() for word in words or ()})
        return found

    def _files(self, kind: Kind) -> Iterator[Path]:
        for root in self.roots:
            for suffix in _SUFFIXES[kind]:
                yield from (path for path in sorted((root / kind).glob(f"*{suffix}")) if path.stem != "index")


@lru_cache(maxsize=64)
def _load_gpu(path: Path, _changed: int) -> Gpu:
    return build(Gpu, read_mapping(path), str(path))


@lru_cache(maxsize=64)
def _load_nic(path: Path, _changed: int) -> Nic:
    return build(Nic, read_mapping(path), str(path))


@lru_cache(maxsize=64)
def _load_model(path: Path, _changed: int) -> ModelSpec:
    content = read_mapping(path)
    companion = path.with_name("hf_quant_config.json")
    quantisation = read_mapping(companion) if companion.is_file() else None
    own = str(path.resolve().parent) if path.stem == "config" else path.stem  # a checkpoint's folder, or a slug
    name = str(content.get("_name") or content.get("_name_or_path") or Path(own).name)
    repository = str(content.get("_repository") or content.get("_name_or_path") or own)
    return model_from_config(content, name=name, repository=repository, hf_quant_config=quantisation)
