"""The farm: errors, crashes and hangs are values; reports are cached; tokens do not change the key."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubin_tune.db import CompileReport, Rejected, Why
from rubin_tune.errors import InvalidInput, StorageFull
from rubin_tune.search_spaces import LaunchConfig, Problem, Unit
from rubin_tune.tuner.farm import CompileFarm, compile_one
from rubin_tune.tuner.jobs import (
    CompileJob,
    compile_job,
    job_from_json,
    job_to_json,
    outcome_from_json,
    outcome_to_json,
)
from rubin_tune.tuner.toolchain import toolchain

REPORT = CompileReport(
    target=107, registers=64, spill_bytes=0, shared_bytes=51712, buffers=5, stage_bytes=10240,
    weight_stage_bytes=8192, tmem_columns=32, mma_kind="utcqmma", mma_k=64, mma_count=2,
    loop_instructions=136, loop_local_ops=0, threads=128, cubin_sha256="ab" * 32, compile_s=0.5,
)  # fmt: skip


def behave(job: CompileJob) -> CompileReport | Rejected:
    """A compiler that does what the config says."""
    how = job.config["how"]
    if how == "crash":
        os.write(2, b"LLVM ERROR: Cannot select: intrinsic\n")
        os.abort()
    if how == "assembler hangs":
        assembler = subprocess.Popen(["sleep", "60"])
        Path(os.environ["TRITON_CACHE_DIR"]).parent.joinpath("pid").write_text(str(assembler.pid))
        assembler.wait()
    if how == "no room":
        raise OSError(errno.ENOSPC, "No space left on device")
    if how == "hang":
        time.sleep(60)
    if how == "error":
        return Rejected(config=job.config, why=Why.COMPILE_ERROR, detail="error: no such layout")
    return REPORT


def job(problem: Problem, how: str) -> CompileJob:
    config = LaunchConfig.of(how=how)
    return CompileJob(
        kernel="megamoe", problem=problem, unit=Unit.GATE_UP, config=config, arch=107
    )


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[CompileFarm]:
    made = CompileFarm(jobs=2, cache_dir=tmp_path, time_limit_s=4.0, work=behave)
    yield made
    made.close()


def test_crashes_hangs_and_errors_are_values_and_the_rest_goes_on(
    farm: CompileFarm, mxfp4: Problem
) -> None:
    jobs = [job(mxfp4, how) for how in ("crash", "fine", "hang", "error")]
    found = {str(j.config["how"]): outcome for j, outcome in farm.run(jobs)}
    assert found["fine"] == REPORT
    whys = {how: o.why for how, o in found.items() if isinstance(o, Rejected)}
    assert whys == {
        "crash": Why.CRASH, "hang": Why.COMPILE_TIMEOUT, "error": Why.COMPILE_ERROR,
    }  # fmt: skip


def test_a_report_is_cached_and_a_crash_is_not(tmp_path: Path, mxfp4: Problem) -> None:
    first = CompileFarm(jobs=1, cache_dir=tmp_path, time_limit_s=4.0, work=behave)
    list(first.run([job(mxfp4, "fine"), job(mxfp4, "crash")]))
    first.close()
    second = CompileFarm(jobs=1, cache_dir=tmp_path, work=never)
    assert [outcome for _, outcome in second.run([job(mxfp4, "fine")])] == [REPORT]
    second.close()
    assert len(list((tmp_path / "reports").rglob("*.json"))) == 1


def test_a_crash_is_told_in_the_compilers_words(farm: CompileFarm, mxfp4: Problem) -> None:
    ((_, outcome),) = farm.run([job(mxfp4, "crash")])
    assert isinstance(outcome, Rejected)
    assert outcome.detail == (
        "the compiler's process ended by SIGABRT: LLVM ERROR: Cannot select: intrinsic"
    )


def test_an_assembler_that_hangs_is_ended_with_its_worker(
    farm: CompileFarm, tmp_path: Path, mxfp4: Problem
) -> None:
    farm.time_limit_s = 1.0
    ((_, outcome),) = farm.run([job(mxfp4, "assembler hangs")])
    assert isinstance(outcome, Rejected)
    assert outcome.why is Why.COMPILE_TIMEOUT
    assert ended(int((tmp_path / "pid").read_text()))


def ended(pid: int) -> bool:
    for _ in range(50):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    return False


def test_a_full_disk_is_no_variants_fault(farm: CompileFarm, mxfp4: Problem) -> None:
    with pytest.raises(StorageFull, match="no room for compiled variants"):
        list(farm.run([job(mxfp4, "no room")]))


def test_leaving_early_ends_the_processes_at_once(farm: CompileFarm, mxfp4: Problem) -> None:
    farm.time_limit_s = 120.0
    found = farm.run([job(mxfp4, how) for how in ("fine", "hang", "hang")])
    assert next(found)[1] == REPORT
    begun = time.monotonic()
    found.close()  # type: ignore[attr-defined]
    # the jobs would hang for a minute
    assert time.monotonic() - begun < 30.0
    ((again, _),) = farm.run([job(mxfp4, "error")])
    assert again.config["how"] == "error"


def test_a_script_without_a_main_guard_can_start_workers() -> None:
    script = (
        "import os\nfrom pebble import ProcessPool\n"
        "from rubin_tune.tuner.processes import spawn_context\n"
        "pool = ProcessPool(max_workers=1, context=spawn_context())\n"
        "print(pool.schedule(os.getpid).result(), flush=True)\npool.stop()\npool.join()\n"
    )
    done = subprocess.run(
        [sys.executable, "-"], input=script, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip().isdigit(), done.stderr


def test_a_config_that_the_kernel_cannot_launch_is_a_value(mxfp4: Problem) -> None:
    outcome = compile_job(job(mxfp4, "fine"))
    assert isinstance(outcome, Rejected)
    assert outcome.why is Why.COMPILE_ERROR
    assert outcome.detail.startswith("KeyError: ")


def never(job: CompileJob) -> CompileReport:
    raise RuntimeError("was compiled again")


def test_a_report_cut_short_is_compiled_again(tmp_path: Path, mxfp4: Problem) -> None:
    for _ in range(2):
        farm = CompileFarm(jobs=1, cache_dir=tmp_path, work=behave)
        ((_, outcome),) = farm.run([job(mxfp4, "fine")])
        farm.close()
        assert outcome == REPORT
        (path,) = (tmp_path / "reports").rglob("*.json")
        path.write_text(path.read_text()[:20])


def test_key_depends_on_what_changes_the_code_and_on_nothing_else(mxfp4: Problem) -> None:
    tools = toolchain(107)
    base = job(mxfp4, "fine")
    same = CompileJob(
        kernel="megamoe", problem=mxfp4.at(7), unit=base.unit, config=base.config, arch=107
    )
    assert same.key("hash", tools) == base.key("hash", tools)
    others = {
        base.key("other", tools),
        job(mxfp4, "other").key("hash", tools),
        CompileJob(
            kernel="megamoe", problem=mxfp4, unit=Unit.DOWN, config=base.config, arch=107
        ).key("hash", tools),
        CompileJob(
            kernel="megamoe", problem=mxfp4, unit=base.unit, config=base.config, arch=103
        ).key("hash", tools),
    }
    assert base.key("hash", tools) not in others
    assert len(others) == 4


def test_jobs_and_outcomes_survive_json(mxfp4: Problem) -> None:
    base = job(mxfp4, "fine")
    assert job_from_json(job_to_json(base)) == base
    refused = Rejected(config=base.config, why=Why.CRASH, detail="signal 11")
    assert outcome_from_json(outcome_to_json(refused)) == refused
    assert outcome_from_json(outcome_to_json(REPORT)) == REPORT


def test_another_python_that_does_not_exist_is_refused(mxfp4: Problem) -> None:
    with pytest.raises(InvalidInput, match="cannot run '/no/such/python'"):
        compile_one(job(mxfp4, "fine"), python="/no/such/python")
