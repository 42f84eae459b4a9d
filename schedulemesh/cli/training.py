"""A small but real training job: a character model and gradient descent on text that ships with Python.

The model is the neural n-gram of Bengio et al., "A Neural Probabilistic Language Model" (2003), over
characters: embeddings of the last characters, one tanh layer, softmax over the next character.
"""

from __future__ import annotations

import hashlib
import os
import pydoc_data.topics
from typing import Any

import numpy as np
import numpy.typing as npt

from schedulemesh.core.agent.metrics_agent import MetricsReportingAgent

Array = npt.NDArray[np.float64]

_CONTEXT, _EMBED, _HIDDEN, _BATCH, _RATE = 8, 16, 128, 256, 0.5


def corpus(stage: str) -> str:
    """The Python language reference as text; RLHF-stage jobs get the part on exceptions."""
    topics: dict[str, str] = pydoc_data.topics.topics
    if stage == "pretraining":
        return "".join(topics.values())
    return topics["try"] + topics["raise"] + topics["exceptions"]


class CharacterModel:
    """Predicts the next character from the last eight. Every batch follows from seed and step alone."""

    def __init__(self, text: str, seed: int = 0) -> None:
        self._seed = seed
        alphabet = sorted(set(text))
        index = {character: i for i, character in enumerate(alphabet)}
        self._text = np.array([index[character] for character in text])
        rng = np.random.default_rng(seed)
        wide, letters = _CONTEXT * _EMBED, len(alphabet)
        self.parameters: dict[str, Array] = {
            "embedding": rng.normal(0, 0.1, (letters, _EMBED)),
            "hidden": rng.normal(0, wide**-0.5, (wide, _HIDDEN)),
            "output": rng.normal(0, _HIDDEN**-0.5, (_HIDDEN, letters)),
            "bias": np.zeros(letters),
        }

    def step(self, number: int) -> float:
        """One step of gradient descent on batch ``number``; the mean cross-entropy before it, in nats."""
        rng = np.random.default_rng((self._seed, number))
        starts = rng.integers(0, len(self._text) - _CONTEXT - 1, _BATCH)
        context = self._text[starts[:, None] + np.arange(_CONTEXT)]
        target = self._text[starts + _CONTEXT]
        p = self.parameters
        inputs = p["embedding"][context].reshape(_BATCH, -1)
        hidden = np.tanh(inputs @ p["hidden"])
        logits = hidden @ p["output"] + p["bias"]
        logits -= logits.max(axis=1, keepdims=True)
        chance = np.exp(logits)
        chance /= chance.sum(axis=1, keepdims=True)
        loss = -np.log(chance[np.arange(_BATCH), target]).mean()
        self._descend(context, target, inputs, hidden, chance)
        return float(loss)

    def _descend(
        self,
        context: npt.NDArray[np.int64],
        target: npt.NDArray[np.int64],
        inputs: Array,
        hidden: Array,
        chance: Array,
    ) -> None:
        """Follow the gradient of the mean cross-entropy back through the layers."""
        p = self.parameters
        d_logits = chance
        d_logits[np.arange(_BATCH), target] -= 1
        d_logits /= _BATCH
        d_hidden = (d_logits @ p["output"].T) * (1 - hidden**2)
        d_inputs = (d_hidden @ p["hidden"].T).reshape(_BATCH, _CONTEXT, _EMBED)
        d_embedding = np.zeros_like(p["embedding"])
        np.add.at(d_embedding, context, d_inputs)
        p["output"] -= _RATE * hidden.T @ d_logits
        p["bias"] -= _RATE * d_logits.sum(axis=0)
        p["hidden"] -= _RATE * inputs.T @ d_hidden
        p["embedding"] -= _RATE * d_embedding


def fingerprint(parameters: dict[str, Array]) -> str:
    """The first 16 hex digits of the SHA-256 of all parameters, bit by bit."""
    digest = hashlib.sha256()
    for name in sorted(parameters):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(parameters[name]).tobytes())
    return digest.hexdigest()[:16]


def uninterrupted(stage: str, steps: int, seed: int = 0) -> str:
    """The hash of the parameters after so many steps in one go, in this process."""
    model = CharacterModel(corpus(stage), seed)
    for number in range(steps):
        model.step(number)
    return fingerprint(model.parameters)


class TrainingAgentActor(MetricsReportingAgent):
    """Trains a character model; can be saved at every step, and continues from a saved state.

    Which text it learns follows from its label ``training_stage``.
    """

    def __init__(
        self,
        name: str,
        labels: dict[str, str] | None = None,
        supervisor: Any = None,
        report_interval: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(name, labels, supervisor, report_interval)
        stage = self.labels.get("training_stage", "pretraining")
        self.model = CharacterModel(corpus(stage), seed)
        #: Steps done.
        self.done_steps = 0
        self.loss = float("nan")
        #: The status right after a saved state was restored; None: it started from the beginning.
        self.restored: dict[str, Any] | None = None

    def train(self, task_id: str, steps: int) -> dict[str, Any]:
        """Train until ``steps`` steps are done in all, or the task is cancelled.

        Returns the status, and as ``restored`` that right after a saved state was restored, or None.
        """
        while self.done_steps < steps and not self.is_cancelled(task_id):
            self.loss = self.model.step(self.done_steps)
            self.done_steps += 1
            self.report_metrics(
                {"step": self.done_steps, "loss": self.loss, "progress": self.done_steps / steps},
                at_once=self.done_steps == steps,
            )
        return {**self.status(), "restored": self.restored}

    def status(self) -> dict[str, Any]:
        """Steps done, the last loss in nats, a hash of the parameters, and the process id."""
        return {
            "step": self.done_steps,
            "loss": self.loss,
            "hash": fingerprint(self.model.parameters),
            "pid": os.getpid(),
        }

    def save_state(self) -> dict[str, Any]:
        """The checkpoint: a copy of the parameters, and the status at this step."""
        copied = {name: array.copy() for name, array in self.model.parameters.items()}
        return {**self.status(), "parameters": copied}

    def restore_state(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model.parameters = {name: a.copy() for name, a in saved["parameters"].items()}
        self.done_steps, self.loss = saved["step"], saved["loss"]
        self.restored = self.status()
