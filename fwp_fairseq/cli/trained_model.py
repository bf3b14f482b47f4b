"""The language model of a checkpoint with the dictionary of its data folder, for the commands that use one."""

import pickle
from pathlib import Path


class ModelError(Exception):
    """A checkpoint cannot be used, or not with these data; the text says why and what to do."""


def check_checkpoint(path: Path) -> None:
    """ModelError where there is no such file. Ahead of loading fairseq, which takes seconds."""
    if not path.is_file():
        raise ModelError(f"{path}: no such file; name a checkpoint_best.pt of a training")


def load_model(checkpoint: Path, data: Path):
    """Configuration, model and dictionary; ModelError or ValueError where they do not go together."""
    import torch
    from fairseq import checkpoint_utils

    import fwp_fairseq
    from fwp_fairseq.tasks.language_modeling import FastWeightLanguageModelingTask, load_dictionary
    from fwp_fairseq.tasks.recorded_training import dictionary_digest

    fwp_fairseq.register()
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    except (RuntimeError, EOFError, OSError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"{checkpoint} cannot be read ({reason}): it is no checkpoint, or was cut off while it was written"
        )
    cfg = state.get("cfg")
    if cfg is None or getattr(cfg.task, "_name", None) != "fwp_language_modeling":
        raise ModelError(f"{checkpoint} is not a language model of this package")
    dictionary = load_dictionary(str(data))
    trained_with = state["extra_state"].get(FastWeightLanguageModelingTask.__name__, {}).get("dictionary")
    if trained_with != dictionary_digest(dictionary):
        raise ModelError(
            f"{data}/dict.txt ({len(dictionary):,} symbols) is not the dictionary that {checkpoint} was trained with; "
            "name the data folder of that training"
        )
    model = FastWeightLanguageModelingTask(cfg.task, dictionary).build_model(cfg.model)
    model.load_state_dict(state["model"], strict=True, model_cfg=cfg.model)
    return cfg, model.to("cuda" if torch.cuda.is_available() else "cpu"), dictionary


