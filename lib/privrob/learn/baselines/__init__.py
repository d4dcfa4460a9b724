"""What StoBatch is compared with: adversarial training, DP-SGD, AdLM, PixelDP, SecureSGD; each with its honest privacy.

All share StoBatch's networks without batch norm, which mixes the examples of a batch
(:mod:`~privrob.learn.baselines.plain`), one training loop (:mod:`~privrob.learn.baselines.training`), and the five
methods of a deployed model (:mod:`~privrob.learn.baselines.deployed`); :mod:`~privrob.learn.baselines.cells` runs any
of them.

Source: the modules name theirs.
"""
