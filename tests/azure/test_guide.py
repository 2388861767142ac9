"""The migration guide matches the code: it is generated from the same tables."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from rayjobs.injob.azureml import names

ROOT = Path(__file__).parents[2]


def test_guide_matches_the_tables() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "azure_guide.py"))["guide"]()
    written = (ROOT / "docs" / "guides" / "azure.md").read_text(encoding="utf-8")
    assert made == written, "python tools/azure_guide.py > docs/guides/azure.md"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("azureml.pipeline.core.PipelineDraft", "rayjobs has no drafts"),
        ("azureml.pipeline.steps.ModuleStep", "rayjobs has no modules"),
        ("azureml.pipeline.steps.RScriptStep", "rayjobs has no R step"),
        ("azureml.train.dnn.ParameterServer", "rayjobs does not start parameter servers"),
    ],
)
def test_a_class_that_always_refuses_is_listed_as_refused(name: str, sentence: str) -> None:
    module, _, last = name.rpartition(".")
    how, why = names.provided(module, last)
    assert how == "refused"
    assert names.SENTENCES[why].startswith(sentence)
