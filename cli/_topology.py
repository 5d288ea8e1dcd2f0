"""`rubin-tune topology`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._group import Commands
from ._options import json_option
from ._output import print_json, print_table

if TYPE_CHECKING:
    from ..topology import Device, Gpu, Link, Machine, Rack, Topology

SCHEMA = "rubin-tune.topology/1"

_gpu_option = click.option(
    "--gpu", "gpu_name", metavar="NAME", help="What the imported machine's GPUs are."
)
_format_option = click.option(
    "--format",
    "form",
    metavar="NAME",
    help="nvidia_smi or nccl_xml; by default the content tells.",
)


@click.group(cls=Commands)
def topology() -> None:
    """GPUs, racks and machines: facts with their sources, links, pictures.

    \b
    Example:
      rubin-tune topology show vr200
    """


@topology.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the GPUs and racks that are described, and the GPU in this machine.

    \b
    Example:
      rubin-tune topology list
    """
    from ..topology import detect_gpu, gpu_names, load_gpu, load_rack, rack_names

    live = detect_gpu()
    gpus = [load_gpu(name) for name in gpu_names()]
    racks = [load_rack(name) for name in rack_names()]
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "gpus": [{"name": g.name, "arch": f"sm_{g.arch}", "title": g.title} for g in gpus],
                "racks": [{"name": r.name, "title": r.title} for r in racks],
                "present": live.name if live else None,
            }
        )
        return
    rows = [(g.name, "gpu", f"sm_{g.arch}", g.title) for g in gpus]
    rows += [(r.name, "rack", "", r.title) for r in racks]
    print_table("known hardware", ["name", "kind", "target", "title"], rows)
    click.echo(f"GPU in this machine: {live.name if live else 'none'}")


@topology.command()
@click.argument("name", required=False)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """Show every fact of a GPU or rack with its confidence and source; default: the GPU present.

    \b
    Example:
      rubin-tune topology show vr_nvl72
    """
    from ..topology import describe

    thing = _described(name)
    rows = describe(thing)
    if as_json:
        print_json({"schema": SCHEMA, "name": thing.name, "facts": [r._asdict() for r in rows]})
        return
    print_table(f"{thing.name}: {thing.title}", ["fact", "value", "confidence", "source"], rows)


@topology.command()
@json_option
def detect(as_json: bool) -> None:
    """Say which GPUs are in this machine and how they are linked.

    \b
    Example:
      rubin-tune topology detect
    """
    from ..topology import detect_gpus, detect_machine

    gpus = detect_gpus()
    found = detect_machine(gpus[0] if gpus else None)
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "gpus": [_live(gpu) for gpu in gpus],
                "machine": _machine(found) if found else None,
            }
        )
        return
    if not gpus:
        click.echo("no CUDA GPU in this machine: the default target is vr200")
    columns = ("name", "title", "arch", "sms", "domains", "memory_bytes", "power_limit_w")
    if gpus:
        rows = [[str(_live(gpu)[column]) for column in columns] for gpu in gpus]
        print_table("GPUs of this machine", columns, rows)
    if found:
        _print_machine(found)
    elif gpus:
        click.echo("nvidia-smi did not say how they are linked")


@topology.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@_format_option
@_gpu_option
@json_option
def import_(file: Path, form: str | None, gpu_name: str | None, as_json: bool) -> None:
    """Read FILE, the output of `nvidia-smi topo -m` or a topology that NCCL dumped.

    \b
    Example:
      rubin-tune topology import topo.txt --gpu h200

    Made by `nvidia-smi topo -m > topo.txt`; NCCL writes its own where NCCL_TOPO_DUMP_FILE says.
    """
    from ..topology import import_topology, resolve_target

    gpu = resolve_target(gpu_name) if gpu_name else None
    found = import_topology(file, form=form, gpu=gpu)
    if as_json:
        print_json({"schema": SCHEMA, **_machine(found)})
        return
    _print_machine(found)


@topology.command()
@click.argument("name", metavar="NAME|FILE")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE.svg")
@_format_option
@json_option
def plot(name: str, out: Path, form: str | None, as_json: bool) -> None:
    """Draw a GPU, a rack, or the machine that FILE describes, as SVG.

    \b
    Example:
      rubin-tune topology plot vr200 --out vr200.svg
      rubin-tune topology plot vr_nvl72 --out rack.svg
      rubin-tune topology plot topo.txt --out machine.svg
    """
    from ..db.formats._format import write_together
    from ..errors import InvalidInput
    from ..topology import draw, import_topology

    if out.suffix != ".svg":
        raise InvalidInput(f"--out is {str(out)!r}: must end in .svg")
    is_import = form is not None or (Path(name).is_file() and not name.endswith(".toml"))
    picture = draw(import_topology(Path(name), form=form) if is_import else _described(name))
    write_together({out: picture})
    if as_json:
        print_json({"schema": SCHEMA, "files": [str(out)]})
        return
    click.echo(out)


def _described(name: str | None) -> Gpu | Rack:
    """Return the GPU or rack of a name, or the GPU present."""
    from ..errors import InvalidInput
    from ..topology import detect_gpu, load_described

    if name is not None:
        return load_described(name)
    live = detect_gpu()
    if live is None:
        raise InvalidInput("no GPU in this machine: name one, for example vr200")
    return live


def _live(gpu: Gpu) -> dict[str, object]:
    return {
        "name": gpu.name,
        "title": gpu.title,
        "arch": f"sm_{gpu.arch}",
        "sms": gpu.sms,
        "domains": gpu.domains,
        "native_sms_per_domain": gpu.native_sms_per_domain,
        "supplemental_sms": gpu.supplemental_sms,
        "memory_bytes": gpu.memory_bytes,
        "power_limit_w": gpu.power_limit_w or None,
    }


def _machine(found: Topology) -> dict[str, object]:
    machine = _of(found)
    return {
        "title": machine.title,
        "gpu": found.each.name if found.each else None,
        "gpus": list(machine.gpus),
        "nvlink_gpus": found.max_ranks,
        "devices": [_device(device) for device in machine.devices],
        "links": [_link(link) for link in machine.links],
    }


def _of(found: Topology) -> Machine:
    if found.machine is None:
        raise TypeError("not an imported machine")
    return found.machine


def _device(device: Device) -> dict[str, object]:
    return {
        "name": device.name,
        "kind": device.kind.value,
        "parent": device.parent,
        "notes": dict(device.notes),
    }


def _link(link: Link) -> dict[str, object]:
    return {
        "a": link.a,
        "b": link.b,
        "kind": link.kind.value,
        "lanes": link.lanes,
        "bandwidth_bytes_per_s": link.bandwidth,
    }


def _print_machine(found: Topology) -> None:
    """Print a matrix of how GPUs reach GPUs and NICs, and what each GPU is beside."""
    from ..topology import DeviceKind

    machine = _of(found)
    ends = [*machine.gpus, *(d.name for d in machine.of_kind(DeviceKind.NIC))]
    rows = [
        [device.name, *(_word(machine, device.name, end) for end in ends), _beside(device)]
        for device in machine.of_kind(DeviceKind.GPU)
    ]
    print_table(machine.title, ["", *ends, "beside"], rows)
    speeds = {
        link.bandwidth
        for a in machine.gpus
        for b in machine.gpus
        if a < b and (link := machine.path(a, b)) and link.bandwidth
    }
    rate = f", {min(speeds) / 1e9:g} GB/s one way between two" if speeds else ""
    click.echo(
        f"{len(machine.gpus)} GPUs, {found.max_ranks} of them joined by NVLink{rate}"
        if found.max_ranks > 1
        else f"{len(machine.gpus)} GPUs, none joined by NVLink"
    )


def _word(machine: Machine, a: str, b: str) -> str:
    if a == b:
        return "X"
    link = machine.path(a, b)
    if link is None:
        return "?"
    return f"NV{link.lanes or ''}" if link.kind.value == "nvlink" else link.kind.value


def _beside(device: Device) -> str:
    words = {"cpus": "CPUs", "numa": "NUMA", "gpu_numa": "own NUMA", "sm": "sm", "rank": "rank"}
    return ", ".join(f"{words[key]} {value}" for key, value in device.notes if key in words)
