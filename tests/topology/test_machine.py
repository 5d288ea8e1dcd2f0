"""Devices and links check themselves, wherever they come from."""

from __future__ import annotations

import pytest

from rubin_tune.errors import InvalidInput
from rubin_tune.topology import Device, DeviceKind, Link, LinkKind, Machine

A, B = (Device(name=name, kind=DeviceKind.GPU) for name in ("gpu0", "gpu1"))


def link(**changes: object) -> Link:
    return Link(**({"a": "gpu0", "b": "gpu1", "kind": LinkKind.NVLINK} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("devices", "links", "why"),
    [
        ((A, A), (), "two devices have the id 'gpu0'"),
        ((A, B), (link(b="gpu2"),), "'gpu2' is not described"),
        ((A, B), (link(b="gpu0"),), "cycle: a nvlink link joins 'gpu0' with itself"),
        ((A, B), (link(bandwidth=0),), "bandwidth of 0 B/s"),
        ((A, B), (link(bandwidth=-5e9),), "bandwidth of -5000000000.0 B/s"),
        ((A, B), (link(bandwidth=float("nan")),), "bandwidth of nan"),
        ((A, B), (link(lanes=0),), "has 0 lanes"),
        ((Device(name="x", kind=DeviceKind.GPU, parent="y"),), (), "'y', which is not described"),
    ],
)
def test_what_no_machine_is_is_refused(
    devices: tuple[Device, ...], links: tuple[Link, ...], why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        Machine(title="t", devices=devices, links=links)


def test_bridges_that_hang_on_each_other_are_a_cycle() -> None:
    ring = [
        Device(name=f"b{i}", kind=DeviceKind.BRIDGE, parent=f"b{(i + 1) % 3}") for i in range(3)
    ]
    with pytest.raises(InvalidInput, match="cycle: 'b0' on 'b1' on 'b2' on 'b0'"):
        Machine(title="t", devices=tuple(ring))


def test_a_long_chain_of_bridges_is_settled_quickly() -> None:
    chain = [
        Device(name=f"b{i}", kind=DeviceKind.BRIDGE, parent=f"b{i - 1}" if i else None)
        for i in range(20_000)
    ]
    assert len(Machine(title="t", devices=tuple(chain)).devices) == 20_000


def test_nvlinks_of_unknown_speed_take_their_versions_and_version_6_is_unknown() -> None:
    machine = Machine(title="t", devices=(A, B), links=(link(lanes=18),))
    assert [x.bandwidth for x in machine.with_nvlink(5).links] == [900e9]
    assert machine.with_nvlink(6) == machine


def test_the_thinner_side_of_a_switch_is_what_two_gpus_share() -> None:
    switch = Device(name="s", kind=DeviceKind.SWITCH)
    links = (
        link(b="s", lanes=18, bandwidth=450e9),
        link(a="gpu1", b="s", lanes=9, bandwidth=225e9),
    )
    path = Machine(title="t", devices=(A, B, switch), links=links).path("gpu0", "gpu1")
    assert path is not None
    assert (path.lanes, path.bandwidth) == (9, 225e9)


def test_pcie_paths_are_named_by_the_nearest_common_parent() -> None:
    def device(name: str, kind: DeviceKind, parent: str | None) -> Device:
        return Device(name=name, kind=kind, parent=parent)

    machine = Machine(
        title="t",
        devices=(
            device("cpu0", DeviceKind.CPU, None),
            device("cpu1", DeviceKind.CPU, None),
            device("top", DeviceKind.BRIDGE, "cpu0"),
            device("low", DeviceKind.BRIDGE, "top"),
            device("gpu0", DeviceKind.GPU, "low"),
            device("gpu1", DeviceKind.GPU, "low"),
            device("gpu2", DeviceKind.GPU, "top"),
            device("gpu3", DeviceKind.GPU, "cpu0"),
            device("gpu4", DeviceKind.GPU, "cpu1"),
        ),
    )
    paths = [machine.path("gpu0", f"gpu{i}") for i in (1, 2, 3, 4)]
    assert [p.kind.value for p in paths if p] == ["PIX", "PXB", "NODE", "SYS"]
