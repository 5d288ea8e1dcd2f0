"""Plans: lists multiply, unknown keys are refused with their place, nothing starts where one cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rubin_tune.errors import CorruptFile, InvalidInput, RubinTuneError
from rubin_tune.tuner import SweepRequest
from rubin_tune.tuner.plan import Options, read_plan, run_plan


def written(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(text)
    return path


def requests_of(folder: Path, text: str) -> tuple[SweepRequest, ...]:
    return read_plan(written(folder, text)).requests


def test_an_entry_has_the_defaults_that_it_does_not_change(tmp_path: Path) -> None:
    first, second = requests_of(
        tmp_path,
        """
        [defaults]
        target = "h200"
        budget = "5m"
        [[sweep]]
        model = "qwen3-30b-a3b"
        until = "0.5%"
        [[sweep]]
        model = "qwen3-30b-a3b"
        budget = "30s"
        trials = 12
        """,
    )
    assert (first.budget_s, first.until, first.target) == (300.0, 0.005, "h200")
    assert (second.budget_s, second.until, second.trials) == (30.0, None, 12)


def test_lists_multiply_and_a_list_of_counts_is_one_ladder(tmp_path: Path) -> None:
    found = requests_of(
        tmp_path,
        """
        [[sweep]]
        target = "h200"
        model = "qwen3-30b-a3b"
        dtype = ["fp8", "bf16"]
        layout = ["dep4", "tp2"]
        tokens = [1, 16, 128]
        """,
    )
    assert [(r.dtype, r.layout) for r in found] == [
        ("fp8", "dep4"), ("fp8", "tp2"), ("bf16", "dep4"), ("bf16", "tp2"),
    ]  # fmt: skip
    assert {r.tokens for r in found} == {"1,16,128"}


def test_several_ladders_are_words(tmp_path: Path) -> None:
    found = requests_of(tmp_path, '[[sweep]]\ntokens = ["1,2", "64,128"]\n')
    assert [r.tokens for r in found] == ["1,2", "64,128"]


BROKEN = [
    ("", "no \\[\\[sweep\\]\\]"),
    ("[[sweep]", "no TOML"),
    ("sweep = 3", "no \\[\\[sweep\\]\\]"),
    ("sweep = [3]", "must be a table"),
    ("\n[[sweeps]]\n", "unknown key 'sweeps' in the plan \\(line 2\\): did you mean sweep"),
    (
        '[[sweep]]\nmodell = "x"',
        "unknown key 'modell' in sweep 1 \\(line 2\\): did you mean model",
    ),
    ("[defaults]\nbudget_s = 3\n[[sweep]]", "unknown key 'budget_s' in defaults \\(line 2\\)"),
    ("[[sweep]]\ntrials = 'many'", "trials of sweep 1 is 'many': must be an integer"),
    ("[[sweep]]\ntrials = true", "must be an integer"),
    ("[[sweep]]\nmodel = 3", "must be a word"),
    ("[[sweep]]\nmodel = []", "is empty"),
    ("[[sweep]]\nbudget = 5", "budget of sweep 1 is 5: must be a word"),
    ("[[sweep]]\nbudget = 'soon'", "such as 90s"),
    ("[[sweep]]\nuntil = '0.5'", "such as 0.5%"),
    ("[[sweep]]\nseed = [" + "1," * 1001 + "]", "over 1000 sweeps"),
]


@pytest.mark.parametrize(("text", "said"), BROKEN)
def test_a_broken_plan_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CorruptFile, match=said) as caught:
        requests_of(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_sweep_that_cannot_be_meant_is_named_before_any_starts(tmp_path: Path) -> None:
    text = '[[sweep]]\ntokens = 4\n[[sweep]]\nmodel = "qwen3-30b-a3x"\n'
    with pytest.raises(InvalidInput, match=r"sweep 2: .*did you mean qwen3-30b-a3b"):
        requests_of(tmp_path, text)


def test_a_missing_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match="no such file"):
        read_plan(tmp_path / "none.toml")


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=80) | st.text(alphabet='[]swep\n="a1,.{}#', max_size=60))
def test_any_file_is_a_plan_or_refused(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        found = read_plan(path)
    except RubinTuneError as error:
        said = str(error)
    else:
        said = ""
        assert found.requests
    assert "\n" not in said


def test_the_plan_of_the_documentation_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/plans.md").read_text()
    block = text.split("```toml\n")[1].split("```")[0]
    block = block.replace('evaluator = "recorded:landscape.jsonl.gz"\n', "").replace(
        'kernel = "fused_moe"\n', ""
    )
    assert len(requests_of(tmp_path, block)) == 5


@pytest.mark.compile
def test_entries_that_launch_the_same_code_share_its_compilations(tmp_path: Path) -> None:
    text = """
        [defaults]
        target = "h200"
        model = "qwen3-30b-a3b"
        evaluator = "model"
        trials = 2
        audit = 0
        [[sweep]]
        tokens = [16]
        [[sweep]]
        tokens = [16]
        routing = "balanced"
        """
    plan = read_plan(written(tmp_path, text))
    how = Options(database=tmp_path / "t.db", cache_dir=tmp_path / "cache", jobs=2)
    found, kept = [], []
    for result in run_plan(plan, how):
        found.append(result)
        kept.append({path.name for path in (tmp_path / "cache/reports").rglob("*.json")})
    assert found[0].sweep_id != found[1].sweep_id
    assert found[0].counts.reused == found[1].counts.reused == 0
    assert len(kept[0]) == found[0].counts.compiled
    # What only the second one asks for is new; the default of each GEMM is not.
    assert len(kept[1]) < found[0].counts.compiled + found[1].counts.compiled
    again = list(run_plan(plan, how))
    assert [r.sweep_id for r in again] == [r.sweep_id for r in found]
