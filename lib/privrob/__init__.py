"""privrob: five documents on private and robust learning, reproduced, checked and attacked."""

__version__ = "0.1.0"
