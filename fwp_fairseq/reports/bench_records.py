"""What the reports of the benchmarks share: their records read, and the words on machine and code."""

from fwp_fairseq.records import read_records, record_path, runs_dir
from fwp_fairseq.reports.report import ReportError


def load_runs(results_dir, experiment, command, from_record):
    """(runs, problems) of all records that `from_record` takes; those it raises ValueError for are problems.

    Raises ReportError, which names the `fwp-bench` command, where none is left.
    """
    records, problems = read_records(results_dir, experiment)
    runs = []
    for record in records:
        try:
            runs.append(from_record(record))
        except ValueError as error:
            place = (record[field] for field in ("experiment", "row", "seed", "cell"))
            problems.append(f"{record_path(results_dir, *place)}: {error}")
    if not runs:
        left_out = "".join(f"\n  left out: {problem}" for problem in problems)
        raise ReportError(
            f"no records of the benchmark in {runs_dir(results_dir, experiment)}; make one with "
            f"`fwp-bench {command} --results {results_dir}`, or name their folder with --results" + left_out
        )
    return runs, problems


def check_config(record, **kinds):
    """ValueError unless the record's configuration has these fields, of these types."""
    for field, kind in kinds.items():
        if not isinstance(record["config"].get(field), kind):
            raise ValueError(f"config: {field} is missing or no {kind.__name__}")


def positive_curve(record, name, count):
    """A curve of the record; ValueError unless it is `count` numbers above 0."""
    values = record["curves"].get(name, [])
    numbers = [value for value in values if isinstance(value, (int, float)) and value > 0]
    if len(numbers) != len(values) or len(values) != count:
        raise ValueError(f"curves: {name} must be {count} numbers above 0, got {values}")
    return values


def machine(record):
    """The processor, and how many threads of it."""
    threads = record["config"]["threads"]
    on_cpu = f", {threads} thread{'s' if threads > 1 else ''}" if record["row"] == "cpu" else ""
    return f"{record['device']}{on_cpu}"


def code(record):
    """What was run, when, and with which settings of the environment."""
    environment = "".join(f"; {name}={value}" for name, value in record["config"].get("environment", {}).items())
    torch = f"torch {record['versions'].get('torch')}"
    return f"{torch}; commit {record['git_commit']}; {record['created'][:10]}{environment}"
