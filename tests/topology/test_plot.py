"""Pictures are valid SVG of their size, show what they should, and say what is unknown."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from rubin_tune.errors import InvalidInput
from rubin_tune.topology import (
    Device,
    DeviceKind,
    Gpu,
    Machine,
    Rack,
    Topology,
    draw,
    gpu_names,
    import_topology,
    load_gpu,
    load_rack,
    rack_names,
)
from rubin_tune.topology.svg import DOMAINS, LINK, SPARE, UNKNOWN

SVG = "{http://www.w3.org/2000/svg}"
SAMPLES = sorted(
    path
    for path in (Path(__file__).parent / "samples").iterdir()
    if not path.name.startswith("truncated")
)
THINGS: list[Gpu | Rack | Topology] = [
    *(load_gpu(name) for name in gpu_names()),
    *(load_rack(name) for name in rack_names()),
    *(import_topology(path) for path in SAMPLES),
]


def parsed(thing: Gpu | Rack | Topology) -> ET.Element:
    return ET.fromstring(draw(thing))


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def filled(root: ET.Element, colour: str) -> int:
    """Count borderless rectangles of one colour."""
    return sum(
        r.get("fill") == colour and r.get("stroke") == "none" for r in root.iter(f"{SVG}rect")
    )


@pytest.mark.parametrize("thing", THINGS, ids=lambda t: getattr(t, "name", "import"))
def test_every_picture_parses_and_stays_inside_its_frame(thing: Gpu | Rack | Topology) -> None:
    root = parsed(thing)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert width < 5000
    assert height < 3000
    for rect in list(root.iter(f"{SVG}rect"))[1:]:
        box = [float(rect.attrib[key]) for key in ("x", "y", "width", "height")]
        assert box[0] >= 0
        assert box[1] >= 0
        assert box[0] + box[2] <= width
        assert box[1] + box[3] <= height
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 <= float(text.attrib["y"]) <= height
    assert root.attrib["aria-label"]


def test_vr200_shows_each_native_sm_the_supplemental_ones_and_what_is_unknown() -> None:
    root = parsed(load_gpu("vr200"))
    assert [filled(root, DOMAINS[d]) for d in (0, 1)] == [100, 100]
    assert filled(root, SPARE) == 12
    words = texts(root)
    for expected in (
        "Domain 1",
        "12 supplemental SMs",
        "local 8.5 TB/s",
        "remote bandwidth unknown",
        "L2  size unknown · a hit costs the same from both domains",
        "A miss to the other domain takes 1.4 to 1.7 times a local one",
        "227 KiB",
        "327 KiB",
        "1.8 TB/s",
    ):
        assert expected in words, expected
    dashed = [e for e in root.iter() if e.get("stroke-dasharray")]
    assert {e.get("stroke") for e in dashed} == {UNKNOWN}


def test_a_one_domain_gpu_shows_one_memory_and_nothing_remote() -> None:
    root = parsed(load_gpu("h200"))
    assert filled(root, DOMAINS[0]) == 132
    words = texts(root)
    assert "read 4.5 TB/s" in words
    assert not [w for w in words if "remote" in w or "omain 1" in w]


def test_a_fake_split_is_drawn_as_two_domains() -> None:
    root = parsed(Topology.of_gpu(load_gpu("h200"), fake_domains=2))
    assert [filled(root, DOMAINS[d]) for d in (0, 1)] == [66, 66]


def test_the_rack_shows_every_gpu_in_two_colours_and_every_switch() -> None:
    root = parsed(load_rack("vr_nvl72"))
    assert [filled(root, DOMAINS[d]) for d in (0, 1)] == [72, 72]
    assert filled(root, LINK) == 36
    words = texts(root)
    assert {str(i) for i in range(72)} <= set(words)
    assert "tray 17" in words
    assert "260 TB/s" in words


def test_a_node_shows_its_eight_gpus_and_the_times_that_are_known() -> None:
    words = texts(parsed(load_rack("h200_dgx")))
    assert {str(i) for i in range(8)} <= set(words)
    assert "36.6 us" in words
    assert words.count("unknown") == 4


def test_a_machine_shows_each_pairs_link() -> None:
    words = texts(parsed(import_topology(SAMPLES[0].parent / "dgx_h200.txt")))
    assert words.count("NV18") == 8 * 7
    assert words.count("PIX") == 2 * 8
    assert "mlx5_9" in words


def test_names_from_a_file_cannot_break_the_picture() -> None:
    device = Device(name="<b>&\"'", kind=DeviceKind.GPU)
    root = parsed(Topology.of_machine(Machine(title="</svg><script>", devices=(device,))))
    assert "</svg><script>" in texts(root)
    assert not list(root.iter(f"{SVG}script"))


def test_too_many_ends_for_a_picture_are_refused() -> None:
    devices = tuple(Device(name=f"gpu{i}", kind=DeviceKind.GPU) for i in range(65))
    with pytest.raises(InvalidInput, match="65 GPUs and NICs: a picture holds at most 64"):
        draw(Topology.of_machine(Machine(title="t", devices=devices)))
