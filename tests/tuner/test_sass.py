"""Reading cubins: loops by dominance, counts like a disassembler's, one hash for one code."""

from __future__ import annotations

import re
import struct
import subprocess
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.errors import CorruptFile
from rubin_tune.registry import load
from rubin_tune.search_spaces import LaunchConfig, Problem, Unit
from rubin_tune.tuner.compile import compile_launch
from rubin_tune.tuner.sass import read_cubin

ALWAYS, MAYBE = 7, 0
NOP, EXIT, LDL, UTCMMA, HGMMA, HMMA = 0x918, 0x94D, 0x983, 0x5EA, 0x9F0, 0x23C


def instruction(opcode: int, predicate: int = ALWAYS) -> tuple[int, int]:
    return opcode | predicate << 12, 0


def branch(at: int, target: int, predicate: int) -> tuple[int, int]:
    """Encode a BRA that stands at index `at`."""
    units = (target - at - 1) * 4
    word = 0x947 | predicate << 12 | (units & 0xFF) << 16 | ((units >> 8) & (1 << 30) - 1) << 34
    return word, 7 << 23


def cubin(code: list[tuple[int, int]], line_table: bytes = b"lines") -> bytes:
    """Make the smallest ELF file with one kernel in it."""
    text = b"".join(struct.pack("<QQ", *pair) for pair in code)
    info = struct.pack("<BBHII", 4, 0x2F, 8, 1, 77) + struct.pack("<BBHII", 4, 0x12, 8, 1, 96)
    parts = {"": b"", ".text.k": text, ".nv.info": info, ".debug_line": line_table, ".strtab": b""}
    names = b"".join(name.encode() + b"\0" for name in parts)
    parts[".strtab"] = names
    header, table, offset = bytearray(64), b"", 64
    for name, body in parts.items():
        at = names.index(name.encode() + b"\0")
        table += struct.pack("<IIQQQQIIQQ", at, 1, 0, 0, offset, len(body), 0, 0, 1, 0)
        offset += len(body)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 0x28, offset)
    struct.pack_into("<HHH", header, 0x3A, 64, len(parts), len(parts) - 1)
    return bytes(header) + b"".join(parts.values()) + table


def test_registers_and_stack_come_from_the_attributes() -> None:
    code = read_cubin(cubin([instruction(EXIT)]))
    assert (code.registers, code.stack_bytes, code.main) == (77, 96, None)


def test_the_hash_is_of_the_code_and_not_of_its_line_table() -> None:
    body = [instruction(NOP), instruction(EXIT)]
    same = {read_cubin(cubin(body, lines)).sha256 for lines in (b"here", b"elsewhere")}
    assert len(same) == 1
    assert read_cubin(cubin([instruction(EXIT)])).sha256 not in same


def test_peeled_products_are_not_counted_in_the_loop() -> None:
    code = [
        instruction(UTCMMA),
        instruction(NOP),  # the loop: 1 to 4
        instruction(LDL),
        instruction(UTCMMA),
        branch(4, 1, MAYBE),
        instruction(EXIT),
    ]
    found = read_cubin(cubin(code))
    assert found.main is not None
    assert (found.main.instructions, found.main.local_ops) == (4, 1)
    assert (found.main.matrix_count, found.whole.matrix_count) == (1, 2)


def test_a_wait_behind_the_epilogue_is_part_of_its_loop_and_makes_none_of_its_own() -> None:
    code = [
        instruction(NOP),  # loop: 0 to 5
        branch(1, 8, MAYBE),  # not ready: wait out of line
        instruction(HGMMA),  # and come back to here
        instruction(HGMMA),
        instruction(NOP),
        branch(5, 0, MAYBE),
        instruction(LDL),  # epilogue
        instruction(EXIT),
        instruction(NOP),  # the wait
        branch(9, 2, ALWAYS),
    ]
    found = read_cubin(cubin(code))
    assert found.main is not None
    assert found.main.instructions == 8
    assert found.main.local_ops == 0
    assert found.main.matrix == (("hgmma", 2),)


def test_of_nested_loops_the_inner_one_that_multiplies_is_the_main_one() -> None:
    code = [
        instruction(NOP),  # outer: 0 to 6
        instruction(HMMA),  # inner: 1 to 2
        branch(2, 1, MAYBE),
        instruction(LDL),  # another inner loop, longer, without products: 3 to 5
        instruction(LDL),
        branch(5, 3, MAYBE),
        branch(6, 0, MAYBE),
        instruction(EXIT),
    ]
    found = read_cubin(cubin(code))
    assert found.main is not None
    assert (found.main.instructions, found.main.matrix) == (2, (("hmma", 1),))


@pytest.mark.parametrize(
    "damaged", [b"", b"no elf file", cubin([instruction(EXIT)])[:200], cubin([])]
)
def test_what_is_no_cubin_is_refused(damaged: bytes) -> None:
    with pytest.raises(CorruptFile, match="cannot read 'cubin'"):
        read_cubin(damaged)


def tool(name: str) -> Path:
    spec = find_spec("triton")
    assert spec is not None
    path = Path((spec.submodule_search_locations or [""])[0]) / "backends/nvidia/bin" / name
    if not path.exists():
        pytest.skip(f"this triton has no {name}")
    return path


BASE = LaunchConfig.of(
    act_group=32, block_k=128, block_m=16, block_n=128, group_m=1, load="pointers",
    num_stages=4, num_warps=4, split="none", swap_ab=False,
)  # fmt: skip
VARIANTS = {
    "tma": BASE.replace(load="tma", swap_ab=True),
    "spills": BASE.replace(block_m=128, block_n=256, num_stages=2),
}


@cache
def compiled(problem: Problem, variant: str, arch: int) -> bytes:
    config = VARIANTS[variant]
    kernel: Any = load("kernels", "megamoe")
    inputs = kernel.make_inputs(problem, device="meta", seed=0)
    launch = kernel.launches(problem, Unit.GATE_UP, config, inputs)[-1]
    code: bytes = compile_launch(launch, arch).asm["cubin"]
    return code


@pytest.mark.compile
@pytest.mark.parametrize("arch", [90, 103])
@pytest.mark.parametrize("variant", VARIANTS)
def test_counts_agree_with_a_disassembler(
    mxfp4: Problem, tmp_path: Path, variant: str, arch: int
) -> None:
    path = tmp_path / "kernel.cubin"
    path.write_bytes(compiled(mxfp4, variant, arch))
    listing = subprocess.run(
        [tool("nvdisasm"), "-c", path], capture_output=True, text=True, check=True
    ).stdout
    names = Counter(
        found[1]
        for found in re.finditer(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)", listing)
    )
    whole = read_cubin(path.read_bytes()).whole
    assert whole.instructions == names.total()
    assert whole.local_ops == names["LDL"] + names["STL"]
    assert whole.matrix_count == sum(n for name, n in names.items() if name.endswith("MMA"))
    assert whole.matrix_count > 0


@pytest.mark.compile
@pytest.mark.parametrize("arch", [90, 107])
def test_registers_and_stack_agree_with_cuobjdump(
    mxfp4: Problem, tmp_path: Path, arch: int
) -> None:
    path = tmp_path / "kernel.cubin"
    path.write_bytes(compiled(mxfp4, "spills", arch))
    usage = subprocess.run(
        [tool("cuobjdump"), "-res-usage", path], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None
    code = read_cubin(path.read_bytes())
    assert (code.registers, code.stack_bytes) == (int(found[1]), int(found[2]))
    if arch == 90:
        assert code.stack_bytes > 0
        assert code.main is not None
        assert code.main.local_ops > 0
