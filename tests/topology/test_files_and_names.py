"""A GPU or rack of one's own from TOML; what is wrong with a file is said in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from rubin_tune.errors import CorruptFile, UnknownName
from rubin_tune.topology import gpu_names, load_gpu, load_rack, resolve_target

FOLDER = Path(__file__).parents[2] / "topology"
H200 = (FOLDER / "gpus" / "h200.toml").read_text(encoding="utf-8")
RACK = (FOLDER / "racks" / "vr_nvl72.toml").read_text(encoding="utf-8")


def test_a_path_ending_in_toml_is_a_target(tmp_path: Path) -> None:
    own = tmp_path / "h300.toml"
    own.write_text(_with("sms", "value = 132", "value = 132", H200), encoding="utf-8")
    gpu = resolve_target(str(own))
    assert gpu.name == "h300"
    assert gpu.sheet.facts == load_gpu("h200").sheet.facts


def test_a_path_ending_in_toml_is_a_rack(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(RACK, encoding="utf-8")
    assert load_rack(str(own)).fits == load_rack("vr_nvl72").fits


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vr200", "vr200"),
        ("VR200", "vr200"),
        ("sm_90", "h200"),
        ("sm_100", "b200"),
        ("sm_103", "gb300"),
        ("sm_107", "vr200"),
        ("sm_107a", "vr200"),
        ("sm107", "vr200"),
    ],
)
def test_a_target_is_a_name_or_the_reference_gpu_of_a_capability(text: str, name: str) -> None:
    assert resolve_target(text).name == name


def test_each_capability_has_exactly_one_reference_gpu() -> None:
    archs = [gpu.arch for gpu in map(load_gpu, gpu_names()) if gpu.reference]
    assert sorted(archs) == [90, 100, 103, 107]


def test_an_unknown_gpu_is_answered_with_near_names_and_what_to_do() -> None:
    with pytest.raises(UnknownName) as caught:
        resolve_target("h20o")
    text = str(caught.value)
    assert text.startswith("unknown gpu 'h20o': did you mean h200")
    assert "known are b200, gb300, h100, h200, vr200" in text
    assert "topology/gpus/h20o.toml" in text


def test_an_unknown_capability_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"unknown target 'sm_80': .*sm_107"):
        resolve_target("sm_80")


def test_an_unknown_rack_is_answered_with_near_names() -> None:
    with pytest.raises(UnknownName, match="unknown rack 'vr_nvl': did you mean vr_nvl72"):
        load_rack("vr_nvl")


@pytest.mark.parametrize("name", ["../racks/vr_nvl72", "", "gpus/h200"])
def test_a_name_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(UnknownName):
        load_gpu(name)


def _with(fact: str, old: str, new: str, text: str) -> str:
    """Change a line of one fact's table."""
    head, table, rest = text.partition(f"[facts.{fact}]\n")
    assert table, fact
    assert old in rest
    return head + table + rest.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("title = ", "not TOML"),
        ("", "the file has no title"),
        ('title = "x"', r"\[facts\] must be a table"),
        ('title = "x"\n[facts]\nsms = 3', r"\[facts\] must be a table of tables"),
        ('title = "x"\n[facts.sms]\nvalue = 3\nunit = "SM"', r"\[facts\] lacks arch"),
        (H200.replace("[facts.sms]", "[facts.smss]"), "unknown 'smss'"),
        ("colour = 3\n" + H200, "the file has unknown 'colour'"),
        (H200.replace("reference = true", "reference = 1"), "reference is 1"),
        (_with("sms", "value = 132\n", "", H200), r"\[facts.sms\] has no value"),
        (_with("sms", "value = 132", "value = 0", H200), "value is 0 SM: must lie in 1 to 4096"),
        (_with("sms", "value = 132", "value = 132.5", H200), "must be a whole number of SM"),
        (_with("sms", "value = 132", 'value = "132"', H200), "value is '132': must be a number"),
        (_with("sms", "value = 132", "value = true", H200), "value is True: must be a number"),
        (_with("sms", "value = 132", "value = 140", H200), "must make sms = 140"),
        (_with("sms", '"SM"', '"sm"', H200), "unit is 'sm': must be 'SM'"),
        (_with("sms", 'confidence = "published"', 'confidence = "sure"', H200), "is 'sure'"),
        (_with("sms", 'confidence = "published"\n', "", H200), "has no confidence"),
        (_with("sms", "source = ", "sauce = ", H200), "unknown 'sauce'"),
        (_with("flops_int8", "unit", 'confidence = "published"\nunit', H200), "leave confidence"),
        (_with("memory_peak_bandwidth", "4.8e12", "4.8", H200), "must lie in 1e\\+09 to 1e\\+15"),
        (_with("memory_peak_bandwidth", "4.8e12", "nan", H200), "value is nan"),
        (_with("max_threads_per_sm", "2048", "4096", H200), "more than max_warps_per_sm x 32"),
        (_with("shared_memory_per_sm", "233_472", "2048", H200), "more than shared_memory_per_sm"),
    ],
)
def test_a_broken_gpu_file_is_one_sentence(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CorruptFile, match=why) as caught:
        resolve_target(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("base_us = 7.9\n", "", "base_us is None: must be a number"),
        ("base_us = 7.9\n", "base_us = -1\n", "base_us is -1: must be at least 0"),
        ("bandwidth_gb_per_s = 380", "bandwidth_gb_per_s = 0", "bandwidth_gb_per_s is 0"),
        ('traffic = "shards"', 'traffic = "rings"', "traffic is 'rings': must be one of"),
        ("multicast = false", "multicast = 0", "multicast is 0"),
        ("[collectives.all_gather.ll]", "[collectives.gather.ll]", "has unknown 'gather'"),
        ("[facts.trays]\nvalue = 18", "[facts.trays]\nvalue = 17", "must make gpus = 72"),
        ('gpu = "vr200"', "gpu = 7", "the file has no gpu"),
    ],
)
def test_a_broken_rack_file_is_one_sentence(tmp_path: Path, old: str, new: str, why: str) -> None:
    assert old in RACK
    path = tmp_path / "own.toml"
    path.write_text(RACK.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(CorruptFile, match=why) as caught:
        load_rack(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_a_binary_and_a_folder_are_one_sentence(tmp_path: Path) -> None:
    binary, folder = tmp_path / "binary.toml", tmp_path / "folder.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    folder.mkdir()
    for path, why in [
        (tmp_path / "none.toml", "no such file"),
        (binary, "not UTF-8 text"),
        (folder, "is a directory"),
    ]:
        with pytest.raises(CorruptFile, match=why):
            resolve_target(str(path))
