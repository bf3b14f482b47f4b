"""`fwp-generate CHECKPOINT DATA --prompt TEXT`: a language model goes on with a text, printed as it comes."""

import argparse
import os
import sys
from pathlib import Path

from fwp_fairseq.cli.arguments import whole_number
from fwp_fairseq.cli.trained_model import ModelError, check_checkpoint, load_language_model

DESCRIPTION = """\
Go on with a text, symbol by symbol. Without a prompt the model begins at the
start of a line. An end of line is printed as one, and the text goes on.

Fast weights without positions and Transformer-XL keep a state of constant size,
so a symbol costs the same however long the text is. Other models read their
last tokens_per_sample symbols anew for each one."""

EPILOG = """\
examples:
  fwp-generate runs/.../checkpoint_best.pt data/mini_lm/data-bin --prompt "Returns the"
  fwp-generate runs/.../checkpoint_best.pt data/wikitext103/data-bin \\
      --prompt-file beginning.txt --length 1000 --temperature 0.9 --top-p 0.95 --seed 7

DATA is the data folder of the training; where it has subwords, their model
sentencepiece.model is looked for in it and beside it, as data_prep/mini_lm.py
leaves it. Exit status: 0 done, 1 something is wrong with the checkpoint, the data
or the prompt, 2 wrong arguments."""

BROKEN_PIPE = 141  # as a shell reports a command that SIGPIPE ended


def main(argv=None) -> int:
    """Run the command; returns its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        run(options, make_sampler(options, parser))
    # ValueError: what the package raises for settings and data that do not fit
    except (ModelError, ValueError) as error:
        print(f"fwp-generate: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(flush=True)
        return 130
    except BrokenPipeError:  # such as of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return 0


def make_sampler(options, parser):
    from fwp_fairseq.generation import Sampler

    try:
        return Sampler(options.temperature, options.top_k, options.top_p, options.seed)
    except ValueError as error:
        parser.error(str(error))


def run(options, sampler) -> None:
    check_checkpoint(options.checkpoint)
    prompt = read_prompt(options)
    from fwp_fairseq.generation import generate
    from fwp_fairseq.prompt_text import open_text

    cfg, model, dictionary = load_language_model(options.checkpoint, options.data)
    text = open_text(options.data, dictionary, options.allow_unknown)
    start = [] if prompt is None else text.encode(prompt)
    window = cfg.task.tokens_per_sample_eval or cfg.task.tokens_per_sample
    for number in range(1, options.samples + 1):
        if options.samples > 1:
            print(f"=== sample {number} of {options.samples}", flush=True)
        decoder = text.decoder()
        for symbol in start:
            print(decoder.add(symbol), end="")
        # the line before it has ended, as ahead of every line of the training text
        for symbol in generate(model, [dictionary.eos(), *start], options.length, window, sampler):
            print(decoder.add(symbol), end="", flush=True)
        if not decoder.at_line_start:
            print(flush=True)


def read_prompt(options):
    """The text of --prompt or --prompt-file, None without either; ValueError where it is blank or cannot be read."""
    prompt = options.prompt
    if options.prompt_file is not None:
        try:
            prompt = options.prompt_file.read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--prompt-file {options.prompt_file} cannot be read as UTF-8 text ({error})")
    if prompt is not None and not prompt.strip():
        raise ValueError("the prompt is empty; give some text, or leave the option out to begin at the start of a line")
    return prompt


def _parser():
    parser = argparse.ArgumentParser(
        prog="fwp-generate",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="of fwp_lm or fwp_transformer_xl")
    parser.add_argument("data", type=Path, metavar="DATA", help="data-bin folder, with the dictionary of the training")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="text to go on from (default: the start of a line)")
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="the same from a file, but for its last line break")
    parser.add_argument("--allow-unknown", action="store_true", help="read words that are not in the dictionary as <unk>")
    parser.add_argument("--length", type=whole_number, default=100, metavar="N", help="symbols to generate (default: 100)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T",
        help="below 1 likelier symbols become likelier still; 0: always the likeliest (default: 1)",
    )  # fmt: skip
    parser.add_argument("--top-k", type=whole_number, metavar="K", help="draw from the K likeliest symbols (default: all)")
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P",
        help="draw from the fewest symbols that together have probability P (default: 1)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the drawing (default: 1)")
    parser.add_argument("--samples", type=whole_number, default=1, metavar="K", help="texts, one after the other (default: 1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
