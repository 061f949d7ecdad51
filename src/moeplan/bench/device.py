"""The GPU in this machine: its name in the catalog, and what the sidecar says about it."""

from __future__ import annotations

import subprocess
from typing import Any

from msgspec import Struct

from moeplan.bench.libraries import DRY, Absent, load, present
from moeplan.bench.presets import DEVICES, FOLDER
from moeplan.errors import Fault, InputError
from moeplan.specs.catalog import Catalog
from moeplan.specs.loading import read_mapping


class Device(Struct, frozen=True, kw_only=True):
    """What CUDA and the driver report. slug: the GPU's name in the catalog; None where nothing is known of it."""

    reported: str
    driver: str
    slug: str | None = None


def detect(catalog: Catalog) -> Device:
    """Ask CUDA which GPU is there; raise Absent when torch is missing or sees none."""
    torch: Any = load("torch")
    if not torch.cuda.is_available():
        raise Absent("GPU", "torch sees no CUDA GPU", f"run on a machine with one, {DRY}")
    reported = str(torch.cuda.get_device_name())
    driver = f"{_driver()}, CUDA {torch.version.cuda}, torch {torch.__version__}"
    return Device(reported=reported, driver=driver, slug=known_as(catalog, reported))


def known_as(catalog: Catalog, reported: str) -> str | None:
    """The catalog's name of the GPU that CUDA calls so."""
    table = read_mapping(catalog.data_file(FOLDER, f"{DEVICES}.yaml"))
    for slug, names in table.items():
        if reported.casefold() in (str(name).casefold() for name in names):
            return str(slug)
    return None


def gpu_name(catalog: Catalog, asked: str | None, device: Device | None) -> str:
    """The GPU that rows are written for: the one asked for, else the one found.

    Raises InputError when they are two different ones, or neither is known: rows under a wrong name mislead for good.
    """
    found = device.slug if device is not None else None
    if asked is None and found is None:
        problem = "is missing, and no GPU is found here"
        if device is not None:
            problem = f"is missing, and what CUDA calls {device.reported!r} is not known"
        raise InputError("options", [Fault("--gpu", problem, "name the GPU as «moeplan gpus» does")])
    if asked is None:
        assert found is not None
        return found
    slug = catalog.path("gpus", asked).stem
    if found is not None and found != slug:
        assert device is not None
        fix = f"leave --gpu out, or say --gpu {found}"
        raise InputError("options", [Fault("--gpu", f"is {slug}, but this machine has {device.reported}", fix)])
    return slug


def named_or_found(catalog: Catalog, asked: str | None) -> str:
    """The GPU of a dry run: the one asked for, else the one in this machine if there is one."""
    if asked is not None or not present("torch"):
        return gpu_name(catalog, asked, None)
    try:
        return gpu_name(catalog, None, detect(catalog))
    except Absent:
        return gpu_name(catalog, None, None)


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version,power.limit", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "driver unknown"
    version, _, power = done.stdout.strip().partition(", ")
    return f"driver {version}, power limit {power}"
