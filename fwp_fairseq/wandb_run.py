"""The wandb run of a training: opened ahead of its first update, fed by fairseq's progress bars, and taken up again by
a resumed training and by the evaluation. What goes wrong in wandb is one warning, and the work goes on without it.

On where `common.wandb_project` is set; offline unless an API key is there. `install()` is called from `compat.apply()`.
"""

import json
import logging
import os
import uuid
from contextlib import contextmanager
from numbers import Number
from pathlib import Path

from fwp_fairseq import records

logger = logging.getLogger(__name__)

FILE = "wandb.json"  # in the folder of checkpoints: what wandb.init is given when the run is taken up again
UPLOAD_SECONDS = 60  # at the end; with no network wandb would wait for ever. `wandb sync` uploads what was left.
# fairseq's name of a number -> ours, the same for all kinds of work
NAMES = {
    "ppl": "perplexity",
    "lr": "learning_rate",
    "gnorm": "gradient_norm",
    "clip": "clipped_percent",
    "wps": "words_per_second",
    "ups": "updates_per_second",
    "wpb": "words_per_update",
    "bsz": "sentences_per_update",
    "train_wall": "training_seconds",
    "wall": "wall_seconds",
    "gb_free": "gpu_gb_free",
}

_run = None  # the open run; None too where wandb failed
_task = None  # whose training it is


def install() -> None:
    """Have the trainings of our tasks logged by this module instead of fairseq's wrapper. Safe to call again.

    Such a task has `run_name`, a tuple (experiment, row, cell), `trained_tokens`, the tokens so far, `loss_unit`, what
    fairseq's losses are multiplied with, and `state_size(model)`, None where it cannot tell.
    """
    from fairseq import checkpoint_utils
    from fairseq.logging import progress_bar

    load, fairseqs_bar = checkpoint_utils.load_checkpoint, progress_bar.WandBProgressBarWrapper
    if load.__module__ == __name__:
        return

    class ProgressBar(fairseqs_bar):
        def __init__(self, wrapped_bar, wandb_project, run_name=None):
            self.wrapped_bar = wrapped_bar

        def update_config(self, config):
            self.wrapped_bar.update_config(config)

        def _log_to_wandb(self, stats, tag=None, step=None):
            log(stats, tag, step)

    def load_checkpoint(cfg, trainer, **options):
        # of what fairseq calls ahead of the first update, this knows the whole configuration, the model and where it
        # goes on
        loaded = load(cfg, trainer, **options)
        ours = hasattr(trainer.task, "run_name")
        progress_bar.WandBProgressBarWrapper = ProgressBar if ours else fairseqs_bar
        if ours and trainer.cfg.common.wandb_project and trainer.is_data_parallel_master:
            begin(trainer)
        return loaded

    checkpoint_utils.load_checkpoint = load_checkpoint


@contextmanager
def harmless(what: str):
    """Turns any error in the block into a warning, after which nothing more is logged."""
    global _run
    try:
        yield
    except Exception as error:  # no matter which: hours of training are worth more than their log
        _run = None
        reason = " ".join([f"{type(error).__name__}:", *str(error).split()])
        logger.warning("wandb: %s failed (%s); going on without it", what, reason)


def begin(trainer) -> None:
    """Open the run of a training, or the one that its checkpoint was trained in. `ImportError` where wandb is missing."""
    global _run, _task
    finish()
    try:
        import wandb
    except ImportError as error:
        raise ImportError(
            f"common.wandb_project: wandb cannot be imported ({error}): pip install 'fwp_fairseq[track]', "
            "or train without the field (without --wandb)"
        )
    _task = trainer.task
    cfg = trainer.cfg
    with harmless("opening the run"):
        folder = Path(cfg.checkpoint.save_dir)
        resumed = trainer.get_num_updates() > 0
        known = read_identity(folder) if resumed and not cfg.checkpoint.no_save else None
        if known is None or known["project"] != cfg.common.wandb_project:
            known = new_identity(trainer) | {"id": uuid.uuid4().hex[:12], "mode": None}
        known["mode"] = choose_mode(known["mode"])
        if known["mode"] == "disabled":
            return
        settings = wandb.Settings(finish_timeout=UPLOAD_SECONDS)
        run = wandb.init(**known, config=configuration(trainer), resume="allow", settings=settings)
        # every row has both, so that either can be chosen as the x axis; updates are what is shown first
        run.define_metric("updates")
        run.define_metric("tokens")
        run.define_metric("*", step_metric="updates")
        run.define_metric("valid/loss", step_metric="updates", summary="min,last")
        if not cfg.checkpoint.no_save:
            write_identity(folder, known)
        _run = run


def finish() -> None:
    """Close the run of the training before, if one is open."""
    global _run
    if _run is not None:
        with harmless("closing the run"):
            _run.finish()
    _run = None


def log(stats: dict, tag: str, update: int) -> None:
    """A row of the run: fairseq's numbers under our names, losses in the unit of the records."""
    if _run is None or tag == "train":  # "train" is the mean over an epoch of what "train_inner" was
        return
    section = "train" if tag == "train_inner" else tag
    row = {"updates": update, "tokens": _task.trained_tokens}
    for name, value in stats.items():
        if isinstance(value, Number) and name != "num_updates":
            unit = _task.loss_unit if name.endswith("loss") else 1
            row[f"{section}/{NAMES.get(name, name)}"] = value * unit
    if section == "train":
        from fwp_fairseq.tasks.training_log import peak_memory_mb

        row["train/peak_memory_mb"] = peak_memory_mb()
    with harmless("logging"):
        # rows of one update are one row; wandb leaves out those that the run had before it was resumed
        _run.log(row, step=update)


def add_record(path) -> None:
    """Put the numbers of a record into the summary of the open run, and the file beside it."""
    if _run is not None:
        with harmless("adding the record"):
            put_record(_run, Path(path))


def add_evaluation(folder, path) -> None:
    """The same for the run that the training in a folder of checkpoints had, if it had one."""
    finish()
    with harmless("adding the record"):
        known = read_identity(Path(folder))
        if known is None:
            return
        known["mode"] = choose_mode(known["mode"])
        if known["mode"] == "disabled":
            return
        import wandb

        settings = wandb.Settings(finish_timeout=UPLOAD_SECONDS, console="off")
        run = wandb.init(**known, resume="allow", settings=settings)
        put_record(run, Path(path))
        run.finish()


def put_record(run, path: Path) -> None:
    record = records.read_record(path)
    fields = ("status", "scale", "updates", "wall_seconds", "peak_memory_mb", "parameters", "state_size")
    numbers = {name: record[name] for name in fields} | record["metrics"]
    run.summary.update({f"record/{name}": value for name, value in numbers.items()})
    run.save(str(path), base_path=str(path.parent), policy="now")


def choose_mode(before: str | None) -> str:
    """online, offline or disabled: as WANDB_MODE says, else as the run was before, else by whether there is a key.

    Never online without a key, where wandb would ask for one.
    """
    import wandb

    asked = os.environ.get("WANDB_MODE") or before
    if asked in ("offline", "dryrun", "disabled"):
        return "disabled" if asked == "disabled" else "offline"
    return "online" if wandb.login(prompt=False, verify=False) else "offline"


def new_identity(trainer) -> dict:
    experiment, row, cell = trainer.task.run_name
    return {
        "project": trainer.cfg.common.wandb_project,
        "name": f"{experiment}/{row}/{cell}/seed{trainer.cfg.common.seed}",
        "group": experiment,
        "job_type": "train",
        "tags": [row, cell],
    }


def read_identity(folder: Path) -> dict | None:
    path = folder / FILE
    return json.loads(path.read_text()) if path.exists() else None


def write_identity(folder: Path, identity: dict) -> None:
    temporary = folder / f"{FILE}.tmp"
    temporary.write_text(json.dumps(identity, indent=1))
    os.replace(temporary, folder / FILE)


def configuration(trainer) -> dict:
    """The whole Hydra configuration, and what tells the run in short."""
    from omegaconf import OmegaConf

    whole = OmegaConf.to_container(trainer.cfg, resolve=True, enum_to_str=True)
    whole.pop("job_logging_cfg", None)
    experiment, row, cell = trainer.task.run_name
    model = trainer.get_model()
    return whole | {
        "experiment": experiment,
        "row": row,
        "cell": cell,
        "seed": trainer.cfg.common.seed,
        "git_commit": records.git_commit(),
        "versions": records.versions(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "state_size": trainer.task.state_size(model),
    }
