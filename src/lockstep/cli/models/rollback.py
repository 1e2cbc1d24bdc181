"""``lockstep models rollback``."""

from __future__ import annotations

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ModelArgument, ProjectOption, connect
from lockstep.cli.traffic import traffic_of, traffic_text


@answers("ModelForm")
def rollback(model: ModelArgument, project: ProjectOption = DEFAULT_PROJECT) -> Answer:
    """Restore a model's traffic as it was before its last change. A second rollback takes the first one back."""
    with connect(project) as client:
        restored = client.rollback(model)
    return Answer(
        show=lambda: OUTPUT.print(f"traffic of {model}: {traffic_text(traffic_of(restored))}"), document=restored
    )
