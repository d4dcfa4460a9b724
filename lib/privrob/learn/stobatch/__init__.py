"""StoBatch (Phan et al. 2020): networks, noise, objectives, Algorithm 1, Algorithm 4, and what is deployed.

Source: the modules name their items of document ``stobatch``.
"""
