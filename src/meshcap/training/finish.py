"""What a run or an evaluation leaves behind for people and programs: scores, captions, and a report."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshcap.calibration import FEWEST
from meshcap.data.dataset import Sample
from meshcap.evaluation.calibration_fit import Trial, try_calibration
from meshcap.evaluation.charts import curves_of
from meshcap.evaluation.drawing import trial_drawing
from meshcap.evaluation.page import ReportContent, SampleCard, picks, write_report
from meshcap.files import write_text
from meshcap.machine import machine
from meshcap.training.checkpoint import Position
from meshcap.training.examine import Exam, shown
from meshcap.training.log import read_log
from meshcap.training.run import LOG, Run

BEAMS = 5
METRICS = ("bleu", "ROUGE-L", "CIDEr")


def write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_text(path, text)


def write_captions(path: Path, samples: Sequence[Sample], exam: Exam) -> None:
    """As COCO's results, which `meshcap score` and every other tool of the field reads; a line a caption.

    The words' log-probabilities are for `meshcap calibrate`.
    """
    lines = [
        json.dumps(
            {
                "image_id": sample.id,
                "caption": caption.text,
                "confidence": round(caption.confidence, 4),
                "log_probs": [round(value, 4) for value in caption.log_probs],
            },
            ensure_ascii=False,
        )
        for sample, caption in zip(samples, exam.captions, strict=True)
    ]
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    write_text(path, text)


def cards(samples: Sequence[Sample], exam: Exam, **options: int) -> dict[str, list[SampleCard]]:
    """Captions to look at: many at random, some of the best and of the worst. Options are those of `picks`."""
    by_id = {sample.id: (sample, caption) for sample, caption in zip(samples, exam.captions, strict=True)}
    found: dict[str, list[SampleCard]] = {}
    for title, ids in picks(exam.result, **options).items():
        found[title] = [
            SampleCard(
                image=shown(sample),
                caption=caption.text,
                confidence=caption.confidence,
                score=exam.result.per_image[id].get("CIDEr"),
                references=sample.captions,
                id=id,
            )
            for id in ids
            for sample, caption in [by_id[id]]
        ]
    return found


def calibrated(run: Run, exam: Exam) -> tuple[Exam, Trial | None]:
    """The captions with confidences that were measured on them; as they are where there are too few to measure on."""
    if len(run.val) < FEWEST:
        return exam, None
    trial = try_calibration(
        [caption.text for caption in exam.captions],
        [sample.captions for sample in run.val],
        [caption.log_probs for caption in exam.captions],
        tokenizer=run.settings.tokenizer,
        fitted_on={"data": Path(run.settings.data).name, "split": "val", "beams": BEAMS},
    )
    said = [replace(one, confidence=trial.calibration.apply(one.log_probs)) for one in exam.captions]
    return replace(exam, captions=said), trial


def finish_run(run: Run, position: Position) -> dict[str, Any]:
    """Score the best model of a finished run on the val split, calibrate it there, write report and scores.

    Its own validations searched less widely to save time; this one searches as a user would.
    """
    run.load_best()
    exam = run.examiner(sees=bool(run.settings.train_vision), beams=BEAMS).examine(metrics=METRICS, bootstrap=1000)
    told: dict[str, Any] = {
        "run": str(run.folder),
        "best_step": position.best_step,
        "steps": position.step,
        "minutes": round((time.time() - run.started) / 60, 2),
        "val": {"scores": exam.result.scores, "intervals": exam.result.intervals, "diversity": exam.result.diversity},
    }
    if not run.world.first:
        return told
    exam, trial = calibrated(run, exam)
    if trial is not None:
        trial.calibration.save(run.folder)
        told["val"]["confidence"] = trial.figures()
    weights = sum(weight.numel() for weight in run.parts.model.parameters())
    seeing = sum(weight.numel() for weight in run.parts.vision.parameters()) if run.parts.vision is not None else 0
    write_report(
        run.folder / "report.html",
        ReportContent(
            title=f"{run.settings.model} on {Path(run.settings.data).name}",
            facts=[
                ("captioner", f"{run.settings.model}, {weights / 1e6:.1f} M weights"),
                ("sees with", f"{run.settings.vision or run.settings.features}, {seeing / 1e6:.1f} M weights"),
                ("pictures", ", ".join(f"{name} {count:,}" for name, count in run.data.counts().items())),
                ("words", f"{len(run.parts.vocabulary):,}"),
                ("trained", f"{position.step:,} steps; the best model is of step {position.best_step:,}"),
                ("time", f"{told['minutes']:.1f} minutes on {machine(run.world.device)}"),
            ],
            results={"val": exam.result},
            curves=curves_of(read_log(run.folder / LOG)),
            samples=cards(run.val, exam),
            settings=run.settings.to_dict(),
            notes=position.events,
            confidence=None if trial is None else trial_drawing("Confidence on val", trial),
            reward=next((line for line in position.events if line.startswith("reward: ")), "").removeprefix("reward: "),
        ),
    )
    write_json(run.folder / "scores.json", told)
    write_captions(run.folder / "captions-val.json", run.val, exam)
    low, high = (100 * end for end in exam.result.intervals["CIDEr"])
    run.watch.say(
        f"best model: step {position.best_step:,}, val CIDEr {100 * exam.cider:.1f} ({low:.1f}-{high:.1f}) by beam "
        f"{BEAMS}, bad endings {exam.bad_endings:.1%}; see {run.folder / 'report.html'}"
    )
    return told
