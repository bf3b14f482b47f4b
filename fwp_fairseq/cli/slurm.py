"""`fwp-slurm`: submits the rows of a table or the cells of a figure to SLURM; the scripts' --slurm and its like call it."""

import argparse
import sys
from pathlib import Path

from fwp_fairseq.cli.sweep import FIGURES
from fwp_fairseq.slurm import SlurmError
from fwp_fairseq.slurm.chain import Chain
from fwp_fairseq.slurm.preflight import known_speeds, measure_figure, measure_table
from fwp_fairseq.slurm.resources import STEPS, load_resources
from fwp_fairseq.slurm.tasks import read_tasks

DESCRIPTION = """\
What `bash scripts/table_….sh` and `bash scripts/figure_….sh` do for --slurm,
--status, --cancel and --preflight. Run from the repository root; resources
come from configs/slurm.yaml, what was submitted is kept in <results>/slurm/."""


def main(argv=None) -> int:
    options = _parser().parse_args(argv)
    try:
        options.run(options)
    except SlurmError as error:
        print(f"fwp-slurm: error: {error}", file=sys.stderr)
        return 2
    return 0


def submit(options):
    resources = load_resources()
    tasks = read_tasks(sys.stdin)
    if options.dry_run:
        chain, names = Chain(options.results, options.experiment), []
        for step, text in chain.files(tasks, resources, names) if tasks else ():
            names.append(f"<job of {step}>")
            print(f"# ---- {step}: what sbatch gets\n{text}")
        return
    with Chain.locked(options.results, options.experiment) as chain:
        chain.submit(tasks, resources, known_speeds(options.results, options.experiment), _say)
        _say(f"kept in {chain.path}; logs: {chain.logs}")
    if any("--wandb" in command for task in tasks for command in task.commands.values()):
        _say("wandb is offline in jobs; from here, when they have ended: wandb sync wandb/offline-run-*")


def status(options):
    lines = Chain(options.results, options.experiment).status()
    for name, what in lines:
        _say(f"{name}: {what}")
    if not lines:
        _say(f"nothing of {options.experiment} was submitted")


def cancel(options):
    with Chain.locked(options.results, options.experiment) as chain:
        ids = chain.cancel()
    _say(f"cancelled: {', '.join(ids)}" if ids else "nothing runs or waits")


def collect(options):
    with Chain.locked(options.results, options.experiment) as chain:
        failed = chain.collect()
    _say(f"{failed} runs failed")


def processes(options):
    print(load_resources()["train"].processes)


def srun_options(options):
    print("\n".join(load_resources()[options.step].options()))


def preflight(options):
    measure_table(
        options.results, options.experiment, sys.stdin, options.folder, options.seeds, options.processes, _say
    )


def preflight_figure(options):
    launcher = ["srun", *load_resources()["cells"].options()] if options.srun else []
    measure_figure(options.experiment, launcher, _say)


def _say(text):
    print(text, flush=True)


def _parser():
    parser = argparse.ArgumentParser(
        prog="fwp-slurm", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(run, about, experiment=True, experiments=None):
        each = commands.add_parser(run.__name__.replace("_", "-"), help=about, description=about)
        each.set_defaults(run=run)
        if experiment:
            each.add_argument("experiment", choices=experiments, help="table or figure, table_wikitext103 say")
            each.add_argument("--results", type=Path, default=Path("results"), help="folder of records (default: results)")
        return each

    each = command(submit, "submit the tasks on standard input, one a line, and the table behind them")
    each.add_argument("--dry-run", action="store_true", help="print the sbatch files and stop")
    command(status, "show what runs, waits, failed and is finished")
    command(cancel, "cancel what runs and waits")
    command(collect, "write down which runs failed, for fwp-report; the job of the table does")
    each = command(preflight, "run the short trainings on standard input, one a line; print memory, speed and hours")
    each.add_argument("--folder", required=True, help="where the trainings leave training.json")
    each.add_argument("--seeds", type=int, default=1, help="how many seeds the hours are for (default: 1)")
    each.add_argument("--processes", type=int, default=1, help="of each training (default: 1)")
    about = "train the largest cells of a figure for some updates; print memory and hours"
    each = command(preflight_figure, about, experiments=tuple(FIGURES))
    each.add_argument("--srun", action="store_true", help="on a compute node")
    command(processes, "print how many processes a training has", experiment=False)
    each = command(srun_options, "print what configs/slurm.yaml asks for, one option a line", experiment=False)
    each.add_argument("--step", default="train", choices=STEPS, help="for which jobs (default: train)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
