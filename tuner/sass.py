"""Facts read straight from a cubin: registers, stack, a hash of the code, and what its main loop does.

Nothing here runs a disassembler. The one that Triton 3.9 bundles (nvdisasm 13.1) cannot decode sm_107, and
a process a variant would cost as much as a third of its compilation. All that is needed are the opcodes of
matrix instructions, local-memory accesses and branches, and these have kept their place from sm_90
to sm_107: the tests compare them with nvdisasm where it can read the target.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import CorruptFile

# An instruction has 16 bytes; its opcode stands in bits 0-8 (bits 9-11 say where operands come from) and
# its predicate in bits 12-15, where 7 means "always".
# Source: compared with nvdisasm 13.5 on cubins of sm_90, sm_100, sm_103 and sm_107.
_BYTES = 16
_BRANCH = 0x147
_BRANCH_UNIFORM = 0x547
_ENDS = {0x14D: "exit", 0x150: "ret", 0x149: "brx", 0x14A: "jmp"}
_LOCAL = {0x183, 0x187}  # LDL, STL
MATRIX_OPCODES = {
    0x03C: "hmma",
    0x037: "imma",
    0x1F0: "hgmma",
    0x1F1: "igmma",
    0x1F3: "qgmma",
    0x1EA: "utcmma",  # H, Q and O share one opcode: PTX tells which
}
# .nv.info attributes: registers a thread, and the stack that cuobjdump -res-usage prints.
_REGISTERS = 0x2F
_STACK = 0x12


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop of the code, out-of-line waits included.

    Attributes:
        instructions: SASS instructions in its body.
        local_ops: Local-memory loads and stores among them.
        matrix: Matrix instructions among them, by kind of `MATRIX_OPCODES`.
    """

    instructions: int
    local_ops: int
    matrix: tuple[tuple[str, int], ...]

    @property
    def matrix_count(self) -> int:
        """All matrix instructions."""
        return sum(count for _, count in self.matrix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What a cubin says of its one kernel.

    Attributes:
        registers: Registers a thread.
        stack_bytes: Stack a thread: where spilled registers go.
        sha256: Hash of code and launch attributes, line tables left out: the same on every machine.
        main: The innermost loop that multiplies matrices, else the longest innermost loop; None
            for straight-line code.
        whole: The whole kernel, counted like a loop.
    """

    registers: int
    stack_bytes: int
    sha256: str
    main: Loop | None
    whole: Loop


def read_cubin(cubin: bytes) -> Code:
    """Read a cubin that holds one kernel.

    Raises:
        CorruptFile: the bytes are no cubin, or hold no code.
    """
    sections = _sections(cubin)
    text = next((v for k, v in sections.items() if k.startswith(".text.")), b"")
    if not text:
        raise CorruptFile("cubin", "it has no .text section", "an ELF file written by ptxas")
    words = [word for word, _ in struct.iter_unpack("<QQ", text)]
    highs = [high for _, high in struct.iter_unpack("<QQ", text)]
    loops = [_count(words, body) for body in _loop_bodies(words, highs)]
    attributes = _attributes(sections.get(".nv.info", b""))
    kept = [k for k in sorted(sections) if k.startswith((".text.", ".nv.info", ".nv.constant"))]
    digest = hashlib.sha256()
    for name in kept:
        digest.update(name.encode() + sections[name])
    return Code(
        registers=attributes.get(_REGISTERS, 0),
        stack_bytes=attributes.get(_STACK, 0),
        sha256=digest.hexdigest(),
        main=_main_loop(loops),
        whole=_count(words, range(len(words))),
    )


def _sections(cubin: bytes) -> dict[str, bytes]:
    """Return the sections of a 64-bit little-endian ELF file by name."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise CorruptFile("cubin", "it is no 64-bit ELF file", "an ELF file written by ptxas")
    try:
        (start,) = struct.unpack_from("<Q", cubin, 0x28)
        size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
        headers = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
        base = headers[names][4]
        found = {}
        for name, kind, _, _, offset, length in headers:
            end = cubin.index(b"\0", base + name)
            if kind != 8:  # NOBITS has no bytes in the file
                found[cubin[base + name : end].decode()] = cubin[offset : offset + length]
    except (struct.error, ValueError, IndexError) as error:
        expected = "an ELF file written by ptxas"
        raise CorruptFile("cubin", f"its section table is broken ({error})", expected) from error
    return found


def _attributes(info: bytes) -> dict[int, int]:
    """Return the largest value of each sized (symbol, value) attribute of .nv.info."""
    found: dict[int, int] = {}
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != 4:
            continue
        if size == 8:
            _, value = struct.unpack_from("<II", info, at)
            found[attribute] = max(found.get(attribute, 0), value)
        at += size
    return found


def _count(words: Sequence[int], body: Iterable[int]) -> Loop:
    codes = Counter(words[i] & 0x1FF for i in body)
    matrix = {kind: codes[code] for code, kind in MATRIX_OPCODES.items() if codes[code]}
    return Loop(
        instructions=codes.total(),
        local_ops=sum(codes[code] for code in _LOCAL),
        matrix=tuple(sorted(matrix.items())),
    )


def _main_loop(loops: Sequence[Loop]) -> Loop | None:
    # A loop around the k-loop (persistent kernels) holds it and more: the smallest one is meant.
    multiplying = [loop for loop in loops if loop.matrix]
    if multiplying:
        return min(multiplying, key=lambda loop: loop.instructions)
    return max(loops, key=lambda loop: loop.instructions, default=None)


def _loop_bodies(words: Sequence[int], highs: Sequence[int]) -> list[list[int]]:
    """Return the instructions of every natural loop.

    A backward jump alone is no loop: ptxas puts the slow path of a wait behind the epilogue, from where it
    jumps back into the k-loop. So loops are found by dominance (Aho, Sethi, Ullman: Compilers, 9.6).
    """
    blocks, successors = _blocks(words, highs)
    predecessors: dict[int, set[int]] = {b: set() for b in blocks}
    for block, nexts in successors.items():
        for following in nexts:
            predecessors[following].add(block)
    dominators = _dominators(successors, predecessors)
    members: dict[int, set[int]] = {}
    for block, nexts in successors.items():
        for header in nexts & dominators.get(block, set()):
            members.setdefault(header, {header}).update(_reaching(block, header, predecessors))
    inner = [m for h, m in members.items() if not any(o != h and o in m for o in members)]
    chosen = inner or list(members.values())
    multiplying = [m for m in members.values() if _multiplies(words, blocks, m)]
    return [
        [i for block in sorted(body) for i in blocks[block]] for body in (multiplying or chosen)
    ]


def _multiplies(words: Sequence[int], blocks: Mapping[int, range], body: Iterable[int]) -> bool:
    return any((words[i] & 0x1FF) in MATRIX_OPCODES for block in body for i in blocks[block])


def _blocks(
    words: Sequence[int], highs: Sequence[int]
) -> tuple[dict[int, range], dict[int, set[int]]]:
    """Cut the code into basic blocks, named by their first instruction, and link them."""
    count = len(words)
    jumps = {i: t for i in range(count) if (t := _target(words[i], i, count)) is not None}
    leaves = {i for i in range(count) if (words[i] & 0x1FF) in _ENDS}
    starts = {0, *jumps.values(), *(i + 1 for i in jumps), *(i + 1 for i in leaves)}
    order = sorted(s for s in starts if s < count)
    blocks = {a: range(a, b) for a, b in zip(order, [*order[1:], count], strict=True)}
    successors: dict[int, set[int]] = {}
    for block, body in blocks.items():
        last = body[-1]
        nexts = {jumps[last]} if last in jumps else set()
        if not ((last in jumps or last in leaves) and _always(words[last], highs[last])):
            nexts |= {last + 1} & blocks.keys()
        successors[block] = nexts
    return blocks, successors


def _target(word: int, at: int, count: int) -> int | None:
    """Return the index that a branch at index `at` jumps to."""
    if word & 0x1FF != _BRANCH:
        return None
    # The offset counts 4-byte units from the next instruction: bits 16-23, then bits 34-63, signed.
    high = word >> 34
    if high >= 1 << 29:
        high -= 1 << 30
    target = at + 1 + ((high << 8) | (word >> 16 & 0xFF)) * 4 // _BYTES
    return target if 0 <= target < count else None


def _always(word: int, high: int) -> bool:
    # BRA.U tests a uniform predicate that stands elsewhere; a second predicate stands in bits 87-90.
    uniform = word & 0xFFF == _BRANCH_UNIFORM
    second = word & 0x1FF == _BRANCH and high >> 23 & 0xF != 7
    return word >> 12 & 0xF == 7 and not uniform and not second


def _dominators(
    successors: Mapping[int, set[int]], predecessors: Mapping[int, set[int]]
) -> dict[int, set[int]]:
    """Return the dominators of every block that is reached from the entry."""
    order = _depth_first(successors)
    found: dict[int, set[int]] = {0: {0}}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [found[p] for p in predecessors[block] if p in found]
            new = {block, *set.intersection(*known)}
            if found.get(block) != new:
                found[block] = new
                changed = True
    return found


def _depth_first(successors: Mapping[int, set[int]]) -> list[int]:
    """Return reachable blocks in reverse postorder, entry first."""
    seen: set[int] = {0}
    order: list[int] = []
    stack = [(0, iter(sorted(successors[0])))]
    while stack:
        block, nexts = stack[-1]
        following = next((n for n in nexts if n not in seen), None)
        if following is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(sorted(successors[following]))))
    return order[::-1]


def _reaching(block: int, header: int, predecessors: Mapping[int, set[int]]) -> set[int]:
    """Return the blocks from which `block` is reached without passing `header`."""
    found = {block}
    stack = [block] if block != header else []
    while stack:
        for before in predecessors[stack.pop()] - found - {header}:
            found.add(before)
            stack.append(before)
    return found
