"""`megalith generate`: continue a prompt with a trained model."""

from __future__ import annotations

import argparse
import json
import sys

HELP = "Continue a prompt with a trained model, token by token."
EXAMPLE = 'megalith generate runs/demo --prompt "To be, or" --max-new-tokens 64 --temperature 0.8 --top-k 50 --seed 1'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="output folder of a run, or one of its checkpoint folders")
    parser.add_argument("--prompt", required=True, help="text to continue; empty begins a new document")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="stop after so many tokens (default 64)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the most likely token (default 0.8)")
    parser.add_argument("--top-k", type=int, default=50, help="choose among the k most likely; 0 for all (default 50)")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="choose among the likeliest with this mass (default 1)"
    )
    parser.add_argument("--seed", type=int, default=1, help="same seed, same text (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the text")


def run(args: argparse.Namespace) -> int:
    """Print the prompt and its continuation as it comes; one process speaks, also under a launcher."""
    from megalith.inference.generate import continue_text
    from megalith.inference.sampling import Sampling
    from megalith.opening.model import open_model

    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.seed)
    pieces = continue_text(open_model(args.model), args.prompt, args.max_new_tokens, sampling)
    if args.json:
        text = "".join(pieces)
        print(json.dumps({"prompt": args.prompt, "continuation": text, "text": args.prompt + text}, ensure_ascii=False))
        return 0
    first = next(pieces, "")  # faults are raised before anything is printed
    sys.stdout.write(args.prompt + first)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0
