"""Times from the cost model: for machines without the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...db import CompileReport, Evidence, Prediction
from ...search_spaces import LaunchConfig, Unit
from .. import cost_model
from ..evaluation import LayerOutcome, Outcome, Pair, Setting
from ._target import TargetEvaluator


@dataclass(slots=True)
class ModelEvaluator(TargetEvaluator):
    """Predicted evidence, from compiler facts and the topology."""

    evidence: Evidence = Evidence.PREDICTED
    policy: str = f"cost-model/{cost_model.VERSION}"
    compiles: bool = True
    _reports: dict[tuple[Unit, LaunchConfig], CompileReport] = field(default_factory=dict)

    def evaluate(
        self,
        unit: Unit,
        config: LaunchConfig,
        report: CompileReport | None,
        best_us: Mapping[int, float],
    ) -> Mapping[int, Outcome]:
        """Predict the variant at every token count."""
        if report is not None:
            self._reports[unit, config] = report
        return {tokens: self._predict(unit, tokens, config) for tokens in self.setting.ladder}

    def together(
        self, unit: Unit, tokens: int, configs: Sequence[LaunchConfig]
    ) -> Mapping[LaunchConfig, Outcome]:
        """Predict again: predictions have no noise to remove."""
        return {config: self._predict(unit, tokens, config) for config in configs}

    def layers(self, tokens: int, pairs: Sequence[Pair]) -> list[LayerOutcome]:
        """Add the predicted GEMMs and glue."""
        problem = self.setting.problem(tokens)
        kernel, gpu = self.setting.kernel, self.setting.gpu
        glue = cost_model.predict_glue(problem, kernel.work(problem, Unit.GLUE), gpu)
        found = []
        for pair in pairs:
            label = pair[Unit.GATE_UP]
            parts = [self._predict(unit, tokens, config) for unit, config in pair.items()]
            whole = Prediction(
                time_us=glue.time_us + sum(o.time_us or 0.0 for o in parts),
                breakdown=(("glue_us", glue.time_us), *_named(pair, parts)),
                assumptions=glue.assumptions,
                facts=glue.facts,
            )
            found.append(LayerOutcome(glue=_outcome(label, glue), layer=_outcome(label, whole)))
        return found

    def close(self) -> None:
        """Nothing to end."""

    def _predict(self, unit: Unit, tokens: int, config: LaunchConfig) -> Outcome:
        problem, gpu = self.setting.problem(tokens), self.setting.gpu
        report = self._reports.get((unit, config)) or cost_model.guess_report(
            problem, unit, config, gpu
        )
        found = cost_model.predict(problem, unit, config, report, gpu)
        return _outcome(config, found)


def _named(pair: Pair, parts: Sequence[Outcome]) -> list[tuple[str, float]]:
    return [
        (f"{unit.value}_us", part.time_us or 0.0) for unit, part in zip(pair, parts, strict=True)
    ]


def _outcome(config: LaunchConfig, prediction: Prediction) -> Outcome:
    time_us = prediction.time_us
    return Outcome(
        config=config,
        time_us=time_us,
        interval_us=(time_us, time_us),
        prediction=prediction,
    )


def make(setting: Setting, *, cache_dir: Path, argument: str = "") -> ModelEvaluator:
    """Return the evaluator; neither the cache nor `argument` is used."""
    return ModelEvaluator(setting)


PROVIDES = make
