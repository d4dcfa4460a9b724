r"""The keeper of the records: answers private queries about the set that a history of public filter steps leaves.

The interactive form (Algorithms 1, 6, 12, 13) runs the whole history again for every query; the centralised form
(Algorithms 7, 8, 10) keeps the set. For the same randomness they give the same answers.

In every query ``what`` is the name of its noise in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privrob.robust.filtering import FilteredSet, excess, tail_size
from privrob.robust.noiseplan import symmetric_noise


@dataclass(frozen=True, eq=False)
class Step:
    """A public filter step: scores (x − c)ᵀ LLᵀ (x − c), removed above a threshold. Points are about the centre.

    ``point`` is c, (d,), and ``factor`` L, (d, k).
    """

    point: np.ndarray
    factor: np.ndarray
    threshold: float


class Curator:
    """Args: rows — the clipped records;  plan — the noises;  rng — of the noise;  corruption_rate — α, for T_2α;
    interactive — replay the history at each query;  stop — ``spectral`` or ``top``;  layout — of the matrix's noise;
    identity — scores and λ are of M − I, for heavy tails (False) of M;
    copies — each record counts so often in sizes and totals, whose noise doesn't know n: a virtual sample size.
    """

    def __init__(
        self, rows, *, plan, rng, corruption_rate, interactive=False, stop="spectral", layout="isotropic",
        identity=True, copies=1.0,
    ):  # fmt: skip
        self.rows, self.plan, self.rng = rows, plan, rng
        self.interactive, self.stop, self.layout, self.identity = interactive, stop, layout, identity
        self.copies = float(copies)
        self.tail = tail_size(rows.n, corruption_rate)
        self.history, self._state, self._scored, self.num_queries = [], None, None, 0

    def state(self):
        """The set that remains: not private."""
        if self._state is None or self.interactive:
            fresh = FilteredSet(self.rows)
            for step in self.history:
                self._apply(fresh, step)
            self._state = fresh
        return self._state

    def _apply(self, state, step):
        scores = self.scores(step.point, step.factor) if state is self._state else state.scores(step.point, step.factor)
        return state.remove(scores, step.threshold, size=self.tail)

    def filter(self, step):
        """Add a step to the history. Nothing is released."""
        if not self.interactive:
            self._apply(self.state(), step)  # before it is in the history, which a first state() replays
        self.history.append(step)

    def _noisy(self, what, value):
        self.num_queries += 1
        return self.plan[what].release(value, rng=self.rng)

    def size(self):
        """\\|S\\| with noise. Paper: prime, Algorithms 6 and 12 (q_size)."""
        return float(self._noisy("size", self.state().size * self.copies)) / self.copies

    def mean(self, what="mean"):
        """μ(S) with noise, about the centre. Paper: prime, Algorithms 6 and 12 (q_mean, q_spectral)."""
        return self._noisy(what, self.state().mean)

    def total(self, what="mean"):
        """Σ (x − x̄) with noise."""
        return self._noisy(what, self.state().total * self.copies) / self.copies

    def norm(self, what="norm"):
        """λ with noise. Paper: prime, Algorithms 6 and 12 (q_norm, q_spectral)."""
        matrix = self.state().second_moment
        if self.identity:
            return float(self._noisy(what, excess(matrix, stop=self.stop)))
        return float(self._noisy(what, float(np.linalg.eigvalsh(matrix)[-1])))

    def second_moment(self, about=None):
        """M(S), or with ``about`` (1/n) Σ (x − c)(x − c)ᵀ, with noise.

        Paper: prime, Algorithms 6 and 12 (q_PCA, q_MMW).
        """
        self.num_queries += 1
        matrix = self._moment_about(about)
        std = self.plan["second_moment"].noise_std
        return matrix + symmetric_noise(len(matrix), noise_std=std, rng=self.rng, layout=self.layout)

    def _moment_about(self, point):
        state = self.state()
        matrix = state.second_moment
        if point is None:
            return matrix
        shift = state.mean - point
        return matrix + state.size / max(self.rows.n, 1) * np.outer(shift, shift)

    def norm_about(self, point, what="norm"):
        """‖(1/n) Σ (x − c)(x − c)ᵀ − I‖₂ with noise: what Algorithm 8 asks, about its noisy μ_t.

        Args: point — c, (d,).
        """
        return float(self._noisy(what, excess(self._moment_about(point), stop=self.stop)))

    def score(self, weights, what="score"):
        """⟨M(S) − I, U⟩ (without I for heavy tails) with noise. Paper: prime, Algorithm 12 (q_MMW).

        Args: weights — U, (d, d).
        """
        matrix = self.state().second_moment
        return float(self._noisy(what, float((matrix * weights).sum()) - (1.0 if self.identity else 0.0)))

    def scores(self, point, factor):
        """Scores of all records, kept for the step that follows the threshold: not private.

        Args: point, factor — c and L, as in :class:`Step`.
        """
        if self._scored is None or self._scored[0] is not point or self._scored[1] is not factor or self.interactive:
            self._scored = point, factor, self.state().scores(point, factor)
        return self._scored[2]

    def threshold_queries(self, point, factor, *, num_bins, ask_score):
        """(ψ or None, noisy shares of the bins): the two queries of Algorithm 11. Scores above the last bin count in
        it, scores below 1/4 in none.

        Args: point, factor — c and L, as in :class:`Step`;  num_bins — K;  ask_score — whether ψ is asked for as well.
        """
        state, n = self.state(), max(self.rows.n, 1)
        scores = self.scores(point, factor)[state.alive].astype(np.float64)
        psi = None
        if ask_score:
            psi = float(self._noisy("score_again", (scores - (1.0 if self.identity else 0.0)).sum() / n))
        _, exponent = np.frexp(scores[scores >= 0.25])  # [2^(e−1), 2^e) has exponent e: bin 1 is [1/4, 1/2)
        bins = np.minimum(exponent + 2, num_bins)
        found = np.bincount(bins, minlength=num_bins + 1)[1 : num_bins + 1]
        return psi, self._noisy("histogram", found / n)
