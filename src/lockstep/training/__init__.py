"""Callbacks for training scripts, precisions by name, scaled learning rates; models saved to buckets and loaded."""

from lockstep.strategies.backend import require_jax_backend

require_jax_backend()  # before the modules below import Keras

# ruff: noqa: E402
from lockstep.strategies.heartbeat import Heartbeat
from lockstep.strategies.learning_rates import ScaledLearningRate, scaling_factor
from lockstep.training.backup import BackupAndRestore
from lockstep.training.divergence import Divergence
from lockstep.training.export import load_model, save_model
from lockstep.training.fit_report import FitReport
from lockstep.training.precision import choose_precision, set_precision
from lockstep.training.progress import Progress
from lockstep.training.sidecar_evaluator import SidecarEvaluator
from lockstep.training.summary import Summary
from lockstep.training.tensorboard import TensorBoard

__all__ = [
    "BackupAndRestore",
    "Divergence",
    "FitReport",
    "Heartbeat",
    "Progress",
    "ScaledLearningRate",
    "SidecarEvaluator",
    "Summary",
    "TensorBoard",
    "choose_precision",
    "load_model",
    "save_model",
    "scaling_factor",
    "set_precision",
]
