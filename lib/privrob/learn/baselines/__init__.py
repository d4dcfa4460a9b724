"""What StoBatch is compared with: adversarial training, DP-SGD, AdLM, PixelDP, SecureSGD; each with its honest privacy.

All share StoBatch's networks without batch norm, which mixes the examples of a batch (:mod:`.plain`), one training loop
(:mod:`.training`), and the five methods of a deployed model (:mod:`.deployed`); :mod:`.cells` runs any of them.

Source: the modules name theirs.
"""
