"""Others' files: read whole and right, or refused in one sentence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rubin_tune.db.importers import importer_names, parse_results, read_results
from rubin_tune.db.recorded_spaces import RecordedSpace
from rubin_tune.db.seeds import EngineTable
from rubin_tune.errors import CorruptFile, InvalidInput
from rubin_tune.search_spaces import LaunchConfig

SHARED = Path(__file__).parents[2] / "../shared/data"
NAME = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
ROW = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
    "num_warps": 4, "num_stages": 3,
}  # fmt: skip


def cache() -> dict[str, Any]:
    """Return a Kernel Tuner cache of two points, one of which failed."""
    return {
        "device_name": "NVIDIA A100", "kernel_name": "conv", "problem_size": [1, 1],
        "tune_params_keys": ["bx", "pad"], "tune_params": {"bx": [16, 32], "pad": [0]},
        "objective": "time",
        "cache": {
            "16,0": {"bx": 16, "pad": 0, "time": 3.5, "times": [3.4, 3.6]},
            "32,0": {"bx": 32, "pad": 0, "time": "RuntimeFailedConfig", "times": []},
        },
    }  # fmt: skip


def ktt() -> dict[str, Any]:
    """Return KTT output of two points, one of which failed."""

    def result(bx: int, status: str, launches: list[Any]) -> dict[str, Any]:
        pair = {"Name": "BX", "Value": bx, "ValueType": "UnsignedInt"}
        return {
            "KernelName": "conv", "Configuration": [pair], "Status": status,
            "ComputationResults": launches, "TotalDuration": 7.5,
        }  # fmt: skip

    data = {"RegistersCount": 28, "LocalMemorySize": 2944, "PrivateMemorySize": 8}
    launch = {
        "CompilationData": data, "LocalSize": {"X": 2, "Y": 32, "Z": 1},
        "GlobalSize": {"X": 4, "Y": 1, "Z": 1},
    }  # fmt: skip
    return {
        "Metadata": {"Device": "NVIDIA GeForce RTX 3090", "TimeUnit": "Milliseconds"},
        "Results": [result(2, "Ok", [launch]), result(4, "ComputationFailed", [])],
    }


def written(folder: Path, name: str, document: object) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def table_of(path: Path) -> EngineTable:
    found = read_results(path)
    assert isinstance(found, EngineTable)
    return found


def space_of(path: Path) -> RecordedSpace:
    found = read_results(path)
    assert isinstance(found, RecordedSpace)
    return found


def test_the_formats_are_the_files_of_the_folder() -> None:
    assert {"kernel_tuner", "ktt", "sglang", "vllm"} <= set(importer_names())


def test_a_vllm_table_says_its_layer_and_keeps_its_rows_in_order(tmp_path: Path) -> None:
    path = written(tmp_path, NAME, {"triton_version": "3.6.0", "64": ROW, "1": ROW})
    found = table_of(path)
    assert (found.engine, found.experts, found.intermediate) == ("vllm", 128, 768)
    assert (found.weights, found.device, found.triton) == ("fp8_block128", "NVIDIA_H200", "3.6.0")
    assert [row.tokens for row in found.rows] == [64, 1]
    assert dict(found.rows[0].values) == ROW


@pytest.mark.parametrize(
    "name",
    [
        "triton_3_6_0/E=64,N=256,device_name=NVIDIA_B200.json",
        "x/E=64,N=256,device_name=NVIDIA_B200,dtype=fp8_w8a8,block_shape=[128, 128].json",
        "x/E=64,N=256,device_name=NVIDIA_B200_down.json",
    ],
)
def test_an_sglang_table_is_told_by_its_name(tmp_path: Path, name: str) -> None:
    found = table_of(written(tmp_path, name, {"1": ROW}))
    assert found.engine == "sglang"
    assert found.unit == ("down" if "_down" in name else "")
    assert found.triton == ("3.6.0" if "triton" in name else "")


def test_two_folders_of_sglang_are_two_files(tmp_path: Path) -> None:
    name = "E=64,N=256,device_name=NVIDIA_B200.json"
    paths = [written(tmp_path, f"triton_{v}/{name}", {"1": ROW}) for v in ("3_5_1", "3_6_0")]
    assert len({table_of(path).file for path in paths}) == 2


@pytest.mark.parametrize(
    "dtype", ["int8_w8a8", "fp8_w8a8", "int4_w4a16,block_shape=[0,64]", "float32"]
)
def test_a_table_of_another_weight_format_is_refused(tmp_path: Path, dtype: str) -> None:
    path = written(tmp_path, f"E=8,N=64,device_name=NVIDIA_H200,dtype={dtype}.json", {"1": ROW})
    with pytest.raises(CorruptFile, match="can be imported"):
        read_results(path)


def test_a_kernel_tuner_cache_gives_times_in_microseconds_and_words_of_failures(
    tmp_path: Path,
) -> None:
    found = space_of(written(tmp_path, "a.json", cache()))
    assert (found.source, found.kernel, found.device) == ("kernel_tuner", "conv", "NVIDIA A100")
    assert found.varying == ("bx",)
    (best,) = found.timed
    assert (best.config, best.time_us) == (LaunchConfig.of(bx=16, pad=0), 3500.0)
    assert best.samples_us == (3400.0, 3600.0)
    assert [p.status for p in found.points] == ["", "RuntimeFailedConfig"]


def test_a_cache_that_was_broken_off_is_read_to_its_last_point(tmp_path: Path) -> None:
    text = json.dumps(cache())
    path = tmp_path / "a.json"
    path.write_text(text.removesuffix("}}") + ",\n")
    assert len(space_of(path).points) == 2


def test_ktt_output_gives_compiler_facts(tmp_path: Path) -> None:
    path = tmp_path / "k.json.gz"
    path.write_bytes(gzip.compress(json.dumps(ktt()).encode()))
    found = space_of(path)
    (best,) = found.timed
    assert best.time_us == 7500.0
    assert best.code is not None
    assert (best.code.registers, best.code.shared_bytes, best.code.spill_bytes) == (28, 2944, 8)
    assert (best.code.threads, best.code.blocks) == (64, 4)
    assert found.points[1].time_us is None


BROKEN: list[tuple[str, object, str]] = [
    ("a.json", [], "not a JSON object"),
    ("a.json", {}, "none of the known formats"),
    (NAME, {"0": ROW}, "token count"),
    (NAME, {"1": 3}, "must be an object"),
    (NAME, {"1": {"BLOCK_SIZE_M": [16]}}, "BLOCK_SIZE_M"),
    ("a.json", {**cache(), "cache": {}}, "no points"),
    ("a.json", {**cache(), "cache": {"16,0": {"bx": 16}}}, "has no 'pad'"),
    ("a.json", {**cache(), "cache": {"7,0": {"bx": 7, "pad": 0, "time": 1}}}, "bx is 7"),
    ("a.json", {**cache(), "cache": {"16,0": {"bx": 16, "pad": 0, "time": -1}}}, "time is -1"),
    ("a.json", {**cache(), "tune_params_keys": ["by"]}, "names 'by'"),
    ("k.json", {**ktt(), "Results": []}, "no points"),
    ("k.json", {**ktt(), "Results": ktt()["Results"][:1] * 2}, "a point twice"),
    ("k.json", {**ktt(), "Metadata": {"TimeUnit": "Fortnights"}}, "TimeUnit"),
    ("k.json", {**ktt(), "Results": [{}]}, "Configuration"),
]


@pytest.mark.parametrize(("name", "document", "said"), BROKEN)
def test_a_broken_file_is_refused_with_the_place(
    tmp_path: Path, name: str, document: object, said: str
) -> None:
    with pytest.raises(CorruptFile, match=said):
        read_results(written(tmp_path, name, document))


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff\xfe", b"\x1f\x8b\x08broken", b'{"a": NaN}', b"[" * 100_000]
)
def test_what_is_no_json_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    with pytest.raises(CorruptFile, match=r"a\.json"):
        read_results(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(CorruptFile):
            read_results(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def at_every_place(value: object) -> st.SearchStrategy[object]:
    """Return documents like a good one, with anything at one place or a key missing."""
    if isinstance(value, dict):
        changed = [
            at_every_place(own).map(lambda new, key=key: {**value, key: new})
            for key, own in value.items()
        ]
        fewer = st.sampled_from([{k: v for k, v in value.items() if k != key} for key in value])
        return st.one_of(JSON, fewer, *changed)
    if isinstance(value, list) and value:
        first = at_every_place(value[0]).map(lambda new: [new, *value[1:]])
        return st.one_of(JSON, first)
    return JSON


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([NAME, "triton_3_6_0/E=8,N=64,device_name=X.json", "a.json"]),
    st.one_of(at_every_place({"8": ROW}), at_every_place(cache()), at_every_place(ktt())),
)
def test_any_document_is_read_or_refused(name: str, document: object) -> None:
    if not isinstance(document, dict):
        return
    try:
        found = parse_results(Path(name), document)
    except InvalidInput as error:
        said = str(error)
    else:
        said = ""
        assert found.rows if isinstance(found, EngineTable) else found.points
    assert "\n" not in said


@settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    with pytest.raises(CorruptFile):
        read_results(path)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared recordings are not here")
@pytest.mark.parametrize(
    ("name", "points", "timed"),
    [
        ("convolution-A100", 4362, 4201),
        ("convolution-MI250X", 4362, 4362),
        ("gemm-RTX3090", 17956, 17956),
        ("ktt-convolution-3090", 6768, 5240),
    ],
)
def test_the_recorded_spaces_are_read_whole(name: str, points: int, timed: int) -> None:
    found = space_of(SHARED / f"landscapes/kernel-tuner/{name}.json.gz")
    assert (len(found.points), len(found.timed)) == (points, timed)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared tables are not here")
def test_the_tables_that_vllm_ships_are_read() -> None:
    paths = sorted((SHARED / "engine-configs/vllm").glob("*.json"))
    assert len(paths) == 3
    assert all(len(table_of(path).rows) == 18 for path in paths)
