"""Which kinds of model transformers has. In: a `model_type` of config.json. Out: yes or no. Loads no model."""

from __future__ import annotations


def is_known(model_type: str) -> bool:
    """Tell whether the installed transformers knows a `model_type`."""
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING
