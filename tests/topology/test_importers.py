"""`nvidia-smi topo -m` and NCCL's XML: what is read, and one clear sentence for what cannot be."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rubin_tune.errors import CorruptFile, InvalidInput, UnknownFact, UnknownName
from rubin_tune.topology import (
    DeviceKind,
    LinkKind,
    Machine,
    Topology,
    import_topology,
    importer_names,
    load_gpu,
    parse_topology,
)

SAMPLES = Path(__file__).parent / "samples"
TRAY = (SAMPLES / "gb200_tray.txt").read_text(encoding="utf-8")
DGX = (SAMPLES / "dgx_h200.txt").read_text(encoding="utf-8")
XML = (SAMPLES / "nccl_h200.xml").read_text(encoding="utf-8")


def read(name: str) -> Machine:
    machine = import_topology(SAMPLES / name).machine
    assert machine is not None
    return machine


def test_the_files_of_the_folder_are_the_formats() -> None:
    assert importer_names() == ["nccl_xml", "nvidia_smi"]
    with pytest.raises(UnknownName, match="unknown importer 'hwloc'"):
        import_topology(SAMPLES / "gb200_tray.txt", form="hwloc")


def test_a_gb200_tray_keeps_lists_of_numa_nodes_and_each_gpus_own() -> None:
    gpus = read("gb200_tray.txt").of_kind(DeviceKind.GPU)
    assert [g.note("numa") for g in gpus] == ["0,3-9,11-17"] * 2 + ["1,19-25,27-33"] * 2
    assert [g.note("gpu_numa") for g in gpus] == ["2", "10", "18", "26"]
    assert [g.parent for g in gpus] == ["cpus 0-71"] * 2 + ["cpus 72-143"] * 2


def test_a_blank_cpu_column_does_not_shift_the_numa_column() -> None:
    gpus = read("gb200_container_tabs.txt").of_kind(DeviceKind.GPU)
    assert [g.note("cpus") for g in gpus] == ["0-35", "0-35", None, None]
    assert [g.note("numa") for g in gpus] == ["0", "0", "1", "1"]
    assert [g.note("gpu_numa") for g in gpus] == [None] * 4


def test_a_dgx_with_escape_codes_and_na_has_its_nics_by_name() -> None:
    machine = read("dgx_h200.txt")
    assert len(machine.gpus) == 8
    nics = machine.of_kind(DeviceKind.NIC)
    assert [n.note("device") for n in nics] == [f"mlx5_{i}" for i in range(10)]
    assert all(d.note("gpu_numa") is None for d in machine.devices)
    kinds = [machine.path("gpu0", f"nic{i}") for i in (0, 1, 4)]
    assert [k.kind for k in kinds if k] == [LinkKind.PIX, LinkKind.NODE, LinkKind.SYS]


def test_words_run_together_by_pasting_are_told_apart() -> None:
    assert "PIXNODE" in (SAMPLES / "dgx_h200_pasted.txt").read_text(encoding="utf-8")
    assert read("dgx_h200_pasted.txt").links == read("dgx_h200.txt").links


@pytest.mark.parametrize(
    ("name", "lanes", "joined"),
    [("dgx_h200.txt", 18, 8), ("dgx2_16gpu.txt", 6, 16), ("gb200_tray.txt", 18, 4)],
)
def test_more_links_than_a_gpu_has_mean_a_switch(name: str, lanes: int, joined: int) -> None:
    topology = import_topology(SAMPLES / name)
    machine = topology.machine
    assert machine is not None
    assert [d.name for d in machine.of_kind(DeviceKind.SWITCH)] == ["switch0"]
    nvlinks = [link for link in machine.links if link.kind is LinkKind.NVLINK]
    assert len(nvlinks) == joined
    path = machine.path("gpu0", machine.gpus[-1])
    assert path is not None
    assert (path.kind, path.lanes) == (LinkKind.NVLINK, lanes)
    assert topology.max_ranks == joined


def test_few_links_mean_a_mesh() -> None:
    machine = read("hgx_a100_4gpu.txt")
    assert not machine.of_kind(DeviceKind.SWITCH)
    assert len([link for link in machine.links if link.kind is LinkKind.NVLINK]) == 6


def test_gpus_that_see_each_other_over_the_system_only_are_not_joined() -> None:
    topology = import_topology(SAMPLES / "all_sys.txt")
    assert topology.max_ranks == 1
    assert topology.machine is not None
    assert {link.kind for link in topology.machine.links} == {LinkKind.SYS}


def test_one_gpu_is_a_machine() -> None:
    machine = read("one_gpu.txt")
    assert machine.gpus == ("gpu0",)
    path = machine.path("gpu0", "nic0")
    assert path is not None
    assert path.kind is LinkKind.PHB


def test_nccl_sums_the_links_to_four_switches_at_the_speed_of_the_capability() -> None:
    machine = read("nccl_h200.xml")
    path = machine.path("gpu0", "gpu7")
    assert path is not None
    assert (path.lanes, path.bandwidth) == (18, 450e9)
    assert len(machine.of_kind(DeviceKind.SWITCH)) == 4


def test_nccl_widths_and_speeds_give_pcie_bandwidth_and_zero_width_is_unknown() -> None:
    machine = read("nccl_h200.xml")
    (gpu,) = (x for x in machine.links if x.b == "gpu0" and x.kind is LinkKind.PCIE)
    assert gpu.bandwidth == pytest.approx(16 * 32e9 * 128 / 130 / 8)
    (last,) = (x for x in machine.links if x.b == "pci 0000:91:00.0")
    assert (last.lanes, last.bandwidth) == (None, None)
    (net,) = (x for x in machine.links if x.b == "mlx5_0")
    assert net.bandwidth == 50e9


def test_a_direct_mesh_keeps_each_pairs_links() -> None:
    topology = import_topology(SAMPLES / "nccl_dgx1v.xml")
    machine = topology.machine
    assert machine is not None
    for a, b, lanes in ((0, 1, 1), (0, 3, 2), (6, 7, 2)):
        path = machine.path(f"gpu{a}", f"gpu{b}")
        assert path is not None
        assert (path.lanes, path.bandwidth) == (lanes, lanes * 25e9)
    far = machine.path("gpu0", "gpu7")
    assert far is not None
    assert far.kind is LinkKind.SYS
    assert topology.max_ranks == 8


def test_a_dump_of_two_trays_keeps_hosts_apart_and_joins_them_by_nvlink() -> None:
    topology = import_topology(SAMPLES / "nccl_two_gb300_trays.xml")
    machine = topology.machine
    assert machine is not None
    assert topology.max_ranks == 8
    assert [d.name for d in machine.of_kind(DeviceKind.HOST)] == ["node0", "node1"]
    path = machine.path("node0/gpu0", "node1/gpu3")
    assert path is not None
    assert (path.lanes, path.bandwidth) == (18, 900e9)
    chip = [x for x in machine.links if x.kind is LinkKind.C2C]
    assert {x.bandwidth for x in chip} == {447.12e9}


def test_a_cloud_image_without_gpu_tags_has_gpus_by_class() -> None:
    machine = read("nccl_cloud_pci_only.xml")
    assert machine.gpus == tuple(f"gpu{i}" for i in range(8))
    assert not [x for x in machine.links if x.kind is LinkKind.NVLINK]


def test_an_import_does_not_guess_its_gpu_and_takes_the_one_that_is_said() -> None:
    silent = import_topology(SAMPLES / "dgx_h200.txt")
    with pytest.raises(UnknownFact, match=r"dgx_h200\.txt has no published 'gpu'"):
        silent.read_bandwidth()
    said = import_topology(SAMPLES / "dgx_h200.txt", gpu=load_gpu("h200"))
    assert said.read_bandwidth() == 4.5e12
    assert said.machine is not None
    path = said.machine.path("gpu0", "gpu1")
    assert path is not None
    assert path.bandwidth == 450e9
    assert said.all_to_all(1 << 20, 8) > 0
    with pytest.raises(InvalidInput, match=r"ranks is 9: dgx_h200.txt joins 8 GPUs"):
        said.all_to_all(1, 9)


def test_an_imported_graph_holds_the_gpus_domains_when_they_are_known() -> None:
    graph = import_topology(SAMPLES / "gb200_tray.txt", gpu=load_gpu("vr200")).graph
    assert graph.edges["gpu3", "switch0"]["kind"] == "nvlink"
    assert graph.edges["gpu3/domain0", "gpu3/domain0/memory"]["bandwidth"] == 8.5e12


def _tray(old: str, new: str) -> str:
    assert old in TRAY, old
    return TRAY.replace(old, new, 1)


def _xml(old: str, new: str, count: int = 1) -> str:
    assert old in XML, old
    return XML.replace(old, new, count)


BOMB = """<?xml version="1.0"?>
<!DOCTYPE system [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]>
<system version="1"><cpu numaid="&c;"/></system>"""
OUTSIDE = '<!DOCTYPE s SYSTEM "file:///etc/passwd"><system version="1"/>'
DEEP = "<system>" + '<cpu numaid="0">' + '<pci busid="0">' * 5000

BAD = {
    "no header": (TRAY[TRAY.index("NIC0    NODE") :], "in none of the known formats"),
    "unknown link": (_tray("NV18  NV18  NV18  NODE", "NV18  FOO  NV18  NODE"), "unknown link type 'FOO'"),
    "no links": (_tray("NV18  NV18  NV18  NODE", "NV0  NV18  NV18  NODE"), "by 0 links"),
    "negative links": (_tray("NV18  NV18  NV18  NODE", "NV-3  NV18  NV18  NODE"), "by -3 links"),
    "two rows of one id": (_tray("GPU1    NV18", "GPU0    NV18"), "two rows have the id 'GPU0'"),
    "two columns of one id": (_tray("GPU0  GPU1", "GPU0  GPU0"), "two columns have the id 'GPU0'"),
    "self link": (_tray("GPU0    X   ", "GPU0    NV18"), "cycle: GPU0 is shown as NV18 with itself"),
    "the same device": (_tray("NV18  NV18  NV18  NODE", "X     NV18  NV18  NODE"), "cycle: GPU0"),
    "not mutual": (_tray("NV18  NV18  NV18  NODE", "NV12  NV18  NV18  NODE"), "must be equal"),
    "more words": (_tray("0,3-9,11-17  2", "0,3-9,11-17  2  7"), "more words than columns"),
    "cut in a row": (DGX[:400], "truncated"),
    "cut between rows": ("".join(TRAY.splitlines(keepends=True)[:4]), "no row of GPU3, NIC0"),
    "XML cut": (XML[: len(XML) // 2], "line .*: (unclosed|no element|mismatched)"),
    "XML of something else": ("<html></html>", "outermost tag is not <system>"),
    "XML without CPUs": ("<system/>", "no <cpu> in <system>"),
    "entity bomb": (BOMB, "declares a document type: not allowed"),
    "outside entity": (OUTSIDE, "declares a document type: not allowed"),
    "deep": (DEEP, "tags nest deeper than 64"),
    "two GPUs of one number": (_xml('dev="1" sm', 'dev="0" sm'), "two devices have the id 'gpu0'"),
    "two GPUs of one rank": (_xml('rank="1"', 'rank="0"'), "have the rank 0"),
    "two GPUs of one address": (_xml("0000:29:00.0", "0000:18:00.0"), "the PCI address 0000:18"),
    "cycle of bridges": (_xml("0000:18:00.0", "0000:15:01.0"), "the PCI address 0000:15:01.0"),
    "cycle of a GPU": (_xml("0000:05:00.0", "0000:18:00.0"), "cycle: a nvlink link joins 'gpu0'"),
    "no NVLinks": (_xml('count="4"', 'count="0"'), "count of <nvlink> is '0'"),
    "negative NVLinks": (_xml('count="4"', 'count="-4"'), "count of <nvlink> is '-4'"),
    "no number": (_xml('count="4"', 'count="many"'), "must be a whole number of at least 1"),
    "negative width": (_xml('link_width="16"', 'link_width="-1"'), "link_width of <pci> is '-1'"),
    "null NIC speed": (_xml('speed="400000"', 'speed="0"'), "speed of <net> is '0'"),
    "odd PCIe speed": (_xml("32.0 GT/s PCIe", "fast"), "link_speed is 'fast'"),
    "unknown link of a GPU": (_xml("<nvlink ", "<xlink "), "unknown link type <xlink>"),
    "unknown link target": (_xml('tclass="0x068000"', 'tclass="0x999999"'), "class 0x999999"),
    "no address": (_xml('busid="0000:18:00.0" ', ""), "<pci> has no busid"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_topology_is_one_clear_sentence(tmp_path: Path, name: str) -> None:
    text, why = BAD[name]
    path = tmp_path / "topo"
    path.write_text(text, encoding="utf-8")
    started = time.monotonic()
    with pytest.raises(CorruptFile, match=why) as caught:
        import_topology(path)
    assert time.monotonic() - started < 2
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


LONG = {
    "rows": "\tGPU0\tGPU1\nGPU0\t X \tNV1\nGPU1\tNV1\t X \n" + "NIC\tSYS\tSYS\n" * 100_000,
    "tags": "<system>\n" + '<cpu numaid="0"/>\n' * 100_000 + "</system>",
    "columns": "\t" + "\t".join(f"GPU{i}" for i in range(100_000)) + "\nGPU0\t X \tNV1\n",
    "one line": "<system>" + "<cpu/>" * 2_000_000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_huge_file_is_refused_quickly(tmp_path: Path, name: str) -> None:
    path = tmp_path / "topo"
    path.write_text(LONG[name], encoding="utf-8")
    started = time.monotonic()
    with pytest.raises(CorruptFile, match=r"at most 20,000|truncated|more than 8 MiB"):
        import_topology(path)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (TRAY.encode("utf-16"), "not UTF-8 text"),
        (XML.replace("UTF-8", "UTF-16").encode("utf-16-le"), "not UTF-8 text"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"", "empty"),
        (b" \n", "empty"),
    ],
)
def test_another_encoding_and_an_empty_file_are_said(tmp_path: Path, raw: bytes, why: str) -> None:
    path = tmp_path / "topo"
    path.write_bytes(raw)
    with pytest.raises(CorruptFile, match=why):
        import_topology(path)


def test_a_missing_file_and_a_folder_are_said(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(CorruptFile, match=why):
            import_topology(path)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "topo"
    path.write_bytes(b"\xef\xbb\xbf" + TRAY.encode())
    assert import_topology(path).max_ranks == 4


def test_a_text_is_read_without_a_file() -> None:
    found = parse_topology(DGX, title="here")
    assert isinstance(found, Topology)
    assert found == parse_topology(DGX, title="here", form="nvidia_smi")
