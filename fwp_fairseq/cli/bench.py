"""`fwp-bench NAME`: how fast the parts of the project are, next to what else could be used."""

import argparse
import sys

from fwp_fairseq.benchmarks import BenchError, decode, ops, synthetic, training, translation
from fwp_fairseq.records import RecordError

BENCHMARKS = {"ops": ops, "decode": decode, "synthetic": synthetic, "training": training, "translation": translation}


def main(argv=None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        return options.run(options)
    except (BenchError, RecordError) as error:
        print(f"fwp-bench {options.benchmark}: error: {error}", file=sys.stderr)
        return 2


def _parser():
    parser = argparse.ArgumentParser(prog="fwp-bench", description=__doc__.splitlines()[0].split(": ")[1])
    commands = parser.add_subparsers(dest="benchmark", metavar="NAME", required=True)
    for name, module in BENCHMARKS.items():
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
