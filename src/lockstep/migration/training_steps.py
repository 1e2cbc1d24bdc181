"""Rewrites `train_step` and `test_step` of Keras 2, because Keras 3 has no `compiled_metrics`."""

from __future__ import annotations

from typing import Any, Final, final

import libcst as cst
import libcst.matchers as m

from lockstep.migration.scripts import AbstractPass, last_name
from lockstep.migration.symbols import PAGE

LINK: Final = f"{PAGE}#keras-2-to-3"
_LOSSES: Final = ("compiled_loss", "compute_loss")
_UPDATE: Final = m.Call(
    func=m.Attribute(value=m.Attribute(attr=m.Name("compiled_metrics")), attr=m.Name("update_state"))
)


@final
class TrainingStepPass(AbstractPass):
    """Makes steps update each metric of the model, and the metric named "loss" with the loss.

    This pass runs before tapes are rewritten, so that they see that the loss is read after the tape's block.
    """

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: Any) -> Any:
        """Rewrites `self.compiled_metrics.update_state(y, y_pred)`."""
        match original_node.body:
            case [cst.Expr(value=cst.Call(func=cst.Attribute(value=cst.Attribute(value=owner))) as call)] if m.matches(
                call, _UPDATE
            ):
                pass
            case _:
                return updated_node
        loss = self._loss_of(original_node)
        if loss is None:
            self.remark(
                "Keras 3 has no compiled_metrics: update each of self.metrics, and the one named loss with the loss",
                link=LINK,
            )
            return updated_node
        code = cst.Module([])
        args = ", ".join(code.code_for_node(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in call.args)
        loop: Any = cst.parse_statement(
            f"for metric in {code.code_for_node(owner)}.metrics:\n"
            f'    if metric.name == "loss":\n        metric.update_state({loss})\n'
            f"    else:\n        metric.update_state({args})\n"
        )
        return loop.with_changes(leading_lines=updated_node.leading_lines)

    def _loss_of(self, node: cst.CSTNode) -> str | None:
        """Returns the name of the variable with the loss in the step around a node; None if it is unknown."""
        step = next((one for one in self.parents_of(node) if isinstance(one, cst.FunctionDef)), None)
        if step is None or any(name.value == "metric" for name in _names(step)):
            return None
        found = {
            last_name(assign.targets[0].target)
            for assign in m.findall(step, m.Assign(value=m.Call()))
            if isinstance(assign, cst.Assign)
            and isinstance(assign.value, cst.Call)
            and last_name(assign.value.func) in _LOSSES
            and isinstance(assign.targets[0].target, cst.Name)
        }
        return found.pop() if len(found) == 1 else None


def _names(node: cst.CSTNode) -> list[cst.Name]:
    return [name for name in m.findall(node, m.Name()) if isinstance(name, cst.Name)]
