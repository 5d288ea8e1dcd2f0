"""What is remembered: compile reports, predictions, measurements, trials and winners."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from ..search_spaces import LaunchConfig, Problem, Unit


class Evidence(IntEnum):
    """Where a figure comes from; a weaker one never displaces a stronger one."""

    COMPILED = 0
    PREDICTED = 1
    RECORDED = 2
    MEASURED = 3

    @property
    def word(self) -> str:
        """The lower-case word printed and stored."""
        return self.name.lower()


class Why(StrEnum):
    """Why a config left the search; stored by value, so values are for ever."""

    ILLEGAL = "illegal"
    DUPLICATE = "duplicate"
    SHARED_MEMORY = "shared_memory"
    TENSOR_MEMORY = "tensor_memory"
    THREADS = "threads"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    CRASH = "crash"
    HANG = "hang"
    WRONG_RESULT = "wrong_result"
    BEATS_PHYSICS = "beats_physics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A config that failed: a value, not an exception. `detail` holds the compiler's own words."""

    config: LaunchConfig
    why: Why
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """What turned source into code. Two reports are comparable only under one toolchain."""

    triton: str
    ptxas: str
    torch: str
    driver: str = ""
    fp_fusion: bool = True

    @property
    def key(self) -> str:
        """One line that is equal exactly when the toolchains are."""
        fusion = "fma" if self.fp_fusion else "nofma"
        code = f"triton {self.triton}, ptxas {self.ptxas}, torch {self.torch}"
        return f"{code}, {self.driver}, {fusion}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Silicon:
    """What a time belongs to: never the marketing name alone."""

    name: str
    arch: int
    sms: int
    memory_bytes: int
    shared_limit_bytes: int
    power_limit_w: int = 0

    @property
    def key(self) -> str:
        """One line that is equal exactly when times may be compared."""
        return (
            f"sm_{self.arch} {self.sms} SMs {self.memory_bytes >> 30} GiB "
            f"{self.shared_limit_bytes} B {self.power_limit_w} W"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileReport:
    """Facts from the compiler about one variant's main GEMM kernel.

    Attributes:
        target: Compute capability times ten (90, 100, 103, 107).
        registers: Registers a thread.
        spill_bytes: Stack and local bytes a thread (cuobjdump -res-usage STACK).
        shared_bytes: Dynamic shared memory a block (triton metadata.shared).
        buffers: Pipeline buffers that the compiler really made (not num_stages).
        stage_bytes: Bytes of one buffer (one k-tile of both operands), as stored in shared memory.
        weight_stage_bytes: The weight operand's share of stage_bytes.
        tmem_columns: Tensor-memory columns.
        mma_kind: "hgmma", "qgmma", "utchmma", "utcqmma", "utcomma", "hmma", ... or "none".
        mma_k: K of one matrix instruction, in elements.
        mma_count: Matrix instructions in one k-tile (one trip of the main loop).
        loop_instructions: SASS instructions in the main loop's body for one trip.
        loop_local_ops: Local-memory loads and stores among them.
        threads: Threads a block.
        cubin_sha256: Hash of the code.
        compile_s: Seconds that the compilation took.
    """

    target: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    buffers: int
    stage_bytes: int
    weight_stage_bytes: int
    tmem_columns: int
    mma_kind: str
    mma_k: int
    mma_count: int
    loop_instructions: int
    loop_local_ops: int
    threads: int
    cubin_sha256: str
    compile_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A declared guess at something nobody has published, with the range it may lie in."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A time from the cost model, in microseconds, with its parts (they need not add up)."""

    time_us: float
    breakdown: tuple[tuple[str, float], ...]
    assumptions: tuple[Assumption, ...] = ()
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Times of one variant, kept raw.

    Attributes:
        samples_us: Each the mean of `launches_per_sample` launches.
        policy: Which measuring protocol made them (its name and version).
        clock_mhz: SM clock after the last round (0 = not read).
        clock_low_mhz: Lowest SM clock after a round that counts (0 = not read, or an older row).
        clock_high_mhz: Highest.
    """

    samples_us: tuple[float, ...]
    policy: str
    launches_per_sample: int = 1
    clock_mhz: int = 0
    clock_low_mhz: int = 0
    clock_high_mhz: int = 0

    @property
    def median_us(self) -> float:
        """Median of the samples."""
        ordered = sorted(self.samples_us)
        half = len(ordered) // 2
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Where the seconds of one trial went; those of the compiler stand in its report.

    Attributes:
        at_s: From the sweep's start to the trial's end.
        verify_s: Comparing the variant with float64, once for all its token counts; None = not done.
        time_s: Timing at this token count, capturing included; None = not timed by us.
    """

    at_s: float
    verify_s: float | None = None
    time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One row: one config of one unit of one problem, on one GPU, by one toolchain and policy.

    Exactly one of `rejected` and `time_us` says how it ended.
    """

    sweep_id: str
    kernel: str
    source_hash: str
    problem: Problem
    unit: Unit
    config: LaunchConfig
    silicon: Silicon
    toolchain: Toolchain
    policy: str
    evidence: Evidence
    time_us: float | None = None
    interval_us: tuple[float, float] | None = None
    compile: CompileReport | None = None
    prediction: Prediction | None = None
    measurement: Measurement | None = None
    rejected: Rejected | None = None
    error: float | None = None
    """Largest relative error against float64 where it was verified."""
    spent: Spent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Where a winner's bucket ends and that of its sweep's next token count begins.

    Attributes:
        tokens: The last token count at which this winner is the faster of the two.
        evidence: The weakest of the four times that say so: both configs at both token counts.
    """

    tokens: int
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """A choice over trials: the config to launch for one unit of one problem."""

    sweep_id: str
    kernel: str
    source_hash: str
    problem: Problem
    unit: Unit
    config: LaunchConfig
    time_us: float
    interval_us: tuple[float, float]
    default_config: LaunchConfig
    default_time_us: float
    evidence: Evidence
    silicon: Silicon
    toolchain: Toolchain
    policy: str
    compile: CompileReport | None = None
    parts: tuple[tuple[str, LaunchConfig], ...] = field(default=())
    """For unit layer: the config of each GEMM."""
    edge: Edge | None = None
    """Towards the next token count of the same sweep, where its winner is another config."""

    @property
    def speedup(self) -> float:
        """Default time over winner time."""
        return self.default_time_us / self.time_us
