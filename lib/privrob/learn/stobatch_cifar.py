"""The trainings of the StoBatch document's CIFAR-10 figures: what each method is given, and what is read off the rows.

Appendix P names StoBatch's settings. Of the baselines it says that they "share the same design"; their learning rates,
clipping and construction bounds are ours.

Paper: stobatch, Section 4, Appendix P (CIFAR-10), Figures 3, 5, 7 and 8.
"""

from __future__ import annotations

import pandas as pd

from privrob import checks

STOBATCH, BASELINES = "privrob.learn.stobatch.cells:train_cell", "privrob.learn.baselines.cells:train_cell"
METHODS = {
    "StoBatch": "stobatch",
    "SecureSGD": "securesgd",
    "SecureSGD-AGM": "securesgd_agm",
    "AdLM": "adlm",
    "DP-SGD": "dpsgd",
    "PixelDP": "pixeldp",
}
PRIVATE = tuple(name for name in METHODS if name != "PixelDP")  # PixelDP has no budget for its training data
CERTIFIED = ("StoBatch", "SecureSGD", "SecureSGD-AGM", "PixelDP")
OF_THE_NETWORK = ("network", "network_options", "crop")  # of ``data``: what is no argument of the data set
_NOISY = {"attack_bound": 0.2, "num_predict": 20}
_GIVEN = {
    "StoBatch": {
        "budget_rule": "cifar10",
        "nominal_batch_size": 1851,
        "adversarial_weight": 1.5,
        "attacks": ["ifgsm", "mim", "pgd"],
        "psi": 10.0,
        "optimizer": "sgd",
        "learning_rate": 5e-2,
        "first_optimizer": "adam",
        "first_learning_rate": 1e-4,
        "weight_decay": 0.004,
    },
    "SecureSGD": {"adversarial_rate": 0.5, "attack": "ifgsm", "attack_radius": 1.0, "learning_rate": 1e-3, **_NOISY},
    "AdLM": {"nominal_batch_size": 1851, "learning_rate": 3e-4},
    "DP-SGD": {"learning_rate": 1e-3},
    "PixelDP": {"epsilon_robust": 0.1, "learning_rate": 1e-3, **_NOISY, "attack_bound": 0.1},
}
_GIVEN["SecureSGD-AGM"] = _GIVEN["SecureSGD"]


def cell(method, *, epsilon, num_steps, batch_size, attack_steps, data, evaluation, device="cpu", more=None):
    """One training of one method, as (function path, settings) for a sweep.

    Paper: stobatch, Appendix P (CIFAR-10).
    Args: method — a name of ``METHODS``;  epsilon — claimed total (``PixelDP`` has none);
        attack_steps — T_μ of training, where there are adversarial examples;
        data — ``dataset`` and its arguments, ``crop``, ``network``, ``network_options``;
        evaluation — attacks and certificates;  more — other settings of this method, which win.
    """
    kind = METHODS[checks.choice("method", method, METHODS)]
    settings = {**data, **evaluation, **_GIVEN[method], "num_steps": num_steps, "device": device}
    settings["batch_size"] = batch_size
    if "attack" in settings or kind == "stobatch":
        settings["attack_steps"] = attack_steps
    if kind != "pixeldp":
        settings["epsilon"] = epsilon
    if kind == "stobatch":
        certificates = ["sound", "as_printed", "as_released"] if evaluation.get("num_certified") else []
        settings |= {"certificates": certificates, **(more or {})}
        return STOBATCH, settings
    return BASELINES, {"method": kind, **settings, **(more or {})}


def readings(rows, asked):
    """Rows of several cells as one table: ``method``, ``epsilon`` (as asked), ``metric`` (conventional, or the
    certificate's name), ``attack_model``, ``kind``, ``attack_test_steps``, ``radius``, ``num_images``, ``value`` in %.

    Conventional accuracy is that of what is served at the attacked images (``kind`` None: at clean ones); certified
    accuracy is that at the attacked images, for the radius of the attack.

    Args: rows — a DataFrame, the cells one after the other, each beginning with its only ``training`` row;
        asked — (method, ε) of each cell, in the same order.
    """
    number = (rows["row"] == "training").cumsum() - 1
    if number.max() + 1 != len(asked):
        raise ValueError(f"asked must have an entry for each cell, got {len(asked)} for {number.max() + 1} cells")
    found = []
    for which, row in zip(number, rows.to_dict("records")):
        if row["row"] == "training":
            continue
        attack = row["row"] == "attack"
        metric = "conventional" if attack else row["certificate"]
        value = row["accuracy"] if attack else row["certified_accuracy"]
        kept = {name: row[name] for name in ("attack_model", "kind", "attack_test_steps", "radius", "num_images")}
        method, epsilon = asked[which]
        found.append({"method": method, "epsilon": epsilon, "metric": metric, **kept, "value": 100.0 * value})
    return pd.DataFrame(found)


PRINTED_8 = {
    "body": {
        ("StoBatch", "conventional"): (45.25, 1.6),
        ("StoBatch", "certified"): (42.59, 1.58),
        ("SecureSGD", "conventional"): (29.08, 11.95),
        ("SecureSGD", "certified"): (19.58, 5.0),
    },
    "appendix": {
        ("StoBatch", "conventional"): (44.87, 1.8),
        ("StoBatch", "certified"): (42.18, 1.8),
        ("SecureSGD", "conventional"): (29.47, 12.5),
        ("SecureSGD", "certified"): (20.0, 6.1),
    },
}  # Figure 8 in Section 4 and in Appendix Q: mean and "±", in %
PRINTED_9 = {
    ("StoBatch", "conventional"): (29.78, 4.8),
    ("StoBatch", "certified"): (28.31, 1.58),
    ("SecureSGD", "conventional"): (8.99, 5.95),
    ("SecureSGD", "certified"): (8.72, 5.5),
}
