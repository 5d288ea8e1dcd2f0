"""The live GPU: known kinds, strangers, slices, and machines without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rubin_tune.errors import UnknownFact
from rubin_tune.topology import Confidence, detect_gpu, detect_machine, is_present, load_gpu
from rubin_tune.topology.detect import Probe, identify
from rubin_tune.topology.driver import Device

SOURCE = Path(__file__).parents[2] / "src"

# CUdevice_attribute numbers, as cuda.h has them.
H200 = {
    75: 9,
    76: 0,
    16: 132,
    1: 1024,
    39: 2048,
    106: 32,
    82: 65536,
    81: 233472,
    97: 232448,
    111: 1024,
    38: 62914560,
    36: 3201000,
    37: 6144,
}


def _probe(
    name: str = "NVIDIA H200",
    memory: int = 150_109_880_320,
    watts: int | None = None,
    **changes: int | None,
) -> Probe:
    found = {**H200, **{int(k[1:]): v for k, v in changes.items()}}
    attributes = tuple((k, v) for k, v in found.items() if v is not None)
    device = Device(index=0, name=name, uuid="GPU-0", memory_bytes=memory, attributes=attributes)
    return Probe(device=device, power_limit_w=watts)


def test_a_known_gpu_keeps_published_figures_under_live_ones() -> None:
    gpu = identify(_probe(watts=650))
    assert (gpu.name, gpu.title, gpu.arch, gpu.sms) == ("h200", "NVIDIA H200", 90, 132)
    assert gpu.memory_bytes == 150_109_880_320
    assert gpu.power_limit_w == 650
    assert gpu.fact("l2_bytes").value == 62914560
    assert gpu.fact("l2_bytes").confidence is Confidence.MEASURED
    assert gpu.fact("memory_peak_bandwidth") == load_gpu("h200").fact("memory_peak_bandwidth")


def test_a_live_gpu_never_shows_the_published_power_limit() -> None:
    gpu = identify(_probe())
    assert gpu.power_limit_w == 0
    with pytest.raises(UnknownFact, match="power_limit"):
        gpu.fact("power_limit")


@pytest.mark.parametrize(
    ("name", "memory", "major", "minor", "sms", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 85_017_493_504, 9, 0, 132, "h100"),
        ("NVIDIA H200", 150_109_880_320, 9, 0, 132, "h200"),
        ("NVIDIA B200", 191_514_640_384, 10, 0, 148, "b200"),
        ("NVIDIA GB200", 198_674_743_296, 10, 0, 152, "b200"),
        ("NVIDIA GB300", 298_013_687_808, 10, 3, 152, "gb300"),
        ("NVIDIA B300 SXM6 AC", 288_400_343_040, 10, 3, 148, "gb300"),
        ("NVIDIA Graphics Device", 300_647_710_720, 10, 7, 212, "vr200"),
    ],
)
def test_the_kind_is_found_by_capability_and_memory(
    name: str, memory: int, major: int, minor: int, sms: int, expected: str
) -> None:
    gpu = identify(_probe(name, memory, _75=major, _76=minor, _16=sms))
    assert gpu.name == expected
    assert gpu.sms == sms == gpu.domains * gpu.native_sms_per_domain + gpu.supplemental_sms


def test_a_slice_or_another_gpu_has_only_what_its_driver_says() -> None:
    half = identify(_probe("NVIDIA H200 MIG 3g.71gb", 75_000_000_000, _16=60))
    assert half.name == "nvidia_h200_mig_3g.71gb"
    assert (half.arch, half.sms, half.max_warps_per_sm) == (90, 60, 64)
    assert half.occupancy(128, 0, 128) == 4
    assert half.read_bandwidth() == pytest.approx(4.917e12, rel=1e-3)
    with pytest.raises(UnknownFact, match="flops_bf16"):
        half.peak_flops("bf16")


def test_the_driver_decides_about_locality_domains() -> None:
    rubin = {"_75": 10, "_76": 7, "_16": 212, "_39": 1024, "_106": 16}
    memory = 300_647_710_720
    two = identify(_probe("R200", memory, _149=2, _157=104, **rubin))
    assert (two.domains, two.native_sms_per_domain, two.supplemental_sms) == (2, 104, 4)
    one = identify(_probe("R200", memory, _149=1, **rubin))
    assert (one.domains, one.native_sms_per_domain, one.supplemental_sms) == (1, 212, 0)
    silent = identify(_probe("R200", memory, **rubin))
    assert (silent.domains, silent.native_sms_per_domain, silent.supplemental_sms) == (2, 100, 12)


def test_the_driver_decides_about_oversized_shared_memory() -> None:
    rubin = {"_75": 10, "_76": 7, "_16": 212, "_39": 1024, "_106": 16}
    gpu = identify(_probe("R200", 300_647_710_720, _150=330_000, **rubin))
    assert gpu.shared_memory_limit("oversized") == 330_000
    assert gpu.shared_memory_limit() == 232_448


def test_attributes_that_an_old_driver_does_not_know_leave_published_figures() -> None:
    gpu = identify(_probe(_106=None, _111=None, _38=0))
    assert gpu.max_blocks_per_sm == 32
    assert gpu.fact("l2_bytes") == load_gpu("h200").fact("l2_bytes")


@pytest.mark.skipif(is_present(), reason="this machine has a CUDA GPU")
def test_a_machine_without_a_gpu_has_none() -> None:
    assert detect_gpu() is None


@pytest.mark.gpu
@pytest.mark.skipif(not is_present(), reason="this machine has no CUDA GPU")
def test_the_live_gpu_agrees_with_torch() -> None:
    import torch

    gpu, properties = detect_gpu(), torch.cuda.get_device_properties(0)
    assert gpu is not None
    assert gpu.sms == properties.multi_processor_count
    assert gpu.arch == properties.major * 10 + properties.minor
    assert gpu.memory_bytes == properties.total_memory
    assert gpu.title == properties.name


def test_looking_for_a_gpu_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys, rubin_tune.topology as t; t.is_present(); t.detect_gpu(); "
        "print(sorted({'torch', 'triton', 'sqlalchemy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"


def test_this_machines_links_are_what_nvidia_smi_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Path(__file__).parent / "samples" / "dgx_h200.txt"
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\n[ "$*" = "topo -m" ] && /bin/cat "{sample}"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = detect_machine(load_gpu("h200"))
    assert found is not None
    assert found.max_ranks == 8
    assert found.read_bandwidth() == 4.5e12


@pytest.mark.parametrize("script", [None, "#!/bin/sh\nexit 9\n"])
def test_without_a_working_nvidia_smi_no_links_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    if script is not None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(script)
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detect_machine() is None
