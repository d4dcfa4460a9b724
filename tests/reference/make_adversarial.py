r"""Reference values for the attacks of `privrob.robust.adversarial`, by foolbox (nothing of privrob is imported).

Run by hand with foolbox 3.3.4 and torch, `python tests/reference/make_adversarial.py`; it writes `adversarial.json`
beside itself. All in float64 on images in [-1, 1]; the file holds the network (two layers, tanh), images, labels and
starts, so that no generator has to agree. foolbox's PGD is made to start where we say.

foolbox's momentum method adds up the bare gradients and takes the sign of the sum; Dong et al. (2018) divide each
gradient by its l1 norm first. Its values are kept as `momentum_of_bare_gradients`, to show that the two differ.
"""

import importlib
import json
from pathlib import Path

import numpy as np
import torch

RADIUS, STEPS = 0.3, 7
rng = np.random.default_rng(20200607)
shapes = {"first": (9, 12), "first_bias": (9,), "second": (3, 9), "second_bias": (3,)}
weights = {name: np.round(rng.normal(size=shape), 3) for name, shape in shapes.items()}
images = np.round(rng.uniform(-1, 1, size=(6, 1, 3, 4)), 3)
images[0, 0, 0, :2] = (-1.0, 1.0)  # pixels at the ends of the range
starts = np.clip(images + np.round(rng.uniform(-RADIUS, RADIUS, size=images.shape), 3), -1, 1)


class Network(torch.nn.Module):
    def forward(self, x):
        w = {name: torch.tensor(value, dtype=torch.float64) for name, value in weights.items()}
        hidden = torch.tanh(x.flatten(1) @ w["first"].T + w["first_bias"])
        return hidden @ w["second"].T + w["second_bias"]


def main():
    """Write the file."""
    foolbox, ep = (importlib.import_module(name) for name in ("foolbox", "eagerpy"))  # nothing that the suite needs

    class Started(foolbox.attacks.LinfProjectedGradientDescentAttack):
        def get_random_start(self, x0, epsilon):
            return ep.astensor(torch.tensor(starts))

    network = Network().eval()
    model = foolbox.PyTorchModel(network, bounds=(-1, 1))
    x = torch.tensor(images)
    labels = network(x).argmax(1)
    step = {"abs_stepsize": RADIUS / STEPS, "steps": STEPS}
    attacks = {
        "fgsm": foolbox.attacks.LinfFastGradientAttack(random_start=False),
        "ifgsm": foolbox.attacks.LinfBasicIterativeAttack(random_start=False, **step),
        "pgd": Started(random_start=True, **step),
        "momentum_of_bare_gradients": foolbox.attacks.mi_fgsm.LinfMomentumIterativeFastGradientMethod(**step),
    }
    values = {name: run.run(model, x, labels, epsilon=RADIUS).detach().numpy() for name, run in attacks.items()}
    record = {
        "what": "adversarial images of a small network on [-1, 1], float64",
        "how": "foolbox's attacks; see the script's docstring",
        "version": f"foolbox {foolbox.__version__}",
        "script": "tests/reference/make_adversarial.py",
        "radius": RADIUS,
        "num_steps": STEPS,
        "network": {name: value.tolist() for name, value in weights.items()},
        "images": images.tolist(),
        "labels": labels.tolist(),
        "starts": starts.tolist(),
        "values": {name: value.tolist() for name, value in values.items()},
    }
    (Path(__file__).parent / "adversarial.json").write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
