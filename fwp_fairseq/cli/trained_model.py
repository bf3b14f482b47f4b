"""Reading checkpoints for the commands that use trained models, with errors that say what is wrong with one."""

import pickle
from pathlib import Path


class ModelError(Exception):
    """A checkpoint cannot be used, or not with these data; the text says why and what to do."""


def check_checkpoint(path: Path) -> None:
    """ModelError where there is no such file. Ahead of loading fairseq, which takes seconds."""
    if not path.is_file():
        raise ModelError(f"{path}: no such file; name a checkpoint_best.pt of a training")


def read_checkpoint(path: Path, task: str) -> dict:
    """Content of a checkpoint that `task` wrote, its user directory imported; ModelError where it is none."""
    from fairseq import checkpoint_utils, utils

    import fwp_fairseq

    fwp_fairseq.register()
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    except (RuntimeError, EOFError, OSError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{path} cannot be read ({reason}): it is no checkpoint, or was cut off while it was written")
    cfg = state.get("cfg")
    if cfg is None or getattr(cfg.task, "_name", None) != task:
        raise ModelError(f"{path} is no checkpoint of the task {task}")
    user_dir = cfg.common.user_dir
    if user_dir is not None and Path(user_dir).name != "fwp_fairseq":  # a folder of the user's own parts
        try:
            utils.import_user_module(cfg.common)
        except FileNotFoundError:
            raise ModelError(f"{path} was trained with common.user_dir={user_dir}, which is not there; run it where it is")
    return state


def load_language_model(checkpoint: Path, data: Path):
    """Configuration, model and dictionary; ModelError or ValueError where they do not go together."""
    import torch

    state = read_checkpoint(checkpoint, "fwp_language_modeling")
    from fwp_fairseq.tasks.language_modeling import FastWeightLanguageModelingTask, load_dictionary
    from fwp_fairseq.tasks.recorded_training import dictionary_digest

    cfg, dictionary = state["cfg"], load_dictionary(str(data))
    trained_with = state["extra_state"].get(FastWeightLanguageModelingTask.__name__, {}).get("dictionary")
    if trained_with != dictionary_digest(dictionary):
        raise ModelError(
            f"{data}/dict.txt ({len(dictionary):,} symbols) is not the dictionary that {checkpoint} was trained with; "
            "name the data folder of that training"
        )
    model = FastWeightLanguageModelingTask(cfg.task, dictionary).build_model(cfg.model)
    model.load_state_dict(state["model"], strict=True, model_cfg=cfg.model)
    return cfg, model.to("cuda" if torch.cuda.is_available() else "cpu"), dictionary


def load_translation_model(checkpoint: Path, data: Path):
    """Configuration and model; ModelError or ValueError where checkpoint and data do not go together."""
    read_checkpoint(checkpoint, "fwp_translation")
    from fairseq import checkpoint_utils

    [model], cfg, _ = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], {"data": str(data)})
    return cfg, model
